"""Whatever is printed of a comparison agrees with all else of it: records of 40 real runs, and some made to disagree.

The records are those of 20 pairs in both orders; what is checked of each is in ``contradictions.py``.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from contradictions import contradictions
from torch import nn
from torch.nn import functional as F

import driftscope as ds
import record_examples
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.verdict import Verdict


class Net(nn.Module):
    """Two layers, a normalisation and an activation; ``after`` is what becomes of the result."""

    def __init__(self, after: Callable[[torch.Tensor], Any] = lambda y: y, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(16, 24), nn.LayerNorm(24, options.get("eps", 1e-5)), nn.Linear(24, 8)
        self.approximate, self.after, self.scale = options.get("approximate", "none"), after, options.get("scale", 1.0)
        self.drop = nn.Dropout(options.get("drop", 0.0))

    def forward(self, x: torch.Tensor) -> Any:
        h = F.gelu(self.norm(self.up(x)) * self.scale, approximate=self.approximate)
        return self.after(self.down(self.drop(h)))


def edited(change: Callable[[Net], object], **options: Any) -> Net:
    """The net with other weights."""
    made = Net(**options)
    with torch.no_grad():
        change(made)
    return made.eval()


X = torch.randn(6, 16, generator=torch.Generator().manual_seed(1))


def results(net: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return net.eval()(X)


PAIRS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "itself": lambda: (Net().eval(), Net().eval()),
    "eps": lambda: (Net().eval(), Net(eps=1e-3).eval()),
    "gelu": lambda: (Net().eval(), Net(approximate="tanh").eval()),
    "weight scaled": lambda: (Net().eval(), edited(lambda n: n.down.weight.mul_(1.01))),
    "weight zeroed": lambda: (Net().eval(), edited(lambda n: n.down.bias.zero_())),
    "weights reordered": lambda: (Net().eval(), edited(lambda n: n.up.weight.copy_(n.up.weight.flip(0)))),
    "two weights": lambda: (Net().eval(), edited(lambda n: (n.up.bias.add_(1.0), n.down.bias.add_(1.0)))),
    "scale": lambda: (Net().eval(), Net(scale=1.001).eval()),
    "hidden scale": lambda: (Net().eval(), Net(scale=1.0 + 1e-9).eval()),
    "float16": lambda: (Net().eval(), ds.torch(Net().eval(), dtype="float16")),
    "bfloat16": lambda: (Net().eval(), ds.torch(Net().eval(), dtype="bfloat16")),
    "overflow": lambda: (Net(lambda y: y * 1e5).eval(), ds.torch(Net(lambda y: y * 1e5).eval(), dtype="float16")),
    "another sum": lambda: (Net(lambda y: y.sum(-1)).eval(), Net(lambda y: y.flip(-1).cumsum(-1)[..., -1]).eval()),
    "two outputs": lambda: (Net(lambda y: (y, y.sum(0))).eval(), Net(lambda y: (y, 2.0 * y.sum(0))).eval()),
    "choice": lambda: (Net(lambda y: y.argmax(-1)).eval(), Net(lambda y: y.argmin(-1)).eval()),
    "NaN": lambda: (Net(lambda y: y.abs().log()).eval(), Net(torch.log).eval()),
    "shape": lambda: (Net().eval(), Net(lambda y: y.T).eval()),
    "train mode": lambda: (Net().eval(), Net(drop=0.5).train()),
    "recorded": lambda: (Net().eval(), ds.recorded(results(Net()).half().float())),
    "recorded other": lambda: (Net().eval(), ds.recorded(results(Net()) * 1.01)),
}


@functools.cache
def record(name: str, turned: bool = False) -> Comparison:
    a, b = PAIRS[name]()
    return ds.compare(*((b, a) if turned else (a, b)), (copy.deepcopy(X),))


@pytest.mark.parametrize("turned", [False, True], ids=["AB", "BA"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.sampled(7)
def test_nothing_that_is_printed_contradicts_anything_else(name: str, turned: bool) -> None:
    assert contradictions(record(name, turned)) == []


@pytest.mark.parametrize("name", [n for n in PAIRS if not n.startswith("recorded")])
@pytest.mark.sampled(4)
def test_the_other_way_round_the_same_is_said_of_the_other_side(name: str) -> None:
    one, other = record(name), record(name, True)
    assert one.verdict is other.verdict
    # A weight that is zero on one side is changed on the other: another code of the same kind.
    kinds = [sorted({f.code[0] for f in c.findings if not f.note}) for c in (one, other)]
    assert kinds[0] == kinds[1]
    for words in ("in A", "in B", "A (", "B ("):
        if one.verdict is not Verdict.DIFFERENT and words in one.answer:
            assert words.translate(str.maketrans("AB", "BA")) in other.answer


def _doctored() -> dict[str, Comparison]:
    """Records that disagree with themselves, each in one respect."""
    good, bad = record_examples.rounding(), record("eps")
    first = bad.findings[0]
    output = bad.outputs[0]
    place = dataclasses.replace(first, where=dataclasses.replace(first.where, node="elsewhere"), code="W004")
    size = dataclasses.replace(first, what=first.what.replace("off by", "off by 1"))
    loose = dataclasses.replace(good.outputs[0], max_abs=1.0, verdict=Verdict.ROUNDING)
    return {
        "verdict": dataclasses.replace(bad, verdict=Verdict.ROUNDING),
        "a finding beside ROUNDING": dataclasses.replace(good, findings=(Finding("N001", "off", where=Where("out")),)),
        "no finding": dataclasses.replace(bad, findings=()),
        "another size": dataclasses.replace(bad, findings=(size, *bad.findings[1:])),
        "the same bits that differ": dataclasses.replace(
            bad, verdict=Verdict.IDENTICAL, outputs=(dataclasses.replace(output, verdict=Verdict.IDENTICAL),)
        ),
        "the same function": dataclasses.replace(bad, findings=(Finding("N006", "x"),), reason="the same function",
                                                 outputs=(dataclasses.replace(output, lifted=None),)),
        "a tolerance that fails": dataclasses.replace(good, outputs=(loose,)),
        "unknown and known": dataclasses.replace(
            record("recorded other"), findings=(dataclasses.replace(place, code="N017"),)
        ),
    }  # fmt: skip


def logistic(steps: int, rate: float = 4.0, turned: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """A chaotic map, iterated: each step doubles what rounding did."""

    def run(x: torch.Tensor) -> torch.Tensor:
        x = x.sigmoid()
        for _ in range(steps):
            x = rate * x * (1.0 - x) if turned else rate * x - rate * x * x
        return x

    return run


@pytest.mark.parametrize(
    ("steps", "rate", "verdict"),
    [(8, 4.0, "ROUNDING"), (30, 4.0, "ROUNDING"), (60, 4.0, "ROUNDING"), (120, 4.0, "ROUNDING"),
     (300, 4.0, "INCONCLUSIVE"), (8, 3.999, "DIFFERENT"), (30, 3.999, "DIFFERENT")],
)  # fmt: skip
@pytest.mark.sampled(2)
def test_a_chaotic_program_is_not_called_another_function(steps: int, rate: float, verdict: str) -> None:
    c = ds.compare(logistic(steps, turned=True), logistic(steps, rate), (X,))
    assert c.verdict == verdict
    assert ("amplifies rounding" in c.answer) is (verdict == "INCONCLUSIVE")


def test_results_of_one_kind_are_said_of_all_outputs() -> None:
    same = ds.compare(Net(lambda y: (y, y + 1)).eval(), Net(lambda y: (y, y + 1)).eval(), (X,))
    assert same.answer == "the same bits in all 2 outputs"
    wider = ds.compare(Net().eval(), Net(lambda y: y.double()).eval(), (X,))
    assert (wider.verdict, wider.answer) == ("ROUNDING", "the same numbers, as float64 where A gives float32")


def test_of_several_outputs_those_that_differ_are_counted() -> None:
    assert record("two outputs").answer.endswith("In float64 1 of 2 outputs still differs by 100 %.")
    turned = record("two outputs", True)
    assert turned.first is not None
    place = f"tests/laws/test_no_contradictions.py:{turned.first.where.line}"
    assert turned.answer == (
        f"B computes something else from sum ({place}) on: what sum gives stays as it is, where A computes mul_1 "
        f"(aten.mul, {place}) of it. In float64 1 of 2 outputs still differs by 50 %."
    )


def test_axes_in_another_order_are_called_so() -> None:
    first = record("shape").first
    assert first is not None
    assert "another order" in first.fix
    wider = ds.compare(Net().eval(), Net(lambda y: y[:, :4]).eval(), (X,)).first
    assert wider is not None
    assert "assumed at export" in wider.fix


@pytest.mark.parametrize("name", [
    "verdict", "a finding beside ROUNDING", "no finding", "another size", "the same bits that differ",
    "the same function", "a tolerance that fails", "unknown and known",
])  # fmt: skip
def test_the_checker_sees_what_disagrees(name: str) -> None:
    assert contradictions(_doctored()[name])
