"""Every cause of the catalogue is found where it is planted, and no honest twin is flagged."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from driftscope.records.kinds.transform_report import OUTCOMES
from driftscope.records.rules import RULES
from driftscope.transforms.checking import check_transforms
from driftscope.transforms.diagnose.catalogue import CAUSES
from driftscope.transforms.world.process_state import reading, same_reading
from transforms.catalogue_cases import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(13)
def test_a_function_is_said_to_do_what_it_does(name: str) -> None:
    function, examples, *rest = CASES[name].make()
    expected = CASES[name].expected
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in examples]
    state = reading()
    report = check_transforms(function, *examples, in_dims=rest[0] if rest else 0, transforms=tuple(expected))
    assert same_reading(state, reading()) == []
    assert all(torch.equal(a, b) for a, b in zip(before, examples, strict=True) if isinstance(b, torch.Tensor))
    for transform, (outcome, cause, expression) in expected.items():
        found = [f for f in report.findings if transform in (f.transform, *f.transforms)]
        said = f"{transform}: {report.outcomes[transform]}, {[(f.cause, f.where.expression) for f in found]}"
        agreeing = ("same", "rounding") if outcome == "same" else (outcome,)
        assert report.outcomes[transform] in agreeing, said
        if cause is None:
            assert not [f for f in found if not f.note], said
            continue
        named = [f for f in found if f.cause == cause]
        assert named, said
        if expression is not None:
            assert any(expression in (f.where.expression or "") for f in named), said
            assert all(f.where.file and f.where.line and f.where.column for f in named), said


def test_every_cause_has_a_rule_and_a_page() -> None:
    assert set(CAUSES) <= set(RULES)


def test_every_cause_that_a_function_can_show_is_planted() -> None:
    planted = {cause for case in CASES.values() for _, cause, _ in case.expected.values()}
    # Shown by other tests: bad input (T031 to T035), ragged results, operators without a rule, the unknown.
    elsewhere = {"T015", "T025", "T031", "T032", "T033", "T034", "T035", "T099"}
    assert set(CAUSES) - planted - elsewhere == set()


def test_every_outcome_has_words() -> None:
    assert {outcome for case in CASES.values() for outcome, _, _ in case.expected.values()} <= set(OUTCOMES)


def test_a_tensor_that_escapes_is_told_once_for_each_kind_of_wrapper():
    kept = []

    def keeps(x):
        kept.append(x.sin())
        return kept[-1].sum()

    found = [f for f in check_transforms(keeps, torch.ones(4, 3)).findings if f.cause == "T001"]
    assert [(f.transform, f.where.expression) for f in found] == [
        ("vmap", "kept.append(x.sin())"),
        ("grad", "kept.append(x.sin())"),
    ]
    assert {"vmap", "grad", "jacfwd", "hessian"} <= set(found[1].transforms)


def test_two_names_that_hold_a_tensor_are_told_of_twice():
    first, second = [], []

    def keeps(x):
        first.append(x.sin())
        second.append(x.cos())
        return x.sum()

    found = check_transforms(keeps, torch.ones(4, 3), transforms=("grad", "vjp")).findings
    assert [(f.cause, f.transform, f.where.expression) for f in found if f.cause == "T001"] == [
        ("T001", "grad", "first.append(x.sin())"),
        ("T001", "grad", "second.append(x.cos())"),
    ]


@pytest.mark.slow
def test_what_only_dead_objects_hold_did_not_outlive_the_transform(monkeypatch):
    # No name of the function leads to the store, so it must be found by who holds the tensor.
    monkeypatch.setitem(sys.modules, "a_store_of_a_library", types.SimpleNamespace(kept=[]))

    def cyclic(x):
        box = {"last": x.sin()}
        box["itself"] = box
        return box["last"].sum()

    def held(x):
        box = {"last": x.sin()}
        sys.modules["a_store_of_a_library"].kept.append(box)
        return box["last"].sum()

    assert not check_transforms(cyclic, torch.ones(4, 3), transforms=("grad",)).findings
    assert [f.cause for f in check_transforms(held, torch.ones(4, 3), transforms=("grad",)).findings] == ["T001"]
