"""Records made by hand: one of each verdict, and one as hostile as a record can be."""

from __future__ import annotations

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord, Side, Tolerance
from driftscope.records.verdict import Verdict

THRESHOLDS = {
    "lifted": 1e-11, "lifted_floor64": 100.0, "chaotic": 1e-6, "rounding": 1.5, "large": 2.5,
    "ill_conditioned": 0.1, "tie": 3.0, "repeat": 4.0, "constant_ulps": 2.0,
}  # fmt: skip

PROGRAMS = {
    "a": {"name": "DigitClassifier", "kind": "torch", "runtime": "torch eager, CPU", "parameters": 61_642},
    "b": {
        "name": "digits.onnx",
        "kind": "onnx",
        "runtime": "onnxruntime 1.31.1 CPU, optimisation level all",
        "opset": 20,
        "nodes": 87,
    },
}

ENVIRONMENT = {
    "python": "CPython 3.11.7",
    "system": "Linux 6.1.0 x86_64, glibc 2.36",
    "processor": {"model": "Intel(R) Xeon(R) Platinum 8481C", "cores": 2, "flags": ["avx2", "avx512f", "fma"]},
    "versions": {"driftscope": "0.1.0", "torch": "2.13.0", "onnxruntime": "1.31.1", "numpy": "2.4.6"},
    "variables": {"OMP_NUM_THREADS": "1"},
}

EVIDENCE = {
    "lift": {"a": {"operators": 143, "seconds": 0.05}, "b": {"operators": 87, "seconds": 0.03}},
    "constants": {"reconciled": 4, "weights_same_bits": 38},
    "floor": {"a": 2.1e-07, "b": 2.2e-07},
}


def side(error: float = 0.6, dtype: str = "float32", shape: tuple[int, ...] = (64, 10)) -> Side:
    """Return one side at one output."""
    return Side(dtype, shape, floor=2.1e-07, error=2.1e-07 * error, error_floors=error)


def value(path: str, verdict: Verdict, **changes: object) -> OutputRecord:
    """Return an output whose values differ a little."""
    fields: dict[str, object] = {
        "reason": "same function (lifted drift 3.1e-16), 0.61 floors: ordinary rounding",
        "kind": "value", "count": 640, "mismatched": 602, "max_ulp": 48.0, "max_abs": 9.5e-07, "max_rel": 3.1e-05,
        "rms": 1.8e-07, "worst_index": (12, 3), "worst_values": ("-0.030712", "-0.030713"), "floors": 0.61,
        "lifted": 3.1e-16, "lifted_threshold": 1e-11, "closer": "b", "a": side(0.64), "b": side(0.55),
        "tolerance": Tolerance(1.3e-06, 2.0e-06, "six floors: one honest run in a million fails"),
    }  # fmt: skip
    return OutputRecord(path, verdict, **(fields | changes))  # type: ignore[arg-type]


def comparison(verdict: Verdict, reason: str, outputs: tuple[OutputRecord, ...], *findings: Finding) -> Comparison:
    """Return a whole record around outputs and findings."""
    return Comparison(
        verdict, reason, outputs, findings, PROGRAMS,
        {"recipe": {"images": "360x64:float32"}, "seed": 0, "law": "normal"}, ENVIRONMENT, THRESHOLDS, EVIDENCE,
        {"run a": 0.012, "run b": 0.004, "lift": 0.08, "floor": 0.06},
        "driftscope compare digits.py:model digits.onnx --seed 0",
    )  # fmt: skip


def rounding() -> Comparison:
    """Return an honest export."""
    output = value("out['logits']", Verdict.ROUNDING)
    note = Finding(
        "W001",
        "4 constants of digits.onnx are the reference's, rounded to float32",
        "the exporter stores scalars in the model's dtype",
        note=True,
        where=Where(node="node_sqrt_3", operator="Sqrt"),
    )
    return comparison(Verdict.ROUNDING, output.reason, (output,), note)


def different() -> Comparison:
    """Return a broken LayerNormalization."""
    reason = "not the same function: in float64 they still differ by 3.2e-05 relative (limit 1e-11)"
    logits = value(
        "out['logits']", Verdict.DIFFERENT, reason=reason, floors=212.4, lifted=3.2e-05, max_ulp=81_204.0,
        max_abs=1.9e-04, closer="equal", b=side(0.66), tolerance=None,
    )  # fmt: skip
    hidden = value("out['hidden']['layers'][2].attention", Verdict.ROUNDING)
    guilty = Finding(
        "N001",
        "fed the reference's values, this LayerNormalization alone differs by 4.8e-05 in float64",
        "epsilon is 0.001 here and 1e-05 in the reference",
        "set the attribute epsilon of node_layer_norm_3 to 1e-05",
        Where("out['logits']", "node_layer_norm_3", "LayerNormalization", "blocks.1.norm1", "digits.py", 42,
              "x = x + self.attention(self.norm1(x))"),
        {"lifted_before": 3.2e-05, "lifted_after": 2.9e-16},
        verified=True,
    )  # fmt: skip
    by_order = Finding("O001", "input 'images' was bound to 'x' by order", "the names differ", note=True)
    return comparison(Verdict.DIFFERENT, reason, (logits, hidden), guilty, by_order)


def precision() -> Comparison:
    """Return a TF32 matmul."""
    reason = "same function (lifted drift 8.0e-17), 690 floors: explained by TF32 products"
    output = value(
        "out", Verdict.PRECISION, reason=reason, floors=690.0, lifted=8e-17, closer="a", b=side(975.0), max_ulp=2.4e9
    )
    finding = Finding(
        "N003", "690 floors in float32 arithmetic, 1.1 with products rounded to TF32", "TF32 is allowed for matmul",
        'torch.set_float32_matmul_precision("highest")', Where("out", "linear_1", "MatMul"),
    )  # fmt: skip
    return comparison(Verdict.PRECISION, reason, (output,), finding)


def inconclusive() -> Comparison:
    """Return a reference that cannot be lifted."""
    reason = "the reference cannot be evaluated in float64: operator com.acme::Wobble has no definition"
    output = value("out", Verdict.INCONCLUSIVE, reason=reason, floors=None, lifted=None, closer=None, tolerance=None,
                   a=Side("float32", (64, 10)), b=Side("float32", (64, 10)))  # fmt: skip
    return comparison(Verdict.INCONCLUSIVE, reason, (output,), Finding("R004", "com.acme::Wobble cannot be lifted"))


def identical() -> Comparison:
    """Return the same bits."""
    output = value("out", Verdict.IDENTICAL, reason="the same bits", kind="same", mismatched=0, max_ulp=0.0,
                   max_abs=0.0, max_rel=0.0, rms=0.0, floors=0.0, worst_index=None,
                   worst_values=None, closer="equal")  # fmt: skip
    return comparison(Verdict.IDENTICAL, "the same bits", (output,))


def many(count: int = 60) -> Comparison:
    """Return a program of many outputs, one of them missing and some beyond every scale."""
    kinds = (Verdict.ROUNDING, Verdict.ROUNDING, Verdict.IDENTICAL, Verdict.ROUNDING, Verdict.PRECISION)
    outputs = [
        value(f"out['past_key_values'].layers[{i}].keys", kinds[i % 5], floors=(0.1 * i) % 3, lifted=1e-16 * (i % 7))
        for i in range(count - 2)
    ]
    outputs.append(OutputRecord("out['extra']", Verdict.DIFFERENT, "missing in B", "structure", a=side(), b=None))
    inf, nan = float("inf"), float("nan")
    outputs.append(value("out['scores']", Verdict.DIFFERENT, floors=inf, lifted=nan, max_abs=inf))
    reason = "out['extra'] is missing in B"
    findings = [Finding("N007", reason, where=Where("out['extra']"))]
    findings += [Finding("N013", f"layer {i} drifts by 2.1 floors", where=Where(f"out[{i}]")) for i in range(20)]
    return comparison(Verdict.DIFFERENT, reason, tuple(outputs), *findings)


HOSTILE_NAME = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\x1b[31m\u202e{{7*7}}[bold]&amp;\x00"
)


def hostile() -> Comparison:
    """Return a record in which every name wants to be markup."""
    name = HOSTILE_NAME
    output = value(f"out[{name!r}]{name}", Verdict.DIFFERENT, reason=name, worst_values=(name, name),
                   tolerance=Tolerance(1e-6, 1e-6, name), a=Side(name, (1,)), b=Side(name, (1,)))  # fmt: skip
    where = Where(name, name, name, name, name, 3, name)
    finding = Finding("N001", name, name, name, where, {name: [name, {name: name}]})
    return Comparison(
        Verdict.DIFFERENT, name, (output,), (finding,), {"a": {"name": name, "runtime": name}, "b": {name: name}},
        {name: name}, {name: {name: [name]}}, {name: name}, {name: name}, {name: 1.0}, f"driftscope compare {name}",
    )  # fmt: skip


ALL = {
    "identical": identical, "rounding": rounding, "precision": precision, "inconclusive": inconclusive,
    "different": different, "many": many, "hostile": hostile,
}  # fmt: skip
