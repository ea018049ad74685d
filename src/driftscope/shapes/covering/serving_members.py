"""ONNX files as programs of a cover, and behind the checks that the exporter dropped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing, InputError, RuntimeRefused
from driftscope.programs.arrays import real_array_of, tensor_of
from driftscope.programs.bare_sessions import bare_session
from driftscope.shapes.probe.judging_runs import first_line


class OnnxMember:
    """An ONNX file called with the leaves of the model's inputs, run by onnxruntime in this process.

    Parameters
    ----------
    path : Path
    inputs : tuple of (str, int)
        Each input of the file, and which leaf it is fed.
    """

    def __init__(self, path: Path, inputs: tuple[tuple[str, int], ...]):
        self.path = path
        self.inputs = tuple((str(name), int(place)) for name, place in inputs)

    @cached_property
    def session(self) -> Any:
        """The onnxruntime session, made when it is first needed."""
        try:
            return bare_session(str(self.path))
        except DependencyMissing:
            raise
        except Exception as error:  # onnxruntime's errors share no class of their own
            raise RuntimeRefused("onnxruntime", "load", first_line(error)) from error

    @property
    def names(self) -> list[str]:
        """Names of the file's inputs."""
        return [value.name for value in self.session.get_inputs()]

    def run(self, *leaves: Any) -> list[Any]:
        """Run on leaves and return the leaves of the result, as tensors.

        Raises
        ------
        RuntimeRefused
            In onnxruntime's words.
        """
        feeds = {name: real_array_of(leaves[place]) for name, place in self.inputs}
        try:
            found = self.session.run(None, feeds)
        except Exception as error:  # as above
            raise RuntimeRefused("onnxruntime", "run", first_line(error)) from error
        return [tensor_of(value) for value in found]

    def copy_to(self, path: Path) -> None:
        """Copy the file, and the data beside it that it refers to."""
        shutil.copyfile(self.path, path)
        for beside in _external_files(self.path):
            shutil.copyfile(self.path.parent / beside, path.parent / beside)


def _external_files(path: Path) -> Sequence[str]:
    import onnx

    from driftscope.programs.loading.external_data import is_external, location_of, tensors_of

    model = onnx.load(str(path), load_external_data=False)
    names = {location_of(tensor) for tensor in tensors_of(model) if is_external(tensor)}
    if any(Path(name).name != name for name in names):
        raise InputError(f"{path.name} keeps data outside its folder; store it in one file")
    return sorted(names)
