"""What is read of tensors once is read again where one of them was written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from driftscope.lift.readings import is_same, is_transposed, readings_kept

_ASKED = [(is_same, lambda x: x.clone()), (is_transposed, lambda x: x.mT.contiguous())]


@pytest.fixture(params=_ASKED, ids=["same", "transposed"])
def asked(request: pytest.FixtureRequest) -> tuple[Callable[..., bool], Callable[[torch.Tensor], torch.Tensor]]:
    return request.param  # type: ignore[no-any-return]


def test_a_pair_is_compared_once_whichever_comes_first(asked, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    ask, copied = asked
    x = torch.randn(4, 6)
    y = copied(x)
    looks = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: looks.append(1) or equal(a, b))
    with readings_kept():
        assert ask(x, y)
        assert ask(y, x)
        assert ask(x, y)
    assert len(looks) == 1
    assert ask(x, y)
    assert ask(y, x)
    assert len(looks) == 3


@pytest.mark.parametrize("writes", [0, 1], ids=["the first", "the second"])
def test_a_write_into_either_is_seen(asked, writes: int) -> None:  # type: ignore[no-untyped-def]
    ask, copied = asked
    pair = [x := torch.randn(4, 6), copied(x)]
    with readings_kept():
        assert ask(*pair)
        pair[writes][1, 2] += 1.0
        assert not ask(*pair)
        assert not ask(*reversed(pair))
        pair[writes][1, 2] = float("nan")
        assert not ask(*pair)


def test_another_tensor_in_the_place_of_one_that_is_gone_is_looked_at(asked) -> None:  # type: ignore[no-untyped-def]
    ask, copied = asked
    x = torch.randn(3, 5)
    with readings_kept():
        for k in range(50):  # new objects soon lie where old ones did
            other = copied(x) if k % 2 else copied(x) + 1.0
            assert ask(x, other) is bool(k % 2)
            del other


def test_shapes_tell_without_a_look() -> None:
    x = torch.zeros(2, 3)
    assert not is_same(x, torch.zeros(3, 2))
    assert not is_transposed(x, torch.zeros(2, 3))
    assert not is_transposed(torch.zeros(3), torch.zeros(3))
    with torch.inference_mode():
        assert is_same(torch.zeros(2), torch.zeros(2))
        assert not is_same(torch.zeros(2), torch.ones(2))
