"""AOTInductor: a program compiled ahead of time, asked in a worker process because it reads out of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.errors import RuntimeRefused
from driftscope.programs import pytrees as pytree
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.isolation.failures import WorkerDied
from driftscope.shapes.probe import aoti_serving
from driftscope.shapes.probe.judging_runs import Answer, Crashed, Ran, Refused, first_line, silence
from driftscope.shapes.probe.runners import Call, pool, scratch_file


class AotiRunner:
    """A compiled package in a worker process.

    Parameters
    ----------
    exported : ExportedProgram
    name : str

    Raises
    ------
    RuntimeRefused
        If it cannot be compiled; a C++ compiler is needed.
    """

    def __init__(self, exported: ExportedProgram, name: str = "aoti"):
        self.name = name
        self.path = scratch_file(".pt2")
        try:
            with silence(), torch.no_grad():
                torch._inductor.aoti_compile_and_package(exported, package_path=str(self.path))
        except Exception as error:  # a compiler may fail in any way at all; its words are the finding
            raise RuntimeRefused("AOTInductor", "load", first_line(error)) from error

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        """Run at each call, in order."""
        return [self._answer([array_of(leaf) for leaf in pytree.tree_leaves(call)]) for call in calls]

    def _answer(self, leaves: list[Any]) -> Answer:
        try:
            served = pool().submit(aoti_serving.serve, str(self.path), leaves).result()
        except WorkerDied as error:
            return Crashed(error.words)
        if served[0] == "refused":
            return Refused(served[1], served[2])
        return Ran([tensor_of(value) for value in served[1]], flat=True)
