"""Constant subgraphs are judged in their own floor: honest spellings of a table agree, another table does not."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.lift.arrays.record import lift_arrays
from driftscope.lift.onnx.graph import lift_onnx
from driftscope.lift.reconcile import subgraphs
from driftscope.lift.steps import Constant, Origin
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where
from driftscope.records.verdict import Verdict

X = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))


class Rotary(nn.Module):
    """Attention scores with rotary positions: only differences of positions matter."""

    def __init__(self, start: float = 0.0, base: float = 10000.0, spelled: str = "pow"):
        super().__init__()
        self.start, self.base, self.spelled = start, base, spelled

    def angles(self) -> torch.Tensor:
        share = torch.arange(0, 8, 2.0) / 8
        pitch = self.base**-share if self.spelled == "pow" else torch.exp(-share * torch.log(torch.tensor(self.base)))
        return (torch.arange(8.0) + self.start)[:, None] * pitch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.angles()
        c, s = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turn(v: torch.Tensor) -> torch.Tensor:
            return v * c + torch.cat((-v[..., 4:], v[..., :4]), -1) * s

        return turn(x) @ turn(x * 2).transpose(-1, -2)


class Held(Rotary):
    """The same with tables that were computed beforehand and stored."""

    def __init__(self, dtype: torch.dtype = torch.float32, **options: float):
        super().__init__(**options)
        angles = self.angles()
        self.register_buffer("c", angles.cos().repeat(1, 2).to(dtype))
        self.register_buffer("s", angles.sin().repeat(1, 2).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def turn(v: torch.Tensor) -> torch.Tensor:
            return v * self.c + torch.cat((-v[..., 4:], v[..., :4]), -1) * self.s

        return turn(x) @ turn(x * 2).transpose(-1, -2)


@pytest.mark.parametrize(
    "other", [Rotary(3.0), Rotary(spelled="exp"), Held(), Rotary(40.0)], ids=["shifted", "spelled", "stored", "far"]
)
def test_two_spellings_of_one_table_are_one_function_either_way(other):
    for a, b in ((Rotary(), other), (other, Rotary())):
        found = ds.compare(a, b, X, explain=False)
        assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
        assert found.outputs[0].lifted <= found.outputs[0].lifted_threshold


@pytest.mark.parametrize(
    "other", [Rotary(base=10001.0), Held(base=9999.0), Rotary(base=10000.1)], ids=["base", "stored base", "close base"]
)
def test_another_table_is_another_function_either_way(other):
    for a, b in ((Rotary(), other), (other, Rotary())):
        assert ds.compare(a, b, X, explain=False).verdict is Verdict.DIFFERENT


def _found(module: nn.Module) -> subgraphs.Subgraphs:
    return subgraphs.evaluate(lift_torch(module, (X,), {}, module=module), {})


def test_a_stored_table_is_matched_in_the_floor_of_what_computes_it():
    found, table = _found(Rotary()), Held().c
    # An ulp of the table itself: where the angle is 7 the cosine may be off by several of its own.
    moved = torch.nextafter(table, torch.tensor(2.0))
    assert subgraphs.stored_repairs([Constant("c", moved, Origin.WEIGHT, Where())], found, 2.5) != []
    wrong = table.clone()
    wrong[5, 1] += 1e-5
    assert subgraphs.stored_repairs([Constant("c", wrong, Origin.WEIGHT, Where())], found, 2.5) == []


class Written(Rotary):
    """The same with angles that an activation and slices write in place."""

    def angles(self) -> torch.Tensor:
        found, table = super().angles(), torch.zeros(8, 4)
        table[:, ::2], table[:, 1::2] = found[:, ::2], found[:, 1::2]
        torch.relu_(table.view(-1))
        return table


def test_a_table_written_in_place_is_judged_in_its_own_floor_either_way():
    for a, b in ((Rotary(spelled="exp"), Written()), (Written(), Rotary(spelled="exp"))):
        assert ds.compare(a, b, X, explain=False).verdict is Verdict.ROUNDING
    assert ds.compare(Rotary(), Written(base=10000.1), X, explain=False).verdict is Verdict.DIFFERENT


class Queries(nn.Module):
    """Cross attention whose queries are learned: a block, with attention in it, that no input reaches."""

    def __init__(self, factor: float = 1.0, element: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.start, self.to_keys = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 8)
        self.norm, self.linear, self.act = nn.LayerNorm(8, eps=1e-4), nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.factor = factor
        with torch.no_grad():
            self.start[1, 2] += element

    def mixed(self) -> torch.Tensor:
        start = self.start[None, None]
        return self.linear(nn.functional.scaled_dot_product_attention(start, start * 2, start)[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.norm(self.act(self.mixed()) * self.factor + self.start)
        return torch.softmax(table @ self.to_keys(x).transpose(1, 2), -1) @ x


class Folded(Queries):
    """The same with a part of that block computed ahead of time, as exporters do; one element ``wrong``."""

    def __init__(self, wrong: float = 0.0):
        super().__init__()
        with torch.no_grad():
            self.register_buffer("folded", Queries().double().mixed().float())
        self.folded.view(-1)[self.folded.argmax()] *= 1 + wrong

    def mixed(self) -> torch.Tensor:
        return self.folded.clone()


def test_learned_queries_that_were_folded_in_part_are_rounding_either_way():
    for a, b in ((Queries(), Folded()), (Folded(), Queries())):
        found = ds.compare(a.eval(), b.eval(), X)
        assert found.verdict is Verdict.ROUNDING, found.reason


@pytest.mark.parametrize(
    ("whole", "folded"),
    [(Queries(factor=1 + 1e-3), Folded()), (Queries(element=1e-3), Folded()), (Queries(), Folded(wrong=1e-5))],
    ids=["factor", "element", "100 floors"],
)
def test_another_number_in_learned_queries_is_another_function_either_way(whole, folded):
    for a, b in ((whole, folded), (folded, whole)):
        found = ds.compare(a.eval(), b.eval(), X)
        assert found.verdict is Verdict.DIFFERENT, found.reason
        assert found.first is not None
        assert found.first.where.node


def test_a_weight_that_only_a_constant_subgraph_reads_is_named():
    found = ds.compare(Queries().eval(), Queries(element=1e-3).eval(), X)
    assert found.first is not None
    assert found.first.evidence["weight"] == "start"
    assert found.first.verified


def test_a_table_that_a_scale_was_multiplied_into_is_the_table():
    class Scaled(Queries):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(self.mixed()[None], x[None], x[None], scale=0.3)[0]

    class Stored(nn.Module):
        def __init__(self, factor: float = 1.0):
            super().__init__()
            with torch.no_grad():
                self.register_buffer("table", (Queries().double().mixed() * (factor * 0.3**0.5)).float())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.table @ (x * 0.3**0.5).transpose(1, 2), -1) @ x

    module = Scaled().eval()
    for a, b in ((module, Stored()), (Stored(), module)):
        assert ds.compare(a, b, X, explain=False).verdict is Verdict.ROUNDING
    assert ds.compare(module, Stored(1.0001), X, explain=False).verdict is Verdict.DIFFERENT


class Beside(Rotary):
    """The same beside a table that both sides compute alike, with integers that are no table."""

    def __init__(self, **options: str):
        super().__init__(**options)
        self.register_buffer("order", torch.arange(7, -1, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[:, self.order]) + torch.sin(torch.arange(8.0) * 0.3)


def test_what_both_sides_compute_alike_stays_alike_beside_integers():
    found = ds.compare(Beside(), Beside(spelled="exp"), X, explain=False)
    assert found.verdict is Verdict.ROUNDING, found.reason


class Learned(nn.Module):
    """Scores with one learned temperature a row; in bfloat16 two of them are one number."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.tensor([2.2849, 2.2847]).repeat(4)[:, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)) * self.logs.exp()


def test_numbers_that_a_narrow_format_makes_one_are_still_the_tensor():
    narrow = Learned().bfloat16()
    found = ds.compare(Learned(), lambda x: narrow(x.bfloat16()).float(), X, explain=False)
    assert found.outputs[0].lifted is not None, found.reason
    assert found.outputs[0].lifted <= found.outputs[0].lifted_threshold, found.reason


class LookedUp(nn.Module):
    """Rows of a table, moved and not computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[torch.tensor([3, 1, 5, 2, 7, 9, 0, 4])]


def test_a_looked_up_weight_is_the_very_bits_or_another_weight():
    module = LookedUp()
    rows = module.table.detach()[[3, 1, 5, 2, 7, 9, 0, 4]]
    one_off = torch.nextafter(rows, torch.tensor(9.0))
    assert subgraphs.stored_repairs([Constant("rows", one_off, Origin.WEIGHT, Where())], _found(module), 2.5) == []


class HalfPitch(Rotary):
    """As `.half()` leaves it: the pitch is stored in float16 and computed with in float32."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("pitch", (10000.0 ** -(torch.arange(0, 8, 2.0) / 8)).to(dtype))

    def angles(self) -> torch.Tensor:
        return torch.arange(8.0)[:, None] * self.pitch.float()


def test_a_rounded_weight_that_only_a_table_reads_reaches_the_table():
    for a, b in ((HalfPitch(), HalfPitch(torch.float16)), (HalfPitch(torch.float16), HalfPitch())):
        found = ds.compare(a, b, X, explain=False)
        assert found.verdict in (Verdict.PRECISION, Verdict.ROUNDING), found.reason


class Positions(nn.Module):
    """A grouped convolution whose weight has a given length along one axis, as speech models have them."""

    def __init__(self, axis: int, spelled: bool = False, gain: float = 1.0, seed: int = 4):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.axis, self.spelled = axis, spelled
        self.v = nn.Parameter(torch.randn(48, 24, 16, generator=generator))
        kept = [1, 1, 1]
        kept[axis] = self.v.shape[axis]
        self.g = nn.Parameter(5.0 * gain * (1.0 + torch.rand(kept, generator=generator)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.spelled:
            rest = [k for k in range(3) if k != self.axis]
            weight = self.v * (self.g / self.v.square().sum(rest, keepdim=True).sqrt())
        else:
            weight = torch._weight_norm(self.v, self.g, self.axis)
        return torch.tanh(nn.functional.conv1d(x, weight, groups=2))


SOUND = torch.randn(2, 48, 40, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("seed", range(4, 9))
@pytest.mark.parametrize("axis", [0, 2])
def test_a_weight_norm_computed_on_both_sides_is_rounding(axis, seed):
    # A length is one number, and its error is in every weight of its channel: the largest of 48 lies far out.
    one, two = Positions(axis, seed=seed), Positions(axis, spelled=True, seed=seed)
    for a, b in ((one, two), (two, one)):
        found = ds.compare(a, b, SOUND, explain=False)
        assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason


@pytest.mark.parametrize("axis", [0, 2])
def test_a_weight_norm_of_another_gain_is_not(axis):
    one, two = Positions(axis), Positions(axis, spelled=True, gain=1 + 2e-5)
    for a, b in ((one, two), (two, one)):
        assert ds.compare(a, b, SOUND, explain=False).verdict is Verdict.DIFFERENT


def test_the_noise_of_a_weight_norm_has_the_size_of_its_error():
    for axis in (0, 1, 2):
        graph = lift_torch(Positions(axis), (SOUND,), {}, module=Positions(axis))
        known = subgraphs.evaluate(graph, {})
        constant = next(c for c in graph.constants() if c.frontier and c.name in known.exact)
        error = constant.value.double() - known.exact[constant.name]
        floor = sum(n.square().mean() for n in known.noise_of(constant.name)).sqrt()
        assert 0.3 < float(error.square().mean().sqrt() / floor) < 2.0


def cosines_of_places(source: str) -> onnx.ModelProto:
    """Cosines of the places along axis 1 of x, counted up to its size or up to the value of ``n``."""
    number = numpy_helper.from_array
    if source == "size":
        counted = [helper.make_node("Shape", ["x"], ["sizes"]), helper.make_node("Gather", ["sizes", "one"], ["limit"])]
        inputs = []
    else:
        counted = [helper.make_node("Identity", ["n"], ["limit"])]
        inputs = [helper.make_tensor_value_info("n", TensorProto.INT64, [])]
    graph = helper.make_graph(
        [*counted, helper.make_node("Range", ["zero", "limit", "one"], ["places"]),
         helper.make_node("Cast", ["places"], ["real"], to=TensorProto.FLOAT),
         helper.make_node("Mul", ["real", "pitch"], ["angles"]), helper.make_node("Cos", ["angles"], ["cosines"]),
         helper.make_node("Mul", ["x", "cosines"], ["y"])],
        "places", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n"]), *inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "n"])],
        [number(np.int64(0), "zero"), number(np.int64(1), "one"), number(np.float32(0.3), "pitch")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("source", ["size", "value"])
def test_a_table_counted_up_to_a_size_is_constant_and_up_to_a_value_is_not(source: str) -> None:
    feeds = {"x": torch.ones(2, 5)} | ({} if source == "size" else {"n": torch.tensor(5)})
    values = lift_onnx(cosines_of_places(source), feeds).constant_values()
    if source == "value":
        assert "cosines" not in values
    else:
        pitch = torch.tensor(0.3).double()
        torch.testing.assert_close(values["cosines"], (torch.arange(5) * pitch).cos(), rtol=0, atol=0)


def _pitch() -> torch.Tensor:
    return torch.arange(8.0)[:, None] * 10000.0 ** -(torch.arange(0, 8, 2.0) / 8)


def _positions_written(first: int = 0) -> torch.Tensor:
    table = torch.zeros(8, 8)
    table[:, first::2] = torch.sin(_pitch())
    table[:, 1 - first :: 2] = torch.cos(_pitch())
    return table


def _positions_stacked() -> torch.Tensor:
    angles = torch.arange(8.0)[:, None] / 10000.0 ** (torch.arange(0, 8, 2.0) / 8)
    return torch.stack([torch.sin(angles), torch.cos(angles)], -1).flatten(-2)


def _turned(x: torch.Tensor, sign: float = 1.0) -> torch.Tensor:
    turn = torch.polar(torch.ones(8, 4), sign * _pitch())
    return torch.view_as_real(torch.view_as_complex(x.reshape(2, 8, 4, 2)) * turn).flatten(-2)


def _turned_in_parts(x: torch.Tensor) -> torch.Tensor:
    c, s, even, odd = _pitch().cos(), _pitch().sin(), x[..., ::2], x[..., 1::2]
    return torch.stack([even * c - odd * s, even * s + odd * c], -1).flatten(-2)


FILTER = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))


def _filtered(x: torch.Tensor) -> torch.Tensor:
    around = torch.nn.functional.pad(x[:, None], (1, 1, 1, 1), mode="circular")
    return torch.nn.functional.conv2d(around, FILTER[None, None])[:, 0]


def _filtered_by_transform(x: torch.Tensor, conjugate: bool = True) -> torch.Tensor:
    kernel = torch.zeros(8, 8)
    kernel[:3, :3] = FILTER
    kernel = torch.fft.rfft2(torch.roll(kernel, (-1, -1), (0, 1)))
    return torch.fft.irfft2(torch.fft.rfft2(x) * (kernel.conj() if conjugate else kernel), s=(8, 8))


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(8, 8)
    for i in range(8):
        table[i, :] = torch.sin(torch.arange(8) * (i / 20))
    return torch.tanh(x + table) @ x


def _at_once(x: torch.Tensor, bug: int = 0) -> torch.Tensor:
    """The bits of the table by rows, transposed."""
    numbers = torch.arange(8)
    return torch.tanh(x + torch.sin(numbers[None] / 20 * (numbers[:, None] + 1e-4 * bug))) @ x


def _windows(dtype: torch.dtype, bug: int = 0) -> torch.Tensor:
    rows = [torch.hamming_window(8, dtype=dtype), torch.blackman_window(8, dtype=dtype)]
    steps = [torch.fft.fftfreq(8, d=0.3, dtype=dtype), torch.fft.rfftfreq(14, d=0.3, dtype=dtype)]
    powers = torch.vander(torch.linspace(0, 1 + 1e-4 * bug, 8, dtype=dtype), 4)  # written into what was not set
    return torch.cat([torch.stack(rows + steps), powers.T]).float()


SPELLINGS = {
    "windows": (lambda x: x @ _windows(torch.float64), lambda x, bug=0: x @ _windows(torch.float32, bug)),
    "written into slices": (lambda x: x @ _positions_stacked(), lambda x, bug=0: x @ _positions_written(bug)),
    "complex rotations": (_turned_in_parts, lambda x, bug=0: _turned(x, -1.0 if bug else 1.0)),
    "a table of the other's bits, transposed": (_by_rows, _at_once),
    "a transformed filter": (_filtered, lambda x, bug=0: _filtered_by_transform(x, not bug)),
}


@pytest.mark.parametrize("order", ["forward", "backward"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_table_written_in_place_or_complex_is_evaluated_like_any_other(name, order):
    plain, other = SPELLINGS[name]
    pair = (plain, other) if order == "forward" else (other, plain)
    found = ds.compare(*pair, (X,), explain=False)
    assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
    assert found.outputs[0].lifted <= found.outputs[0].lifted_threshold
    off = ds.compare(plain, lambda x: other(x, 1), (X,), explain=False)
    assert off.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("gain", [1.0, 1.0001])
def test_a_computed_weight_with_the_bits_of_what_it_is_computed_from_is_still_computed(gain):
    """At its start a weight norm gives the very weight in float32, and another number in float64."""
    v = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
    g = torch.linalg.vector_norm(v, dim=1, keepdim=True)

    def fused(x: torch.Tensor) -> torch.Tensor:
        return x @ torch._weight_norm(v, g, 0).T

    def spelled(x: torch.Tensor) -> torch.Tensor:
        return x @ (v * (gain * g / torch.linalg.vector_norm(v, dim=1, keepdim=True))).T

    verdicts = {ds.compare(*pair, (X,), explain=False).verdict for pair in ((fused, spelled), (spelled, fused))}
    assert verdicts <= ({Verdict.IDENTICAL, Verdict.ROUNDING} if gain == 1.0 else {Verdict.DIFFERENT})


def test_a_mask_is_not_taken_for_the_tensor_that_it_was_cut_from():
    class Masked(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x + torch.full((6, 6), float("-inf")).triu(1), -1)

    x = (torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0)),)
    program = torch.onnx.export(Masked(), x, dynamo=True, verbose=False)
    for pair in ((Masked(), program.model_proto), (program.model_proto, Masked())):
        found = ds.compare(*pair, x)
        assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason


class Jacobian(nn.Module):
    """A scale whose logarithmic determinant is one number, which exporters compute ahead of time."""

    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.logs = nn.Parameter(0.3 * torch.randn(8, generator=torch.Generator().manual_seed(4)))
        self.factor = factor

    def forward(self, x):
        return x * torch.exp(self.logs), (x.sum(-1) + self.logs.sum() * self.factor)


def test_one_number_that_is_computed_ahead_of_time_is_rounding_and_another_is_not():
    program = torch.onnx.export(Jacobian(), (X,), dynamo=True, verbose=False).model_proto
    for pair in ((Jacobian(), program), (program, Jacobian())):
        found = ds.compare(*pair, (X,))
        assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
    for pair in ((Jacobian(1 + 1e-5), program), (program, Jacobian(1 + 1e-5))):
        assert ds.compare(*pair, (X,)).verdict is Verdict.DIFFERENT


def _turned_waves(pitch: float = math.pi / 24):
    """A cosine transform whose pitch is stored in the format of the inputs: nobody writes that number elsewhere."""

    def waves(x: torch.Tensor) -> torch.Tensor:
        k = torch.arange(24, dtype=x.dtype)
        return x @ torch.cos(torch.tensor(pitch, dtype=x.dtype) * ((k[:, None] + 0.5) * k))

    return waves


def _waves_by_fourier(x: torch.Tensor) -> torch.Tensor:
    k = torch.arange(24, dtype=x.dtype)
    seen = torch.fft.rfft(torch.cat((x, x.flip(-1)), -1))[..., :24]
    return 0.5 * (seen * torch.polar(torch.ones_like(k), -math.pi * k / 48)).real


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("pitch", "same"), [(math.pi / 24, True), (math.pi / 24 * (1 + 1e-6), False)])
def test_a_number_that_only_a_table_is_made_of_is_solved_for(turned, pitch, same):
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(1))
    pair = (_turned_waves(pitch), _waves_by_fourier)
    found = ds.compare(*(pair[::-1] if turned else pair), [x])
    assert (found.verdict is not ds.Verdict.DIFFERENT) is same, found.reason


def test_a_table_that_numpy_counts_out_is_computed_in_float64():
    def counted(x):
        k = np.arange(24, dtype=x.dtype)
        return x @ np.cos(np.asarray(0.25, x.dtype) * k[:, None] * (k + np.eye(24, dtype=x.dtype)))

    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(1))
    tape = lift_arrays(counted, (x,), {})
    wanted = counted(x.double().numpy())
    tables = {c.name for c in tape.constants() if c.frontier}
    (found,) = tape.run(replace={name: value for name, value in tape.constant_values().items() if name in tables})
    assert abs(found.value.numpy() - wanted).max() < 1e-12


@pytest.mark.parametrize("table", [np.unwrap, lambda k: np.polyfit(k, k**2, 1)[0] + k], ids=["unwrap", "polyfit"])
def test_a_table_that_only_numpy_can_make_is_what_numpy_gives(table):
    def weighed(x):
        return x * table(np.arange(24, dtype=x.dtype)).astype(x.dtype)

    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(1))
    (found,) = lift_arrays(weighed, (x,), {}).run()
    assert abs(found.value.numpy() - weighed(x.numpy())).max() < 1e-4


@pytest.mark.parametrize(("factor", "found"), [(1.0, True), (0.37, True), (-0.37, False), (0.372, False)])
def test_of_a_thousand_numbers_those_that_could_be_the_factor_are_looked_up(factor, found, monkeypatch):
    draw = torch.Generator().manual_seed(3)
    tables = {f"t{k}": torch.randn(24, 8, generator=draw, dtype=torch.float64) for k in range(10)}
    factors = [0.37, *(1e-4 * 1.01**k for k in range(1000))]
    factors = [f for f in factors if f == 0.37 or abs(f / abs(factor) - 1.0) > 4e-3]
    read, real = [], subgraphs._Tables._readings
    monkeypatch.setattr(subgraphs._Tables, "_readings", lambda self, *a: read.append(a) or real(self, *a))
    stored = Constant("c", (factor * tables["t6"]).to(torch.float32), Origin.WEIGHT, Where())
    repairs = subgraphs.stored_repairs([stored], subgraphs.Subgraphs(tables, tables), 4.0, factors)
    assert [r.sources for r in repairs] == ([("t6",)] if found else [])
    if found:
        assert torch.equal(repairs[0].value, factor * tables["t6"])
    assert len(read) <= 5 * len(tables)  # not once for each number


@pytest.mark.parametrize("where", [0, 1])
def test_a_number_beside_none_is_no_rounding(where: int) -> None:
    pair = [torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)]
    noises = [torch.full((4,), 1e-3, dtype=torch.float64)]
    assert subgraphs._is_rounding(*pair, noises, 2.0)
    pair[where][2] = math.nan
    assert not subgraphs._is_rounding(*pair, noises, 2.0)


class _Gated(nn.Module):
    """An activation with a learnt slope, as xIELU has one: exporters compute softplus of it, and write 1 by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.28789]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = nn.functional.softplus(self.slope)
        return torch.where(x > 0, k * x * x + 0.5 * x, (torch.expm1(x) - x) * k + 0.5 * x)


def _exported(slope: float) -> onnx.ModelProto:
    """The same with softplus of the slope, and the 1 of ``exp(x) - 1``, stored as numbers."""
    k, half = np.log1p(np.exp(np.float64(slope))), np.float32([0.5])
    numbers = {"k": np.float32([k]), "one": np.float32([1.0]), "half": half, "zero": np.float32([0.0])}
    calls = [
        ("Mul", "k x", "kx"), ("Mul", "kx x", "kxx"), ("Mul", "half x", "hx"), ("Add", "kxx hx", "above"),
        ("Exp", "x", "e"), ("Sub", "e one", "e1"), ("Sub", "e1 x", "e1x"), ("Mul", "e1x k", "ke"),
        ("Add", "ke hx", "below"), ("Greater", "x zero", "is_above"), ("Where", "is_above above below", "y"),
    ]  # fmt: skip
    nodes = [helper.make_node(op, given.split(), [made], name=made) for op, given, made in calls]
    stored = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8, 8])] for name in ("x", "y"))
    graph = helper.make_graph(nodes, "gated", *ends, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_a_stored_one_is_no_table_times_a_number(ulps: int, order: int) -> None:
    model, slope = _exported(0.28789), _Gated()
    (k,) = (i for i in model.graph.initializer if i.name == "k")
    with torch.no_grad():
        natively = np.float32(nn.functional.softplus(slope.slope).numpy())
    k.CopyFrom(numpy_helper.from_array(np.nextafter(natively, np.float32(ulps * np.inf if ulps else natively)), "k"))
    assert ds.compare(*[slope, model][::order], X).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


def test_another_one_is_another_function() -> None:
    model = _exported(0.28789)
    (one,) = (i for i in model.graph.initializer if i.name == "one")
    one.CopyFrom(numpy_helper.from_array(np.float32([1.0 - 2.0**-24]), "one"))
    assert ds.compare(_Gated(), model, X).verdict is Verdict.DIFFERENT


class Halved(nn.Module):
    """A layer with a weight of its own, multiplied in float16."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.half() @ self.weight.T).float()


@pytest.mark.parametrize(("change", "verdict"), [(1.0, Verdict.PRECISION), (1.01, Verdict.DIFFERENT)])
def test_a_weight_norm_that_was_just_put_on_stored_in_half_precision_is_its_result(change, verdict):
    """In float16 the tensor it is made of has the same bits."""
    torch.manual_seed(1)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(33, 7, bias=False)).eval()
    stored = layer.weight.detach().clone()
    stored[2, 3] *= change
    x = torch.randn(4, 33)
    for a, b in ((layer, Halved(stored)), (Halved(stored), layer)):
        found = ds.compare(a, b, x)
        assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(
    ("epsilon", "verdict"), [(1e-7, Verdict.ROUNDING), (1.2e-7, Verdict.ROUNDING), (3e-7, Verdict.DIFFERENT)]
)
def test_what_renorm_adds_to_a_length_is_known(epsilon, verdict):
    """A file converted to float16 stores it as 1.19e-7."""
    added = torch.tensor(epsilon, dtype=torch.float16 if epsilon == 1.2e-7 else torch.float32)

    def spelled(x: torch.Tensor) -> torch.Tensor:
        length = x.square().sum(1, keepdim=True).sqrt()
        return x * torch.where(length > 1, 1 / (length + added.float()), 1.0)

    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    for a, b in ((lambda x: torch.renorm(x, 2, 0, 1.0), spelled), (spelled, lambda x: torch.renorm(x, 2, 0, 1.0))):
        assert ds.compare(a, b, x).verdict is verdict
