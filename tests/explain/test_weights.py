"""Stored tensors matched by their bits in any layout; what was done to one that is not the reference's."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import driftscope as ds
from driftscope.explain.causes.alterations import alteration_of, shortest, told_apart
from driftscope.explain.causes.weights import _changed, match_weights
from driftscope.explain.reasons import repair_notes
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.steps import Constant, Origin
from driftscope.records.finding import Where

W = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
SQUARE = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def held(name: str, value: torch.Tensor, module: str | None = None, origin: Origin = Origin.WEIGHT) -> Constant:
    return Constant(name, value, origin, Where(node=f"node_{name}", module=module))


def _edited(edit) -> torch.Tensor:
    value = W.clone()
    edit(value)
    return value


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (_edited(lambda w: w[2, 3].add_(0.5)), "W004", "+0.5 added in element [2, 3]"),
        (_edited(lambda w: w[4].mul_(1.01)), "W008", "multiplied by 1.01 in index 4 of axis 0"),
        (_edited(lambda w: w[:, 5].zero_()), "W009", "set to zero in index 5 of axis 1"),
        (W * 2, "W008", "multiplied by 2"),
        (W * 0, "W009", "set to zero"),
        (W * (torch.arange(48).view(6, 8) % 3 > 0), "W009", "set to zero in 16 of 48 elements"),
        (W + (torch.arange(48).view(6, 8) % 3 > 0), "W004", "+1 added in 32 of 48 elements"),
        (-W, "W008", "multiplied by -1"),
        (W.bfloat16().float(), "W007", "rounded to bfloat16"),
        (W.half().float(), "W007", "rounded to float16"),
        (W.to(torch.float8_e4m3fn).float(), "W007", "rounded to float8_e4m3fn"),
        (torch.round(W / (W.abs().max() / 127)) * (W.abs().max() / 127), "W007", "int8 grid (one scale)"),
        (W.roll(1, 0), "W006", "rolled by 1 along axis 0"),
        (W.roll(-2, 1), "W006", "rolled by -2 along axis 1"),
        (W.flip(1), "W006", "reversed along axis 1"),
        (W[[1, 0, 2, 3, 4, 5]], "W006", "slices 0 and 1 exchanged along axis 0"),
        (W[[1, 3, 0, 2, 5, 4]], "W006", "permuted (6 of 6 slices moved) along axis 0"),
        (W * torch.linspace(0.9, 1.1, 8), "W008", "multiplied by 0.9 to 1.1 along axis 1"),
    ],
)
def test_what_was_done_is_said(value, code, words):
    found = alteration_of(value.double(), W.double(), torch.float32)
    assert found.code == code
    assert words in found.words
    assert (" of 48 elements" in found.words) == (" of 48 elements" in words)


@pytest.mark.parametrize(("scale", "words"), [(1.0, "rounded to float16 or TF32"), (1e-5, "rounded to float16")])
def test_only_numbers_out_of_its_range_tell_float16_from_tf32(scale, words):
    weight = W * scale
    assert alteration_of(weight.half().double(), weight.double(), torch.float32).words == words


@pytest.mark.parametrize(("between", "code"), [(2.4999998, "W007"), (2.4, "W004")])
def test_a_number_between_two_steps_of_a_grid_may_go_to_either(between, code):
    weight = W * 20.0
    weight[0, 0], weight[1, 2] = 127.0, between
    rounded = weight.round()
    rounded[1, 2] = 3.0
    assert alteration_of(rounded.double(), weight.double(), torch.float32).code == code


def test_a_transposed_square_is_transposed():
    assert alteration_of(SQUARE.T.double(), SQUARE.double(), torch.float32).code == "W005"


@given(st.permutations(range(6)))
def test_every_permutation_of_rows_is_an_order_and_no_change(order):
    found = alteration_of(W[list(order)].double(), W.double(), torch.float32)
    expected = "W006" if list(order) != list(range(6)) else found.code
    assert found.code == expected


def test_elements_in_another_order_are_no_change_and_one_changed_element_is_no_order(monkeypatch):
    weight = torch.randn(64, 48, generator=torch.Generator().manual_seed(3)).double()
    moved = weight.reshape(-1)[torch.randperm(weight.numel())].reshape(weight.shape)
    assert alteration_of(moved, weight, torch.float32).code == "W006"
    changed = weight.clone()
    changed[3, 5] *= 0.5
    monkeypatch.setattr(torch.Tensor, "sort", None)  # to see this nothing has to be put in order
    assert alteration_of(changed, weight, torch.float32).code == "W004"


@pytest.mark.parametrize("layout", [lambda w: w, lambda w: w.T, lambda w: w.reshape(4, 12), lambda w: w.T[None]])
def test_layouts_that_exporters_write_are_no_change(layout):
    found = match_weights([held("a.weight", W)], [held("val_1", layout(W).contiguous())], ())
    assert found.changed == []
    assert found.same == {"val_1": ["a.weight"]}


def test_a_rounding_to_the_own_format_that_is_settled_is_no_change():
    assert match_weights([held("w", W)], [held("w", W.half())], ("w",)).changed == []


def test_a_changed_weight_is_matched_by_name_whatever_its_layout():
    broken = _edited(lambda w: w[2, 3].add_(0.5))
    (change,) = match_weights([held("a", W), held("b", W * 3)], [held("a", broken.T.contiguous())], ()).changed
    assert change.partner.name == "a"
    assert torch.equal(change.value, W.T.double())
    assert change.alteration.code == "W004"


def test_a_nameless_weight_is_matched_by_its_module():
    ours = [held("x.fc.weight", W), held("y.fc.weight", W + 1)]
    (change,) = match_weights(ours, [held("val_7", W * 1.5, module="y.fc")], ()).changed
    assert change.partner.name == "y.fc.weight"


def test_elements_of_another_tensor_under_a_name_are_exchanged_weights():
    other = W.flip(0) * 2
    ours = [held("q.weight", W), held("k.weight", other)]
    changed = match_weights(ours, [held("q.weight", other), held("k.weight", W)], ()).changed
    assert [(c.constant.name, c.alteration.code) for c in changed] == [("q.weight", "W010"), ("k.weight", "W010")]
    assert torch.equal(changed[0].value, W.double())
    assert match_weights(ours, [held("q.weight", W), held("k.weight", other)], ()).changed == []


def test_a_tied_weight_is_no_exchange():
    ours = [held("embedding.weight", W)]
    assert match_weights(ours, [held("embedding.weight", W), held("val_3", W.T, module="head")], ()).changed == []


def test_tensors_that_have_only_their_size_in_common_are_not_paired():
    stranger = torch.randn(6, 8, generator=torch.Generator().manual_seed(9))
    assert match_weights([held("a", W)], [held("val_1", stranger)], ()).changed == []


class _Narrow(torch.nn.Module):
    """A convolution and a layer whose eight biases are fewer than the blocks that joined weights are cut into."""

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)
        if dtype is not None:
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.copy_(parameter.to(dtype).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(x).mean((2, 3)))


@pytest.mark.parametrize(("smallest", "words"), [(3e-7, "float16"), (0.1, "float16 or TF32")])
def test_tensors_that_may_be_of_two_formats_are_told_as_the_one_that_others_show(smallest, words):
    plain, narrow = _Narrow(), _Narrow()
    with torch.no_grad():
        plain.out.weight[0, 0] = narrow.out.weight[0, 0] = smallest
        for parameter in narrow.parameters():
            parameter.copy_(parameter.half().float())
    found = ds.compare(plain, narrow, (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),))
    assert f"weights rounded to {words}: 4 of its weights are" in found.reason


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16])
@pytest.mark.sampled(2)
def test_weights_rounded_in_place_are_precision_either_way_and_one_that_is_not_is_different(dtype):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for pair, side in (((_Narrow(), _Narrow(dtype)), "B"), ((_Narrow(dtype), _Narrow()), "A")):
        found = ds.compare(*pair, (x,))
        assert (found.verdict, found.first.code) == (ds.Verdict.PRECISION, "W007"), found.reason
        assert found.first.what.startswith(f"{side} is ")
        assert f"rounded to {str(dtype).removeprefix('torch.')}" in found.first.what
        rows = found.first.evidence["replay"]["layers"]
        assert {row["weight"] for row in rows} == {"conv.weight", "conv.bias", "out.weight", "out.bias"}
    wrong = _Narrow(dtype)
    with torch.no_grad():
        wrong.out.weight[2, 3] += 0.25
    for pair in ((_Narrow(), wrong), (wrong, _Narrow())):
        assert ds.compare(*pair, (x,)).verdict is ds.Verdict.DIFFERENT


class _Stored(torch.nn.Module):
    """A layer that keeps its weight in float8 and multiplies in float32."""

    def __init__(self, layer: torch.nn.Linear, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("kept", layer.weight.detach().to(dtype))
        self.register_buffer("bias", layer.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.kept.float(), self.bias)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_stored_in_float8_are_precision_either_way_and_one_that_is_not_is_different(dtype):
    torch.manual_seed(0)
    one, other = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
    plain, small = (torch.nn.Sequential(a, torch.nn.ReLU(), b)
                    for a, b in ((one, other), (_Stored(one, dtype), _Stored(other, dtype))))  # fmt: skip
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    for pair, side in (((plain, small), "B"), ((small, plain), "A")):
        found = ds.compare(*pair, (x,))
        assert found.verdict is ds.Verdict.PRECISION, found.reason
        assert str(dtype).removeprefix("torch.") in found.reason
        assert f"in {side}" in found.reason
    small[2].kept.view(torch.uint8)[2, 3] += 8
    for pair in ((plain, small), (small, plain)):
        assert ds.compare(*pair, (x,)).verdict is ds.Verdict.DIFFERENT


class Classifier(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.norm(torch.relu(self.first(x))))


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.sampled(1)
def test_another_seed_is_said_once_and_not_as_a_place(tmp_path, dynamo):
    x, path = torch.randn(8, 16), tmp_path / "m.onnx"
    torch.onnx.export(Classifier(0).eval(), (x,), path, dynamo=dynamo, verbose=False)
    told = ds.compare(Classifier(1).eval(), path, (x,))
    first = told.findings[0]
    assert (first.code, first.verified, first.where.module) == ("W004", True, "first")
    assert "4 of 6 stored tensors have nothing in common with A's, first.weight first" in first.what
    assert "load one checkpoint into both" in first.fix
    assert sum(f.code[0] in "NW" and not f.note for f in told.findings) == 1
    assert ds.compare(Classifier(0).eval(), path, (x,)).verdict in ("IDENTICAL", "ROUNDING")


class _Filters(torch.nn.Module):
    """Filters with batch norms: of unrelated numbers, positive ones are nearer to each other, and folds to filters."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.filters = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(4) for _ in range(3))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        for convolve, norm in zip(self.filters, self.norms, strict=True):
            x = torch.relu(norm(convolve(x)))
        return x


def test_another_checkpoint_of_positive_numbers_is_told_as_one():
    found = ds.compare(_Filters(0).eval(), _Filters(1).eval(), (torch.randn(2, 4, 9, 9),)).findings
    assert {f.code for f in found if not f.note} == {"W004"}
    assert found[0].what.startswith("B holds other weights: ")


def _layers(*, exchanged: str = "") -> torch.nn.Sequential:
    torch.manual_seed(3)
    layer = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)]
    model = torch.nn.Sequential(torch.nn.Sequential(*layer), torch.nn.Sequential(*copy.deepcopy(layer)))
    for value in model.parameters():
        value.data.normal_()
    if exchanged == "all":
        model[0], model[1] = model[1], model[0]
    elif exchanged:
        for name in exchanged.split():
            one, other = (part.get_parameter(name).data for part in model)
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)
    return model.eval()


@pytest.mark.parametrize(
    ("exchanged", "words", "fix"),
    [
        ("all", "8 tensors of 0 and 1 hold each other's numbers: ",
         "Exchange the tensors of 0 and 1: 0.weight, 0.bias, 2.weight, 2.bias."),
        ("0.weight 2.weight", "4 tensors of 0 and 1 hold each other's numbers: ",
         "Exchange the tensors of 0 and 1: 0.weight, 2.weight."),
        ("2.bias", "0.2.bias and 1.2.bias hold each other's numbers: ", "Exchange 0.2.bias, 1.2.bias."),
    ],
)  # fmt: skip
def test_exchanged_layers_are_told_by_their_modules(exchanged, words, fix):
    """Twelve layers in another order would be a list of two hundred names."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    first = ds.compare(_layers(), _layers(exchanged=exchanged), (x,), isolate=False).first
    assert first.what.startswith(words)
    assert first.fix == fix
    assert first.verified is True
    assert len(first.what) < 160


def test_one_layer_of_its_own_is_still_named_alone(tmp_path):
    x, path, other = torch.randn(8, 16), tmp_path / "m.onnx", Classifier(0).eval()
    torch.onnx.export(Classifier(0).eval(), (x,), path, verbose=False)
    other.last.weight.data = Classifier(1).last.weight.data
    told = ds.compare(other, path, (x,))
    assert told.findings[0].code == "W004"
    assert "last.weight is not the reference's last.weight" in told.findings[0].what


class Folded(torch.nn.Module):
    """Convolutions that exporters fold batch norms into; one is strided where its neighbour is not."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8))
        self.two = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8))
        self.beside = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(8))

    def forward(self, x):
        x = torch.relu(self.one(x))
        return torch.relu(self.two(x)).mean((2, 3)) + self.beside(x).mean((2, 3))


def folded(edit=lambda net: None) -> Folded:
    torch.manual_seed(0)
    net = Folded().eval()
    with torch.no_grad():
        for m in net.modules():
            if isinstance(m, torch.nn.BatchNorm2d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 1.5)
        edit(net)
    return net


@pytest.fixture(scope="module")
def file_of_folds(tmp_path_factory):
    path = tmp_path_factory.mktemp("folds") / "m.onnx"
    torch.onnx.export(folded(), (torch.randn(2, 3, 8, 8),), path, verbose=False)
    return path


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (lambda net: net.two[0].weight[3].mul_(1.01), "W008", "multiplied by 0.990099 in index 3 of axis 0"),
        (lambda net: net.two[1].running_mean[5].add_(0.25), "W011", "added in element [5]"),
        (
            lambda net: setattr(net.two[1], "eps", 1e-3),
            "W011",
            "native_batch_norm_1.eps than the reference's: it is 1e-05",
        ),
    ],
    ids=["weight", "statistics", "epsilon"],
)
@pytest.mark.sampled(1)
def test_a_fold_of_other_numbers_is_named_and_the_right_one_tried(file_of_folds, edit, code, words):
    x = torch.randn(2, 3, 8, 8)
    assert ds.compare(folded(), file_of_folds, (x,)).verdict in ("IDENTICAL", "ROUNDING")
    for told in ds.compare(folded(edit), file_of_folds, (x,)), ds.compare(file_of_folds, folded(edit), (x,)):
        assert told.verdict == "DIFFERENT"
    first = ds.compare(folded(edit), file_of_folds, (x,)).first
    assert (first.code, first.verified, first.where.module) == (code, True, "two.1")
    assert "native_batch_norm_1" in first.what
    assert words in first.what


def test_another_layer_with_other_settings_is_no_cause(file_of_folds):
    def edit(net):
        around = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False, padding_mode="circular")
        around.weight = net.two[0].weight
        net.two[0] = around

    told = ds.compare(folded(edit), file_of_folds, (torch.randn(2, 3, 8, 8),))
    assert told.verdict == "DIFFERENT"
    assert told.first.where.module == "two.1"
    assert not [f for f in told.findings if "strides" in f"{f.what} {f.why} {f.fix}"]


@pytest.mark.parametrize(
    ("partner", "words"),
    [("1e-05 (norm.eps)", "norm.eps is A's 1e-05 (norm.eps)"), ("0.01", "norm.eps is the number 0.01"),
     ("1/6", "norm.eps is the number 1/6")],
)  # fmt: skip
def test_a_number_that_no_side_wrote_is_not_called_the_other_sides(partner: str, words: str) -> None:
    constant = held("norm.eps", torch.tensor(0.01), origin=Origin.ATTRIBUTE)
    meant = torch.tensor(0.01, dtype=torch.float64)
    (note,) = repair_notes([Repair("norm.eps", meant, "scalar", partner, constant)], "B")
    assert note.what == f"B stores 1 constant rounded: {words}"


def test_a_fold_that_is_off_by_its_rounding_alone_is_not_said_to_hold_the_same_numbers():
    stored = torch.linspace(-1.0, 2.0, 24).reshape(4, 6) + 0.01
    meant = stored.to(torch.float64) * (1.0 + 1e-7)
    found = _changed(held("w", stored), held("fold", meant, origin=Origin.COMPUTED), meant)
    assert found.alteration.words == "multiplied by 1-1e-07"


@pytest.mark.parametrize(("number", "said"), [
    (float(torch.tensor(0.01)), "0.01"), (1e-6, "1e-06"), (1.0, "1"), (float(torch.tensor(1.702)), "1.702"),
    (1.0 / 3.0, "0.333333333"), (2.0**-11, "0.00048828125"),
])  # fmt: skip
def test_a_number_is_written_with_the_digits_that_name_it(number: float, said: str) -> None:
    assert shortest(number) == said


class Prefixed(torch.nn.Module):
    """A class token that is repeated over the batch, and that an exporter may store repeated."""

    def __init__(self, repeated: bool = False, moved: float = 0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        token = torch.randn(1, 1, 8, generator=generator)
        token[0, 0, 3] *= 1.0 + moved
        self.token = torch.nn.Parameter(token.expand(2, 1, 8).clone() if repeated else token)
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.token.expand(2, 1, 8), x), 1) @ self.weight


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("moved", [0.0, 1e-3])
def test_a_token_that_is_stored_repeated_is_that_token_and_a_changed_one_is_named(moved, turned):
    pair = (Prefixed(), Prefixed(repeated=True, moved=moved))
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(5))
    found = ds.compare(*(pair[::-1] if turned else pair), [x])
    assert (found.verdict is ds.Verdict.DIFFERENT) is bool(moved), found.reason
    if moved:
        assert found.first.code in ("W004", "W008"), found.first
        assert "token is not the reference's token" in found.first.what


class Numbers(torch.nn.Module):
    """A program with two numbers written in it."""

    def __init__(self, slope: float, offset: float):
        super().__init__()
        self.slope, self.offset = slope, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * self.slope + self.offset


def single(number: float) -> float:
    """A number by way of float32, as torch.onnx writes those of a float64 program."""
    return float(torch.tensor(number))


def test_numbers_of_a_float64_program_that_went_through_float32_are_precision_and_named():
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = Numbers(0.7, 0.3)
    for pair, side in (((plain, Numbers(single(0.7), single(0.3))), "B"), ((Numbers(single(0.7), 0.3), plain), "A")):
        found = ds.compare(*pair, x)
        assert (str(found.verdict), found.first.code) == ("PRECISION", "W007"), found.reason
        assert found.first.what.startswith(f"{side} is ")
        assert "constants rounded to float32" in found.first.what
        assert "mul.other" in found.first.what


def test_a_number_beside_that_rounding_is_another_function_and_both_are_told_apart():
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = Numbers(single(0.7) + 1e-12, 0.3)
    for pair in ((Numbers(0.7, 0.3), other), (other, Numbers(0.7, 0.3))):
        found = ds.compare(*pair, x)
        assert str(found.verdict) == "DIFFERENT"
        assert "0.699999988" in str(found)


def test_a_number_that_float32_takes_for_zero_is_not_rounded():
    x = torch.ones(3, dtype=torch.float64)
    small = Numbers(1e-60, 0.0)
    for pair in ((small, Numbers(0.0, 0.0)), (Numbers(0.0, 0.0), small)):
        assert str(ds.compare(*pair, x).verdict) == "DIFFERENT"


@pytest.mark.parametrize(("one", "other", "said"), [
    (single(0.7), 0.7, ("0.699999988 (0.7 rounded to float32)", "0.7")), (0.25, 0.5, ("0.25", "0.5")),
    (1.0 + 2.0**-52, 1.0, ("1.0000000000000002", "1")), (single(0.7), single(0.1), ("0.7", "0.1")),
])  # fmt: skip
def test_two_numbers_are_written_with_the_digits_that_tell_them_apart(one, other, said):
    assert told_apart(one, other) == said


ONES, QUARTERS = torch.ones(32), torch.full((1, 1, 4), 0.25)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (ONES, torch.cat([torch.tensor([1.02]), ONES[1:]])),  # one gain of a norm was changed by 2 %
        (ONES, 1 + 0.02 * torch.randn(32, generator=torch.Generator().manual_seed(0))),  # gains were not loaded
        (QUARTERS, torch.tensor([[[0.25, 0.26, 0.25, 0.25]]])),
        (torch.tensor([1.0, 2.0, 1.0, 0.0, -1.0, -2.0]), torch.tensor([1.01, 2.02, 1.0, 0.0, -1.0, -2.01])),
    ],
)
def test_ones_are_no_rounding_of_numbers_near_one(value, exact):
    for one, other in ((value, exact), (exact, value)):
        found = alteration_of(one.double(), other.double(), torch.float32)
        assert "rounded" not in found.words, found


def test_a_norm_whose_gains_were_not_loaded_is_another_function():
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
    fresh = copy.deepcopy(trained)
    trained[1].weight.data.add_(torch.randn(32) * 0.02)
    for pair in ((trained, fresh), (fresh, trained)):
        found = ds.compare(*pair, torch.randn(8, 16))
        assert found.verdict is ds.Verdict.DIFFERENT, found.reason
        assert "float8" not in str(found)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_gains_that_float8_rounds_to_one_are_roundings_beside_weights_that_show_it(name):
    torch.manual_seed(0)
    exact = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
    exact[1].weight.data.add_((torch.randn(32) * 0.02).clamp(-0.03, 0.03))
    rounded = copy.deepcopy(exact)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(getattr(torch, name)).float()
    assert "float8" not in name or bool((rounded[1].weight == 1).all())
    x = torch.randn(8, 16)
    for pair in ((exact, rounded), (rounded, exact)):
        found = ds.compare(*pair, x)
        assert found.verdict is ds.Verdict.PRECISION, found.reason
        assert name in found.reason
    rounded[1].weight.data[3] *= 1.3
    assert ds.compare(exact, rounded, x).verdict is ds.Verdict.DIFFERENT
