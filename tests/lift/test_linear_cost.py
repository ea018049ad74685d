"""What reconciling and lifting cost, counted: passes over the weights and runs of the graphs, not seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import driftscope as ds
from driftscope.lift import readings
from driftscope.lift.formulas import terms
from driftscope.lift.onnx.graph import LiftedOnnx, lift_onnx
from driftscope.lift.reconcile import folds, matching, scalars
from driftscope.lift.reconcile.exact import exact_matches
from driftscope.lift.reconcile.folds import Folds
from driftscope.lift.reconcile.made import MadeAhead
from driftscope.lift.reconcile.maps import Product
from driftscope.lift.reconcile.matching import ulp
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.reconcile.solving import ConstantTables, Residual, solve_scalars
from driftscope.lift.steps import Constant, Origin
from driftscope.lift.torch.tape import TorchTape, lift_torch
from driftscope.records.finding import Where


class Weights:
    """A lifted program of which only the constants are asked."""

    def __init__(self, count: int, seed: int):
        drawn = torch.Generator().manual_seed(seed)
        self._constants = [
            Constant(f"w{k}", torch.randn(8, 8, generator=drawn), Origin.WEIGHT, Where()) for k in range(count)
        ]

    def constants(self) -> list[Constant]:
        return self._constants


def mixed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the tensors whose bits are mixed from here on."""
    read: list[int] = []
    real = readings._mixed
    monkeypatch.setattr(readings, "_mixed", lambda value: read.append(value.numel()) or real(value))
    return read


def fingerprints(count: int, other: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Count the tensors whose ends, and whose bits, are read to match as many of one program with those of another."""
    read, ends, real = mixed(monkeypatch), [], readings._ends
    monkeypatch.setattr(readings, "_ends", lambda value: ends.append(value.numel()) or real(value))
    a, b = ReconciledSide(Weights(count, 0), []), ReconciledSide(Weights(count, int(other == "other")), [])  # type: ignore[arg-type]
    if other in ("transposed", "shuffled"):
        moved = (lambda value: value.T) if other == "transposed" else (lambda value: value.flip(0))
        b.constants = [replace(c, value=moved(c.value), name=f"{c.name}.T") for c in b.constants]
        b.index = matching.WeightIndex(b.constants, a.index)
    with readings.readings_kept():
        exact_matches(b, a.constants, a.index)
        exact_matches(a, b.constants, b.index)
    monkeypatch.undo()
    assert len(b.left) == len(a.left) == (count if other == "other" else 0)
    return len(ends), len(read)


@pytest.mark.parametrize(
    ("other", "ends", "bits"), [("same", 0, 0), ("transposed", 2, 0), ("shuffled", 2, 2), ("other", 2, 0)]
)
def test_matching_reads_each_weight_a_fixed_number_of_times(
    other: str, ends: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Same bits under the same name, or transposed, are seen by comparing; other ends tell other numbers at once.
    assert {n: fingerprints(n, other, monkeypatch) for n in (4, 8, 16, 32)} == {
        n: (ends * n, bits * n) for n in (4, 8, 16, 32)
    }


def test_no_number_is_computed_from_others_for_weights_that_match_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    monkeypatch.setattr(scalars, "_replayed", lambda number, *_: tried.append(number) or [])
    a, b = ReconciledSide(Weights(8, 0), []), ReconciledSide(Weights(8, 1), [])  # type: ignore[arg-type]
    assert exact_matches(b, a.constants, a.index) == []
    assert len(b.left) == 8
    assert tried == []
    number = Constant("scale", torch.tensor(0.1), Origin.WEIGHT, Where())
    scalars.Candidates(a.constants, single=True).of(number)
    assert len(tried) == 1, "of a single number it is"


@pytest.mark.parametrize("value", [torch.nan, -0.0, torch.inf])
def test_odd_numbers_are_found_in_any_order_and_others_are_not(value: float) -> None:
    torch.manual_seed(0)
    ours = Weights(1, 0).constants()[0]
    ours.value[2, 3] = value
    theirs = matching.WeightIndex([replace(ours, name="theirs", value=ours.value.flip(0))])
    own = matching.WeightIndex([ours])
    assert theirs.has(ours, own)
    moved = replace(ours, value=ours.value.clone())
    moved.value[0, 0] = 0.5 * moved.value.nan_to_num().abs().max().clamp(max=1.0)
    assert not theirs.has(moved, matching.WeightIndex([moved]))


def test_the_spacing_of_a_format_is_exact() -> None:
    for fmt in (torch.float16, torch.bfloat16, torch.float32):
        values = torch.tensor([1.0, 1.5, 0.75, 3.0, 1000.0, torch.finfo(fmt).tiny / 2, 0.0])
        above = torch.nextafter(values.to(fmt), torch.tensor(torch.inf, dtype=fmt))
        assert torch.equal(ulp(values.to(fmt).double(), fmt), above.double() - values.to(fmt).double())
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan], dtype=torch.float64)
    assert bool((ulp(odd, torch.float32) < 1e-40).all())


def test_a_clean_comparison_evaluates_each_graph_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    for kind, name in ((LiftedOnnx, "values"), (TorchTape, "run")):
        real = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda self, *a, real=real, kind=kind, **k: runs.append(kind.__name__) or real(self, *a, **k)
        )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval()
    again = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval()
    again.load_state_dict(model.state_dict())
    record = ds.compare(model, lambda x: again(x.clone()), torch.randn(16, 64))
    assert record.verdict is ds.Verdict.IDENTICAL
    assert len(runs) == 4  # each side clean, and once with noise


@pytest.mark.parametrize("changed", [False, True], ids=["same bits", "one bit changed"])
def test_weights_of_the_same_name_and_bits_are_mixed_once(changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = Weights(4, 0).constants(), Weights(4, 0).constants()
    if changed:
        theirs[2].value[3, 4] += 1.0
    one = matching.WeightIndex(ours)
    other = matching.WeightIndex(theirs, like=one)
    read = mixed(monkeypatch)
    with readings.readings_kept():
        found = [other.fingerprint(c) for c in theirs]
        assert len(read) == 4
        assert [f == one.fingerprint(c) for f, c in zip(found, ours, strict=True)] == [True, True, not changed, True]
        again = matching.WeightIndex(theirs)
        assert [again.fingerprint(c) for c in theirs] == found
        assert len(read) == 4 + changed
        # What is written into is read again.
        ours[1].value.zero_()
        assert one.fingerprint(ours[1]) != found[1]
        assert len(read) == 5 + changed
    assert again.fingerprint(theirs[0]) == found[0]
    assert len(read) == 6 + changed  # nothing is kept from one comparison to the next


def test_whether_a_tensor_is_one_number_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    constant, read, real = Weights(1, 0).constants()[0], [], readings._number
    monkeypatch.setattr(readings, "_number", lambda value: read.append(1) or real(value))
    with readings.readings_kept():
        assert [matching.uniform(constant) for _ in range(3)] == [None] * 3
        assert len(read) == 1
        constant.value.fill_(0.25)  # what is written into is read again
        assert [matching.uniform(constant) for _ in range(3)] == [0.25] * 3
        assert len(read) == 2
    assert matching.uniform(constant) == 0.25
    assert len(read) == 3


@pytest.mark.parametrize(("theirs", "left"), [(0.0884, 0), (0.0885, 1)])
def test_a_number_that_both_write_is_not_looked_for_among_folds(theirs: float, left: int) -> None:
    sides = [
        ReconciledSide(SimpleNamespace(constants=lambda n=n: [number("scale", n)]), [])  # type: ignore[arg-type]
        for n in (0.0884, theirs)
    ]
    assert exact_matches(sides[0], sides[1].constants, sides[1].index) == []
    assert len(sides[0].left) == left


def number(name: str, value: float) -> Constant:
    return Constant(name, torch.tensor(value), Origin.WEIGHT, Where(), True)


class Normalised(nn.Module):
    """Two linear layers of different sizes, each behind the weight of a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(96), nn.LayerNorm(128)])
        self.layers = nn.ModuleList([nn.Linear(96, 128), nn.Linear(128, 64)])
        for norm in self.norms:
            nn.init.normal_(norm.weight)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(norm(x)).tanh()
        return x


def test_only_folds_of_the_size_of_what_is_left_are_multiplied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = Product.fresh
    monkeypatch.setattr(Product, "fresh", lambda p: made.append(p.value.numel() if p.factors else 0) or real(p))
    module = Normalised()
    graph = lift_torch(module, (torch.randn(4, 96),), {})
    pieces = Folds(graph, graph.constants())
    folded = module.layers[1].weight * module.norms[1].weight
    found = pieces.match(Constant("folded", folded, Origin.WEIGHT, Where()), ulps=2.0)
    assert found is not None
    assert found.kind == "fold"
    assert {size for size in made if size > 4096} == {128 * 64}
    wrong = folded.clone()
    wrong[0, 0] *= 1.001
    assert pieces.match(Constant("wrong", wrong, Origin.WEIGHT, Where()), ulps=2.0) is None


def test_a_weight_that_resembles_no_fold_is_looked_for_among_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = Folds.__init__
    monkeypatch.setattr(Folds, "__init__", lambda self, *a, **k: made.append("folds") or real(self, *a, **k))
    model, changed = Normalised(), Normalised()
    changed.load_state_dict(model.state_dict())
    changed.layers[1].weight[3, 5] *= 3.0
    record = ds.compare(model, lambda x: changed(x.clone()), torch.randn(4, 96))
    assert record.verdict is ds.Verdict.DIFFERENT
    assert record.first is not None
    assert record.first.code.startswith("W")
    assert made == ["folds"] * 2  # of each side


@pytest.mark.parametrize("wrong", [False, True], ids=["folded", "folded with another epsilon"])
def test_no_run_is_made_for_the_affine_pieces_beside_convolutions(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[object] = []
    real = folds.look
    monkeypatch.setattr(folds, "look", lambda graph, *a, **k: runs.append(graph) or real(graph, *a, **k))
    torch.manual_seed(2)
    conv, norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
    nn.init.normal_(norm.weight)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    model = nn.Sequential(conv, norm, nn.ReLU()).eval().requires_grad_(False)
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps * (100.0 if wrong else 1.0))
    weight, bias = conv.weight * scale[:, None, None, None], (conv.bias - norm.running_mean) * scale + norm.bias
    record = ds.compare(model, lambda x: torch.relu(nn.functional.conv2d(x, weight, bias)), torch.randn(1, 3, 9, 9))
    assert record.verdict is (ds.Verdict.DIFFERENT if wrong else ds.Verdict.ROUNDING)
    if not wrong:
        assert runs == []


class Scaled(nn.Module):
    """Products of rows, with a factor split over both sides of the product as attention does it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 0.3) @ (x.mT * 0.3)


def scaled_file(path: Path, scale: float) -> Path:
    """The same as a file; onnxruntime multiplies both factors into one attribute of a fused product."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["a"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Mul", ["t", "s"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [32, 32, 16]), ("y", [32, 32, 32]))
    )
    stored = [helper.make_tensor("s", TensorProto.FLOAT, [], [scale])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], stored), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("scale", "verdict", "runs"), [(0.3, "ROUNDING", 4), (0.3001, "DIFFERENT", None)])
def test_a_number_that_moves_by_the_last_bits_alone_needs_no_run(
    scale: float, verdict: str, runs: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    real = LiftedOnnx.values
    monkeypatch.setattr(LiftedOnnx, "values", lambda self, *a, **k: seen.append(self) or real(self, *a, **k))
    torch.manual_seed(0)
    found = ds.compare(Scaled().eval(), scaled_file(tmp_path / "m.onnx", scale), torch.randn(32, 32, 16))
    assert found.verdict.name == verdict
    # The file as it is, with noise, with its factor as written; the fused graph once, with the file's factor squared.
    assert runs is None or len(seen) == runs


def test_which_repairs_move_what_is_in_force() -> None:
    constant = Constant("c", torch.tensor(0.3), Origin.WEIGHT, Where())
    stored = constant.value.double()

    def repaired(factor: float, kind: str = "scalar") -> matching.Repair:
        return matching.Repair("c", stored * factor, kind, "", constant)

    near, far = repaired(1 + 2.0**-51), repaired(1 + 2.0**-30)
    assert not matching.moves([], [near])
    assert matching.moves([], [far])
    assert not matching.moves([far], [repaired(1 + 2.0**-30 + 2.0**-51)])
    assert matching.moves([far], [near])
    assert matching.moves([], [repaired(1.0, "weight")])


def test_a_product_is_read_once_for_its_noise_and_its_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[torch.Size] = []
    real = terms._square_norms
    monkeypatch.setattr(terms, "_square_norms", lambda rows: looked.append(rows.shape) or real(rows))
    a, b = torch.randn(2, 3, 5, dtype=torch.float64), 10.0 * torch.randn(5, 7, dtype=torch.float64)
    known = terms.product(a, b).squares
    assert isinstance(known, terms.ProductSquares)
    exact = a.square() @ b.square()
    assert known().shape == exact.shape
    assert float((known() / exact).log().mean().abs()) < 0.5
    assert known.sizes() == pytest.approx((float(a.square().mean().sqrt()), float(b.square().mean().sqrt())))
    assert looked == [a.shape, (7, 5)]


def test_what_is_one_place_in_memory_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(4, 4)
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    assert readings.is_same(value, torch.from_numpy(value.numpy()))
    assert not readings.is_same(value, value.T)
    assert not readings.is_same(value, value.clone())


@pytest.mark.parametrize("gap", [0.0, 1e-4], ids=["a rounding", "something else"])
def test_what_no_small_step_of_a_number_leads_to_is_not_tried(gap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """``x * scale`` where the file has the scale in float32; the other difference is no multiple of ``x``."""
    x, scale = torch.randn(256, generator=torch.Generator().manual_seed(0)), 0.1 + 1e-9
    numbers = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256])
    made_of = helper.make_tensor("s", TensorProto.FLOAT, [], [scale])
    body = helper.make_graph([helper.make_node("Mul", ["x", "s"], ["y"])], "g", [numbers], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [256])], [made_of])  # fmt: skip
    graph = lift_onnx(helper.make_model(body, opset_imports=[helper.make_opsetid("", 20)]), {"x": x})
    (output,) = graph.run()
    wanted = x.double() * scale + gap * x.double().flip(0)
    residual, made = Residual([replace(output, value=wanted)], [(0, 0)]), []
    real = LiftedOnnx.run
    monkeypatch.setattr(LiftedOnnx, "run", lambda self, **options: made.append(1) or real(self, **options))
    found = solve_scalars(graph.constants(), [], {}, [output], residual, ConstantTables(graph, [], []))
    assert (len(made) == 1) is (gap > 0.0)
    assert [float(r.value) for r in found] == ([pytest.approx(scale, rel=1e-12)] if gap == 0.0 else [])


class _Layers(nn.Module):
    """Layers with weights and biases that are nothing of another model's."""

    def __init__(self, count: int, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)) for _ in range(count)
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class _Calls(TorchDispatchMode):
    """Counts what torch is called for."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_what_two_checkpoints_were_not_made_of_is_seen_in_as_many_calls_as_they_have_tensors() -> None:
    """Each tensor is held against all products, and all sums of two, of the other's in calls of a fixed number."""
    calls = {}
    for count in (2, 4, 8):
        a, b = (lift_torch(_Layers(count, seed), (torch.randn(2, 8),), {}) for seed in (0, 1))
        left = [c for c in b.constants() if c.origin is Origin.WEIGHT]
        made = MadeAhead({c.name: c.value for c in a.constants() if c.origin is Origin.WEIGHT}, [], lambda *_: [])
        with _Calls() as counter:
            assert [made.match(c, 2.0) for c in left] == [None] * len(left)
        calls[count] = counter.count
    assert calls[8] < 3.0 * calls[4] < 9.0 * calls[2]
