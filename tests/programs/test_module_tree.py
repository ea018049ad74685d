"""Modules and tensors of a module, listed as torch lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from driftscope.programs.state.module_tree import members_of, modules_in, tensors_in


class _Shared(nn.Module):
    """Modules and tensors that go by several names, one that is left out, and a cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.none = None
        self.register_module("left_out", None)
        self.register_parameter("no_bias", None)
        self.again = self.first[0]
        self.last = nn.Linear(2, 2, bias=False)
        self.last.weight = self.first[0].weight
        self.last.add_module("back", self.first)


class _Own(nn.Module):
    """A module that lists itself otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 1)

    def named_modules(self, *_args: Any, **_options: Any) -> Iterator[tuple[str, nn.Module]]:
        yield "", self

    def named_parameters(self, *_args: Any, **_options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ()


def _check(module: nn.Module) -> None:
    modules = modules_in(module)
    assert [(path, id(m)) for path, m in modules] == [(path, id(m)) for path, m in module.named_modules()]
    for table, listed in (("_parameters", module.named_parameters()), ("_buffers", module.named_buffers())):
        assert [(name, id(t)) for name, t in members_of(modules, table)] == [(name, id(t)) for name, t in listed]
    assert list(map(id, tensors_in(module))) == list(map(id, (*module.parameters(), *module.buffers())))


def test_what_is_shared_is_listed_once_and_in_torchs_order() -> None:
    _check(_Shared())
    _check(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2))
    _check(nn.ReLU())


def test_scripted_modules_are_listed_too() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    modules = modules_in(scripted)
    assert [path for path, _ in modules] == [path for path, _ in scripted.named_modules()]
    assert [name for name, _ in members_of(modules, "_parameters")] == [n for n, _ in scripted.named_parameters()]


def test_a_module_that_lists_itself_otherwise_is_asked() -> None:
    module = _Own()
    assert [m for _, m in modules_in(module)] == [module]
    assert tensors_in(module) == []
