"""What a runtime says of a shape is printed without the place where the runtime was built."""

from __future__ import annotations

import pytest

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
