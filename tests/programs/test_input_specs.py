"""Specs: what is written is what is drawn, the same everywhere; what cannot be read is named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftscope as ds
from driftscope.programs.feeding.distributions import DTYPES, LAWS, parse_spec, rng_for


def drawn(spec: str, seed: int = 0) -> torch.Tensor:
    return ds.inputs({"x": spec}, seed=seed).tensors["in['x']"]


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        ("4x64", (4, 64), torch.float32),
        ("4x64:float16", (4, 64), torch.float16),
        ("()", (), torch.float32),
        ("():int64", (), torch.int64),
        ("0x3:float32", (0, 3), torch.float32),
        ("7:bool", (7,), torch.bool),
        ("2x2:float8_e5m2", (2, 2), torch.float8_e5m2),
        ("2x3:complex64:normal", (2, 3), torch.complex64),
        ("[4, 64]:float64:uniform(-1, 1)", (4, 64), torch.float64),
    ],
)
def test_shape_and_dtype_are_as_written(spec, shape, dtype):
    tensor = drawn(spec)
    assert tuple(tensor.shape) == shape
    assert tensor.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_drawn(dtype):
    assert drawn(f"5:{dtype}").dtype == DTYPES[dtype]


@pytest.mark.parametrize(
    ("law", "holds"),
    [
        ("normal(3, 0.1)", lambda x: 2.9 < x.mean() < 3.1 and 0.05 < x.std() < 0.2),
        ("uniform(2, 3)", lambda x: x.min() >= 2 and x.max() <= 3 and x.std() > 0.2),
        ("pareto(3)", lambda x: x.min() >= 0 and x.mean() > x.median()),
        ("ones", lambda x: bool((x == 1).all())),
        ("zeros()", lambda x: bool((x == 0).all())),
        ("full(2.5)", lambda x: bool((x == 2.5).all())),
        ("arange", lambda x: torch.equal(x.flatten(), torch.arange(400.0))),
        ("randint(3, 9)", lambda x: x.min() == 3 and x.max() == 8),
        ("randint(9)", lambda x: x.min() == 0 and x.max() == 8),
    ],
)
def test_laws_draw_what_they_say(law, holds):
    assert holds(drawn(f"20x20:float32:{law}"))


def test_bits_are_the_same_on_every_machine():
    # Recorded once: PCG64 seeded by BLAKE2b of the names.
    assert rng_for("inputs", 0, "x").integers(0, 1000, 4).tolist() == [213, 51, 232, 516]


@given(st.integers(0, 2**40), st.text(min_size=1, max_size=5))
def test_a_stream_depends_on_seed_and_name_alone(seed, name):
    one = rng_for("inputs", seed, name).random(3).tolist()
    assert rng_for("inputs", seed, name).random(3).tolist() == one
    assert rng_for("inputs", seed + 1, name).random(3).tolist() != one
    assert rng_for("inputs", seed, name + "'").random(3).tolist() != one


def test_another_input_changes_nothing():
    alone = ds.inputs({"x": "3"}).tensors["in['x']"]
    beside = ds.inputs({"w": "5", "x": "3"}).tensors["in['x']"]
    assert torch.equal(alone, beside)
    assert not torch.equal(alone, ds.inputs({"x": "3"}, seed=1).tensors["in['x']"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("4x-1", "size -1"),
        ("4xq", "cannot be read"),
        ("3xx16", "cannot be read"),
        ("x3", "cannot be read"),
        ("3x", "cannot be read"),
        ("4x64:flot32", "unknown dtype 'flot32'"),
        ("4:float32:gauss", "unknown law 'gauss'"),
        ("4:float32:uniform(0,1,2)", "too many numbers"),
        ("4:float32:uniform(a,b)", "cannot be read"),
        ("4:float32:uniform(__import__('os'))", "cannot be read"),
        ("4:float32:pareto(0)", "must be positive"),
        ("4:int64:normal", "dtype is int64"),
        ("4:int64:randint(3,3)", "is empty"),
        ("4:int8:randint(0,1000)", "leaves the range of int8"),
        ("4:uint8:full(-1)", "leaves the range of uint8"),
    ],
)
def test_a_bad_spec_is_one_sentence(spec, message):
    with pytest.raises(ds.InputError, match="input 'x'") as refused:
        parse_spec("x", spec)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        "4x1",
        "4x64:float32",
        "4:float32:uniform(0,1)",
        "4:float32:pareto(0.5)",
        "4:int64:randint(3,4)",
        "4:int8:randint(-128,128)",
    ],
)
def test_its_neighbour_is_accepted(spec):
    assert drawn(spec).numel() >= 4


def test_a_tensor_too_large_for_the_machine_is_said():
    with pytest.raises(ds.InputError, match="cannot be made on this machine"):
        drawn("10000000000x10000000000")


def test_laws_without_numbers_have_defaults():
    assert {law for law in LAWS if parse_spec("x", f"2:float32:{law}").law == law} == set(LAWS)
