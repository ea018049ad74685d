"""What is known of tensors goes with them, and is never told of another."""

from __future__ import annotations

import torch

from driftscope.programs.state.by_tensor import ByTensor


def test_a_tensor_is_known_by_identity() -> None:
    known: ByTensor[str] = ByTensor()
    one, same = torch.ones(2), torch.ones(2)
    known[one] = "one"
    assert known.get(one) == "one"
    assert known.get(same) is None
    known[one] = "more"
    assert known.get(one) == "more"
    assert len(known) == 1


def test_what_is_gone_is_forgotten() -> None:
    known: ByTensor[torch.Tensor] = ByTensor()
    for _ in range(100):  # addresses come again
        fresh = torch.ones(2)
        assert known.get(fresh) is None
        known[fresh] = torch.zeros(2)
        del fresh
    assert len(known) == 0


def test_nothing_is_known_of_the_next_tensor_at_an_address() -> None:
    known: ByTensor[str] = ByTensor()
    one, other = torch.ones(2), torch.ones(2)
    known[one] = "one"
    known._known[id(other)] = known._known[id(one)]  # as it would stand there if the first had gone unseen
    assert known.get(other) is None
