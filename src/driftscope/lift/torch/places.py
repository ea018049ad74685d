"""Where a call came from: the module path by hooks, the user's line by frames."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from driftscope.lift.torch.entries import CallPlace
from driftscope.programs.state.module_tree import modules_in
from driftscope.records.user_code import is_users

_LIFT = os.path.dirname(os.path.dirname(__file__))
# Rooms that stand between a user's line and torch; the demo's models are user code.
_OURS = (_LIFT, *(os.path.join(os.path.dirname(_LIFT), room) for room in ("accumulation", "invariance", "programs")))
_ROOTS = tuple(os.path.join(folder, "") for folder in (os.path.dirname(torch.__file__), *_OURS))


@functools.cache
def is_internal(file: str) -> bool:
    """Tell torch's and driftscope's own files, and generated code, from the user's."""
    return file.startswith(_ROOTS) or file.startswith("<") or file == contextlib.__file__


class Places:
    """Follows the modules that are being called, and finds the user's line.

    Parameters
    ----------
    module : torch.nn.Module or None
        The program, whose submodules have paths. Modules called by a plain function are adopted when they are
        first called, with their own names.
    operation : callable
        What the call in progress is named in the user's own words; empty for torch's name.
    """

    def __init__(self, module: torch.nn.Module | None, operation: Callable[[], str] = str):
        self._operation = operation
        self._paths: dict[int, str] = {}
        self._stack: list[str] = []
        self.modules: list[torch.nn.Module] = []
        if module is not None:
            self._adopt(module)

    def _adopt(self, module: torch.nn.Module) -> None:
        self.modules.append(module)
        for path, child in modules_in(module):
            self._paths.setdefault(id(child), path.replace("_orig_mod.", "").removesuffix("_orig_mod"))

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) not in self._paths:
            self._adopt(module)
        self._stack.append(self._paths[id(module)])

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow module calls; global hooks, because a module's own hooks switch its fused path off."""
        # mypy sees the hooks' result types; any other value than None would replace inputs.
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def here(self, stop: CodeType) -> CallPlace:
        """Find the place of the call in progress: the user's innermost line, not beyond the frame that runs `stop`.

        Where the model is a library's alone, the library's innermost line.
        """
        module = self._stack[-1] if self._stack else None
        named = self._operation()
        library: CallPlace | None = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not stop:
            file = frame.f_code.co_filename
            if not is_internal(file):
                if is_users(file):
                    return CallPlace(module, file, frame.f_lineno, operator=named)
                library = library or CallPlace(module, file, frame.f_lineno, operator=named)
            frame = frame.f_back
        return library or CallPlace(module, operator=named)
