"""``ds.vmap`` in many layouts, inside and around other transforms, is never silently other than the loop."""

from __future__ import annotations

import collections
import random

import pytest
import torch

from transforms.wider_programs import BLOCKS, CHANGES, ENDS, SHAPES, STATEMENTS, WRAPPERS, Program


def session(rng: random.Random, counted: collections.Counter[str]) -> None:
    """Compose a program and call it a few times, its surroundings changed before each."""
    lines = []
    for _ in range(rng.randint(1, 4)):
        statement = rng.choice(STATEMENTS)
        if rng.random() < 0.35:
            statement = rng.choice(BLOCKS).format("\n".join("    " + line for line in statement.splitlines()))
        lines.append(statement)
    program = Program(lines, rng.choice(ENDS), rng.choice(SHAPES))
    calls = []
    for _ in range(rng.randint(3, 6)):
        change, wrapper = rng.choice(CHANGES), rng.choice(WRAPPERS)
        size, width, seed = rng.choice([1, 2, 3, 5, 9]), rng.choice([1, 3, 4, 6]), rng.randint(0, 99)
        dtype, anew = rng.choice([torch.float32, torch.float64, torch.float64]), rng.random() < 0.4
        program.around.change(change)
        calls.append((change, wrapper, size, width, seed, dtype, anew))
        kind, told = program.wrong(wrapper, size, width, seed, dtype, anew=anew)
        counted[kind] += 1
        assert kind in ("right", "refused"), f"{kind}: {told}\n{program.shape} {calls}\n{program.text}"
        assert torch.is_grad_enabled()


@pytest.fixture(autouse=True)
def _kept():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


def hold(programs: int, seed: int) -> collections.Counter[str]:
    rng, counted = random.Random(seed), collections.Counter()
    for _ in range(programs):
        torch.set_default_dtype(torch.float32)
        session(rng, counted)
    return counted


@pytest.mark.parametrize(
    "programs", [pytest.param(100, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.sweep)]
)
def test_many_layouts_and_wrappers_are_the_loop(programs):
    counted = hold(programs, seed=1)
    assert counted["right"] >= 3 * programs
    assert counted["refused"] < 0.15 * counted["right"] + 5  # few programs refuse more or less by chance
