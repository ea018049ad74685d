"""Runs ONNX's own node test cases through the lifted evaluator and through onnxruntime, and counts.

``python tests/lift/onnx_coverage.py --write`` regenerates ``docs/reference/onnx-coverage.md``.
"""

from __future__ import annotations

import functools
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, array_to_tensor, round_to, to_format
from driftscope.lift.onnx.graph import lift_onnx
from driftscope.lift.onnx.registry import Value

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "onnx-coverage.md"
HIGHEST_OPSET, HIGHEST_IR = 26, 13

# Their values are drawn at random; only the shapes are a promise.
# Cases that do not pass, by the beginning of their names, and why.
KNOWN = {
    "test_attention_4d_causal_bf16": "expected values were computed in bfloat16, each step rounded",
    "test_attention_4d_padded_kv_bf16": "expected values were computed in bfloat16, each step rounded",
    "test_attention_4d_causal_padded_kv_bf16": "expected values were computed in bfloat16, each step rounded",
    "test_attention_4d_attn_mask_causal_bf16": "expected values were computed in bfloat16, each step rounded",
    "test_attention_3d_causal_bf16": "expected values were computed in bfloat16, each step rounded",
    "test_dft_inverse": "expects float32 rounding noise of 2e-7 where the exact value is 0",
    "test_image_decoder": "decoding images is not arithmetic",
    "test_resize_downsample_scales_linear_align_corners": "expects a fractional output length; we do as onnxruntime",
    "test_resize_downsample_scales_cubic_align_corners": "expects a fractional output length; we do as onnxruntime",
}

RANDOM = ("test_bernoulli", "test_random", "test_training_dropout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case: whether it is a floating-point case, and how each evaluator fared ("" is a pass)."""

    name: str
    operators: tuple[str, ...]
    floating: bool
    ours: str
    runtime: str


@functools.cache
def cases() -> dict[str, Any]:
    """Every node test case of the installed onnx, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def is_floating(case: Any) -> bool:
    """Whether some tensor of the case's results is a float."""
    return any(_floating(v) for _, outputs in case.data_sets for v in outputs)


def _floating(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_floating(v) for v in value)
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        return isinstance(value, float)
    return value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float"))


def as_feed(value: Any) -> Any:
    """A case's input as a feed: tensors, lists of them, arrays of strings, None."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [as_feed(v) for v in value]
    if isinstance(value, onnx.TensorProto):
        return as_feed(onnx.numpy_helper.to_array(value))
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "SU":
        return array
    tensor = array_to_tensor(array)
    return to_format(tensor, FORMAT_OF_ELEMENT[onnx.helper.np_dtype_to_tensor_dtype(array.dtype)])


def check(case: Any) -> None:
    """Lift a case and compare with what it expects; raises on any difference."""
    for inputs, outputs in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        feeds = dict(zip(names, map(as_feed, inputs), strict=True))
        values = lift_onnx(case.model, feeds).values()
        if len(values) != len(outputs):
            raise AssertionError(f"{len(values)} outputs, expected {len(outputs)}")
        for value, expected in zip(values, outputs, strict=True):
            _compare(value, expected, case)


def _compare(value: Value, expected: Any, case: Any) -> None:
    if isinstance(expected, list | tuple):
        assert len(value.data) == len(expected), f"length {len(value.data)}, expected {len(expected)}"
        for inner, wanted in zip(value.data, expected, strict=True):
            _compare(inner, wanted, case)
        return
    if expected is None:
        assert value.data is None
        return
    expected = onnx.numpy_helper.to_array(expected) if isinstance(expected, onnx.TensorProto) else np.asarray(expected)
    if expected.dtype == object or expected.dtype.kind in "SU":
        np.testing.assert_array_equal(np.asarray(value.data, dtype=object).astype(str), expected.astype(str))
        return
    assert tuple(value.data.shape) == expected.shape, f"shape {tuple(value.data.shape)}, not {expected.shape}"
    if case.name.startswith(RANDOM):
        return
    wanted = to_format(array_to_tensor(expected), None)
    got = value.data
    if got.is_floating_point() or got.is_complex():
        got = round_to(got, value.format, saturate=False).to(wanted.dtype if wanted.is_complex() else torch.float64)
        wanted = wanted.to(got.dtype)
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=case.rtol, atol=case.atol, equal_nan=True)
    else:
        assert value.format == as_feed(expected).dtype or expected.dtype.itemsize == 1, value.format
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def as_constants(case: Any) -> Any:
    """The same case with its inputs as initializers: the whole graph is then folded natively."""
    inputs, outputs = case.data_sets[0]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, value in zip(case.model.graph.input, inputs, strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), info.name))
    del model.graph.input[:]
    return case.__class__(**{**case.__dict__, "model": model, "data_sets": [([], outputs)]})


def can_be_constant(case: Any) -> bool:
    """Whether the inputs of a case are plain numeric tensors."""
    values = [value for inputs, _ in case.data_sets for value in inputs]
    return all(isinstance(v, np.ndarray | np.generic) and v.dtype.kind in "fiub" for v in values)


def verdict(case: Any) -> str:
    """Why our evaluator fails a case, in a few words; empty where it passes."""
    try:
        check(case)
    except CannotLift as error:
        return f"cannot lift: {error.reason}"
    except (DriftscopeError, AssertionError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    except Exception as error:
        return f"crash: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def runtime_verdict(case: Any) -> str:
    """Why onnxruntime fails a case; empty where it passes."""
    import onnxruntime

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, HIGHEST_IR)
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, HIGHEST_OPSET)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # any refusal to load means the same here
        return f"does not load: {str(error)[:80]}"
    try:
        for inputs, outputs in case.data_sets:
            names = [i.name for i in session.get_inputs()]
            given = {n: v for n, v in zip([i.name for i in case.model.graph.input], inputs, strict=True) if n in names}
            for got, wanted in zip(session.run(None, given), outputs, strict=True):
                _compare_runtime(got, wanted, case)
    except Exception as error:
        return f"fails: {' '.join(str(error).split())[:80]}"
    return ""


def _compare_runtime(got: Any, expected: Any, case: Any) -> None:
    if isinstance(expected, list | tuple):
        for inner, wanted in zip(got, expected, strict=True):
            _compare_runtime(inner, wanted, case)
        return
    if expected is None:
        assert got is None
        return
    expected, got = np.asarray(expected), np.asarray(got)
    assert expected.shape == got.shape
    if case.name.startswith(RANDOM):
        return
    if _floating(expected):
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol, equal_nan=True)
    else:
        np.testing.assert_array_equal(got, expected)


def measure(*, runtime: bool = True, only: str = "") -> list[Outcome]:
    """Run every case."""
    outcomes = []
    for name, case in cases().items():
        if only and only not in name:
            continue
        operators = tuple(sorted({n.op_type for n in case.model.graph.node}))
        ours = verdict(case)
        theirs = runtime_verdict(case) if runtime else "not run"
        outcomes.append(Outcome(name, operators, is_floating(case), ours, theirs))
    return outcomes


def reason(name: str) -> str:
    """Why a case is known not to pass; empty for one that should."""
    return next((why for start, why in KNOWN.items() if name.startswith(start)), "")


def report(outcomes: list[Outcome]) -> str:
    """The page of the manual that says what is covered."""
    floating = [o for o in outcomes if o.floating]
    both = [o for o in floating if not o.runtime]
    operators = sorted({name for o in outcomes if not o.ours for name in o.operators})
    failures = "\n".join(f"| `{o.name}` | {reason(o.name)} |" for o in outcomes if o.ours)
    return f"""# ONNX operators that are evaluated in float64

Counted by running the node test cases that onnx {onnx.__version__} ships through the lifted evaluator
(`python -m tests.lift.onnx_coverage --write` counts again and rewrites this page). A case passes if every float
is within the case's own tolerance of what it expects and everything else is equal.

| cases | pass | of |
|---|---:|---:|
| with floating-point results | {_passed(floating)} | {len(floating)} |
| of those, passed by onnxruntime (opset {HIGHEST_OPSET}, IR {HIGHEST_IR} at most) | {_passed(both)} | {len(both)} |
| all | {_passed(outcomes)} | {len(outcomes)} |

Cases that do not pass:

| case | why |
|---|---|
{failures}

Operators in the passing cases: {", ".join(f"`{name}`" for name in operators)}.
"""


def _passed(outcomes: list[Outcome]) -> int:
    return sum(not o.ours for o in outcomes)


def main(arguments: list[str]) -> None:
    """Print the counts and every failure; with ``--write`` rewrite the page."""
    torch.set_num_threads(1)
    only = next((a for a in arguments if not a.startswith("-")), "")
    outcomes = measure(runtime="--no-runtime" not in arguments, only=only)
    for outcome in outcomes:
        if outcome.ours:
            told = "" if outcome.runtime else " (onnxruntime passes)"
            print(f"{outcome.name}{told}: {outcome.ours}")
    floating = [o for o in outcomes if o.floating]
    both = [o for o in floating if not o.runtime]
    print(f"floating-point cases: {_passed(floating)} of {len(floating)}")
    print(f"of those onnxruntime passes: {_passed(both)} of {len(both)}")
    print(f"all cases: {_passed(outcomes)} of {len(outcomes)}")
    if "--write" in arguments:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(report(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
