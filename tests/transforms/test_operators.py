"""No deterministic operator of torch's own database is said to be silently wrong, but for those that are."""

from __future__ import annotations

import pytest
import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.checking import check_transforms
from transforms.mutants import Mutant, mutants, takes_defects
from transforms.operators import Operator, operators

# Found by the whole sweep on torch 2.13.0 and looked at one by one. Each differs from the plain program for real.
REALLY_WRONG = {
    "as_strided": "reads the memory of the batch, not of the example",
    "as_strided_copy": "reads the memory of the batch, not of the example",
    "as_strided_scatter": "its reverse mode is wrong where strides overlap",
    "native_group_norm": "plain autograd has no derivative of its mean and rstd outputs",
    "nn.functional.linear_cross_entropy.chunked": "its forward mode returns zeros",
    "nn.functional.linear_cross_entropy.chunked_none": "its forward mode returns zeros",
    "nn.functional.max_unpool1d": "its reverse mode is wrong where indices repeat",
    "nn.functional.max_unpool2d": "its reverse mode is wrong where indices repeat",
    "nn.functional.max_unpool3d": "its reverse mode is wrong where indices repeat",
    "scatter_reduce.prod": "its forward mode returns zeros",
}
EVERY = 40


def alarms(operator: Operator, transforms: tuple[str, ...]) -> list[str]:
    """Return what is said against an operator that is known to be right."""
    report = check_transforms(operator.function, operator.batch, transforms=transforms)
    harmless = ("same", "rounding", "random", "refused", "plain-refuses")
    said = [f"{t}: {o}" for t, o in report.outcomes.items() if o not in harmless]
    refused = [t for t, o in report.outcomes.items() if o in ("refused", "plain-refuses")]
    return said + [str(f) for f in report.findings if not f.note and f.transform not in refused]


@pytest.mark.slow
def test_a_sample_of_operators_raises_no_alarm() -> None:
    found = {op.name: alarms(op, ("vmap", "grad", "jvp")) for op in operators(EVERY) if op.name not in REALLY_WRONG}
    assert len(found) > 12
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.parametrize("every", [pytest.param(12, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)])
def test_no_operator_raises_an_alarm(every: int) -> None:
    asked = ("vmap", "grad", "vjp", "jvp", "jacrev", "jacfwd")
    found = {op.name: alarms(op, asked) for op in operators(every) if op.name not in REALLY_WRONG}
    assert len(found) > 550 // every
    assert {name: said for name, said in found.items() if said} == {}


@pytest.mark.slow
def test_operators_that_are_wrong_are_said_to_be() -> None:
    wrong = {"scatter_reduce.prod", "as_strided_scatter", "nn.functional.linear_cross_entropy.chunked"}
    found = list(operators(only=wrong))
    assert {operator.name for operator in found} == wrong
    for operator in found:
        assert check_transforms(operator.function, operator.batch, transforms=("jvp",)).worst == "wrong"


@pytest.fixture(scope="module")
def originals() -> list[Operator]:
    """Operators that take a defect and are right without one."""
    fit = [op for op in operators(17) if takes_defects(op)]
    return [
        op for op in fit if check_transforms(op.function, op.batch, transforms=("vmap",)).worst in ("same", "rounding")
    ]


def missed(mutant: Mutant) -> str:
    """Return what is not found of a seeded defect: its cause, or its line; "" when both are."""
    report = check_transforms(mutant.function, mutant.batch, transforms=("vmap",))
    named = [f for f in report.findings if f.cause == mutant.cause]
    if not named:
        return f"{mutant.name}: {mutant.cause} not among {[f.cause for f in report.findings]}"
    placed = any(f.where.line in mutant.lines and str(f.where.file).endswith("mutants.py") for f in named)
    return "" if placed else f"{mutant.name}: placed at {[(f.where.file, f.where.line) for f in named]}"


@pytest.mark.slow
def test_seeded_defects_are_found_and_placed(originals: list[Operator]) -> None:
    assert len(originals) > 10
    assert [told for mutant in mutants(originals, seed=1) if (told := missed(mutant))] == []


@pytest.mark.sweep
def test_seeded_defects_are_found_and_placed_in_many_operators(originals: list[Operator]) -> None:
    told = [missed(mutant) for seed in range(2, 8) for mutant in mutants(originals, seed)]
    assert sum(map(bool, told)) <= 0.05 * len(told), [words for words in told if words]


@pytest.mark.sweep
def test_the_export_database_exports_as_the_same_programs() -> None:
    from torch._export.db.examples import all_examples

    asked = ("export", "export_strict", "compile_eager")
    outcomes = {}
    for name, example in all_examples().items():
        if not example.example_kwargs:
            tripled = internals.tree_map(_tripled, example.example_args)
            outcomes[name] = check_transforms(example.model, *tripled, transforms=asked).outcomes
    assert len(outcomes) > 30
    wrong = {name: told for name, told in outcomes.items() if set(told.values()) - {"same", "rounding"}}
    # torch itself lists this one as not supported.
    assert wrong.keys() <= {"dynamic_shape_round"}


def _tripled(leaf: object) -> object:
    return torch.stack([leaf] * 3) if isinstance(leaf, torch.Tensor) else leaf
