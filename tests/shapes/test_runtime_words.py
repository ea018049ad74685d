"""What a runtime says of a shape is printed without the place where the runtime was built."""

from __future__ import annotations

import pytest

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Refusal
from driftscope.shapes.probe.onnx_serving import _words

OPENING = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Where node. Status Message: "


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (
            "/onnxruntime_src/core/ops.h:563 void onnxruntime::Init(ptrdiff_t, ptrdiff_t) axis was false. 10 by 0",
            "10 by 0",
        ),
        ("/onnxruntime_src/core/ops.h:563 void onnxruntime::Init(ptrdiff_t) cannot reshape", "cannot reshape"),
        ("cannot reshape {2,3} into {4}", "cannot reshape {2,3} into {4}"),
    ],
)
def test_no_path_of_a_build_machine(said: str, left: str) -> None:
    words = _words(OPENING + said)
    assert "onnxruntime_src" not in words
    assert words.endswith(f"Status Message: {left}")
    assert "Where node" in words


_STACK = 'User Stack (most recent call last):\n  File "/home/me/torch/export.py", line 232, in forward'
_LINE = "Caused by: if n > 1:  # model.py:9 in forward"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (
            f"No guard.\n{_LINE}\nFor more information, run with TORCH_LOGS\n\n{_STACK}",
            f"No guard.\n{_LINE}",
        ),
        (f"No guard.\n{_LINE} (rooms/src/driftscope/x.py:1 in f)", f"No guard.\n{_LINE}"),
        (
            "Violated (n)!\n  - n is dynamic",
            "Violated (n)!\n  - n is dynamic",
        ),
    ],
    ids=["logging and stack", "our own wrapper", "nothing to leave out"],
)
def test_what_torch_refuses_is_kept_without_its_stack(said: str, left: str) -> None:
    assert Refusal(Attempt(Mode.AUTO, ()), "UserError", said).without_stack == left
