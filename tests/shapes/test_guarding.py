"""A guarded file answers only where it is right, for a reason that stands in the file; the rest is refused or run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.shapes.check import Effort
from driftscope.shapes.conditions.expressions import Number, Operation, Size, operation, text
from driftscope.shapes.conditions.phrasing import always, canonical
from driftscope.shapes.conditions.separating import UncheckedRuns, separate
from driftscope.shapes.conditions.solving import equation_of, steps_together
from driftscope.shapes.covering.dispatching import NotCovered
from driftscope.shapes.probe.axes import arguments_of
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.exploration import ProbePlan
from shapes.small_models import OneAndAHalf

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

#: What is found out in few points: what guards ask beyond them stays as it is.
FEW = Effort(ProbePlan(seconds=0.2, most=60, fewest=30), valid=30, invalid=5, ranked=10)


class PooledToTwo(nn.Module):
    """The converter writes the pooling windows of the example into the file."""

    def forward(self, image):
        return nn.functional.adaptive_avg_pool2d(image, 2).flatten(1)


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x, dim=-1)


class Counts(nn.Module):
    def forward(self, x):
        return {"y": x * 2, "n": x.shape[0], "best": x.argmax(-1)}


@pytest.mark.slow
def test_the_conditions_are_what_the_file_was_made_for():
    model, image = PooledToTwo(), torch.randn(2, 3, 6, 8)
    report = ds.check_shapes(model, (image,))
    guarded = report.guard()
    words = " and ".join(guarded.conditions)
    assert "image.shape[2]" in words
    assert "image.shape[3]" in words
    assert "image.shape[0]" not in words.replace("image.shape[0] traced", "")
    assert guarded.tried
    torch.testing.assert_close(guarded(image), model(image))
    larger = torch.randn(5, 3, 6, 8)
    torch.testing.assert_close(guarded(larger), model(larger))
    for height, width in ((12, 8), (6, 16), (33, 40), (5, 7)):
        with pytest.raises(NotCovered):
            guarded(torch.randn(2, 3, height, width))
    either = report.guard(fallback=model)
    odd = torch.randn(2, 3, 33, 40)
    torch.testing.assert_close(either(odd), model(odd))


@pytest.mark.slow
def test_complex_results_are_named_and_put_together_again():
    model, x = Spectrum(), torch.randn(2, 7)
    report = ds.check_shapes(model, (x,))
    assert report.first.code == "S034"
    assert not [f for f in report.findings if f.code == "S021"]
    for run in (report.guard(), ds.cover(model, (x,), target="onnx")):
        for shape in ((2, 7), (5, 8), (3, 2)):
            y = torch.randn(*shape)
            torch.testing.assert_close(run(y), model(y))


@pytest.mark.slow
def test_integers_come_back_as_integers():
    model, x = Counts(), torch.randn(3, 5)
    found = ds.check_shapes(model, (x,)).guard()(torch.randn(6, 5))
    assert type(found["n"]) is int
    assert found["n"] == 6
    assert found["best"].dtype is torch.int64


def axes_of(*shape: int):
    return arguments_of(lambda x: x, (torch.zeros(*shape),)).axes


def test_conditions_that_contradict_each_other_are_none():
    axes = axes_of(4, 6)
    evidence = UncheckedRuns(axes, right=[], wrong=[(4, 6), (3, 6)], unwanted=[])
    assert separate([], evidence) is None


def test_a_bound_that_only_fits_the_points_is_not_chosen():
    axes = axes_of(4, 6)
    points = [(a, b) for a in range(1, 9) for b in range(1, 9)]
    evidence = UncheckedRuns(axes, [p for p in points if p[0] <= p[1]], [p for p in points if p[0] > p[1]], [])
    chosen = separate([], evidence)
    assert chosen is None or all("<=" not in text(term) for term in chosen)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Operation("==", (operation("*", 40, Size("a")), operation("*", 40, Size("b")))), "a == b"),
        (Operation("==", (operation("*", 2, Size("b")), operation("*", 2, Size("a")))), "a == b"),
        (Operation("==", (Size("m"), operation("+", Size("p"), Size("s")))), "m == p + s"),
        (Operation("<=", (Size("a"), Number(7))), "a <= 7"),
    ],
)
def test_equations_are_said_without_their_common_factor(condition, words):
    assert text(canonical(condition)) == words


def test_what_cannot_fail_is_no_condition():
    smaller = operation("min", Size("a"), Size("b"))
    assert always(Operation("<=", (smaller, Size("a"))))
    assert not always(Operation("<=", (Size("a"), Number(10_000))))
    assert not always(Operation("<=", (smaller, Number(3))))


def test_a_sum_of_sizes_is_solved_for_the_sizes_that_lead():
    sum_ = equation_of(Operation("==", (Size("mask"), operation("+", Size("past"), Size("step")))))
    keys = equation_of(Operation("==", (Size("past"), Size("values"))))
    steps = steps_together([sum_, keys], {"mask": 8, "past": 5, "step": 3, "values": 5})
    assert {frozenset(step.items()) for step in steps} == {
        frozenset({("step", 1), ("mask", 1)}),
        frozenset({("values", 1), ("past", 1), ("mask", 1)}),
    }


def test_the_first_of_equal_sizes_leads_whatever_the_names_are():
    names = [f"size{number}" for number in range(8)]
    equal = [equation_of(Operation("==", (Size(first), Size(other)))) for first, other in pairwise(names)]
    (step,) = steps_together(equal, dict.fromkeys(names, 5))
    assert list(step) == [names[0], *reversed(names[1:])]


@pytest.mark.parametrize("length", [1, 4, 7, 24])
def test_a_mask_of_another_size_still_means_something(length):
    padded = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    causal = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    builder = InputBuilder(arguments_of(lambda mask, bias: mask, (padded, causal)))
    (mask, bias), _ = builder.at((2, length, length, length))
    assert bool((mask.diff(dim=1) >= 0).all())
    assert bool(mask[:, -1].all()) or length == 1
    assert bool(torch.isfinite(bias[:, 0]).all())


class WhereAbove(torch.nn.Module):
    """Nothing may be found: the mean of nothing is NaN in torch and 0 in a file."""

    def forward(self, x):
        return torch.nonzero(x > 0).float().mean()


class KeptAbove(torch.nn.Module):
    def forward(self, x):
        return x[x[:, 0] > 0].sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("model", [WhereAbove(), KeptAbove()])
def test_shapes_promise_nothing_where_values_decide(model):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    report = ds.check_shapes(model, (x,), targets=("onnx",), effort=FEW)
    if isinstance(model, KeptAbove):
        assert torch.allclose(report.guard()(x), model(x))
        return
    with pytest.raises(ds.errors.ProgramError, match=r"^the ONNX file is wrong at some inputs, and no condition"):
        report.guard()
    nothing = -torch.ones(2, 3)
    assert report.guard(fallback=model)(nothing).isnan()


class Thumbnail(nn.Module):
    """From 14, 26 and 28 rows to 8 onnxruntime takes other rows than torch, from most numbers the same ones."""

    def forward(self, image):
        return nn.functional.interpolate(image, size=(8, 5), mode="nearest")


class TwiceAsLarge(nn.Module):
    def forward(self, image):
        return nn.functional.interpolate(image, scale_factor=2, mode="nearest")


@pytest.mark.slow
def test_rare_sizes_that_a_file_rounds_otherwise_are_kept_away():
    model = Thumbnail().eval()
    guarded = ds.check_shapes(model, (torch.randn(2, 2, 6, 8),), targets=("onnx",), effort=FEW).guard()
    answered = []
    for height, width in [(h, 8) for h in range(1, 100)] + [(6, w) for w in range(1, 100)] + [(28, 35), (27, 36)]:
        image = torch.randn(1, 2, height, width)
        if guarded.admits(image):
            torch.testing.assert_close(guarded(image), model(image))
            answered.append((height, width))
    assert (27, 8) in answered
    assert (28, 8) not in answered
    assert len(answered) >= 150
    assert not guarded.admits(torch.randn(1, 2, 400, 8)), "nothing is known that far where some sizes are wrong"


@pytest.mark.slow
def test_a_file_that_rounds_as_torch_does_is_not_bounded():
    model = TwiceAsLarge().eval()
    guarded = ds.check_shapes(model, (torch.randn(2, 2, 6, 8),), targets=("onnx",), effort=FEW).guard()
    assert not [words for words in guarded.conditions if "<=" in words]
    image = torch.randn(1, 2, 400, 28)
    torch.testing.assert_close(guarded(image), model(image))


class AsLargeAs(nn.Module):
    def forward(self, image, like):
        return nn.functional.interpolate(image, size=like.shape[2:], mode="nearest") + like


@pytest.mark.parametrize(
    ("rows", "wanted", "admitted"),
    [
        (6, 12, (14, 28)),
        pytest.param(6, 6, (14, 14), marks=pytest.mark.slow),
        pytest.param(6, 9, (6, 9), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_two_sizes_resized_to_one_another_keep_a_factor_that_rounds_nothing(rows, wanted, admitted):
    """From 28 rows to 8 the file takes other rows, and from neither axis alone is that seen."""
    model = AsLargeAs().eval()
    example = (torch.randn(1, 2, rows, 5), torch.randn(1, 2, wanted, 5))
    guarded = ds.check_shapes(model, example, targets=("onnx",), effort=FEW).guard()
    image, like = torch.randn(1, 2, admitted[0], 5), torch.randn(1, 2, admitted[1], 5)
    torch.testing.assert_close(guarded(image, like), model(image, like))
    assert not guarded.admits(torch.randn(1, 2, 28, 5), torch.randn(1, 2, 8, 5))


class Enlarged(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, image):
        return nn.functional.interpolate(self.conv(image), scale_factor=2, mode="nearest")


@pytest.mark.parametrize("threshold", [0, 64])
@pytest.mark.sampled(1)
def test_the_sizes_of_a_file_are_read_where_its_weights_lie_beside_it(threshold, tmp_path):
    import onnx

    from driftscope.shapes.covering.rounded_sizes import rounded_sizes_of

    image = torch.randn(1, 1, 6, 8)
    free = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    made = torch.onnx.export(Enlarged().eval(), (image,), dynamo=True, dynamic_shapes=(free,), verbose=False)
    beside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": threshold}
    onnx.save(made.model_proto, str(tmp_path / "model.onnx"), **beside)
    arguments = arguments_of(Enlarged(), ds.inputs({"image": image}))
    found = rounded_sizes_of(tmp_path / "model.onnx", {"image": 0}, arguments.axes)
    assert found is None


@pytest.mark.slow
def test_a_factor_that_may_round_is_bounded_by_what_was_asked():
    """Also about an example that is larger than the small sizes; factors that round nothing are right anywhere."""
    for mode, rows in (("nearest", 6), ("nearest", 300), ("bilinear", 6)):
        example = torch.randn(1, 1, rows, 4)
        guarded = ds.check_shapes(OneAndAHalf(mode), (example,), targets=("onnx",), effort=FEW).guard()
        assert guarded.admits(example)
        assert guarded.admits(torch.randn(1, 1, 4000, 4)) == (mode == "bilinear")
