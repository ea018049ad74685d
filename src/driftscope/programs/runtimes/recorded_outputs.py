"""Outputs that were computed elsewhere: arrays at hand, .npz files, Polygraphy's saved outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, NoReturn

from driftscope.errors import CannotLift, InputError, ProgramError
from driftscope.programs.arrays import tensor_of
from driftscope.programs.feeding.feeds import Inputs
from driftscope.programs.feeding.files import file_digest, is_input_file, read_inputs, read_polygraphy_json
from driftscope.programs.protocol import Bound, Program
from driftscope.programs.value_trees import flatten, unflatten

# Every layer that stores numbers has a tensor whose name ends like this; no output is called so.
_OF_WEIGHTS = (".weight", ".weight_g", ".in_proj_weight", ".weight_ih_l0")


class RecordedProgram(Program):
    """Outputs at hand, which stand for a program that is not here.

    Parameters
    ----------
    outputs : object
        A tree of tensors.
    name : str
    origin : dict
        Plain data about where they come from.
    """

    kind = "recorded"

    def __init__(self, outputs: Any, name: str, origin: Mapping[str, Any] | None = None):
        super().__init__(name, Inputs())
        leaves, spec = flatten(outputs)
        self.outputs = unflatten([tensor_of(leaf) for _, leaf in leaves], spec)
        # What a session returns, a list or a dictionary of arrays, or one of them, says nothing of the tree it was in.
        self.flat = isinstance(outputs, Mapping) or all(len(path.keys) < 2 for path, _ in leaves)
        self.origin = dict(origin or {})

    @property
    def runtime(self) -> str:
        return str(self.origin.get("runner", "weights" if self.holds_weights else "recorded outputs"))

    def bind(self, inputs: Any = None) -> Bound:
        """Accept anything: the outputs were computed already."""
        return Bound(self, (), {}, {}, {})

    def __call__(self, inputs: Any = None) -> Any:
        leaves, spec = flatten(self.outputs)
        return unflatten([leaf for _, leaf in leaves], spec)

    def describe(self) -> dict[str, Any]:
        return super().describe() | self.origin

    def lift_source(self, inputs: Any = None) -> NoReturn:
        """Refuse: results are all that is here."""
        raise CannotLift(f"{self.name} is results alone, without the program that computed them")

    @property
    def holds_weights(self) -> bool:
        """Whether this is a file of weights: told from its names, as a state_dict has them."""
        named = isinstance(self.outputs, Mapping)
        return "path" in self.origin and named and any(str(n).endswith(_OF_WEIGHTS) for n in self.outputs)


def read_outputs(path: FilePath) -> RecordedProgram:
    """Read outputs from a file: .npz, .npy, .pt, .safetensors, or JSON that ``polygraphy run --save-outputs`` wrote.

    Raises
    ------
    ProgramError
        If the file cannot be read or holds no outputs.
    """
    try:
        if not is_input_file(path):
            raise ProgramError(
                f"{path} is not a file of outputs; give .npz, .npy, .pt, .safetensors or Polygraphy JSON"
            )
        if path.suffix.lower() != ".json":
            tree, digest = read_inputs(path)
            return RecordedProgram(tree, path.name, {"path": str(path), "sha256": digest})
        if not path.is_file():
            raise ProgramError(f"{path}: no such file")
        runner, outputs = _polygraphy_results(path, read_polygraphy_json(path))
    except InputError as error:
        raise ProgramError(str(error)) from error
    origin = {"path": str(path), "sha256": file_digest(path), "runner": runner}
    return RecordedProgram(outputs, path.name, origin)


def _polygraphy_results(path: FilePath, data: Any) -> tuple[str, dict[str, Any]]:
    """Return the runner's name and its outputs from Polygraphy's run results."""
    results: Any = data.get("lst") if isinstance(data, dict) else None
    try:
        runner, iterations = results[0]
        outputs = iterations[0]["outputs"]
        arrays = {
            name: value.get("values", value) if isinstance(value, dict) else value for name, value in outputs.items()
        }
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise ProgramError(f"{path} holds no Polygraphy run results (polygraphy run --save-outputs)") from error
    if len(iterations) > 1 or len(results) > 1:
        raise ProgramError(f"{path} holds {len(results)} runners and {len(iterations)} iterations; save one of each")
    if not arrays:
        raise ProgramError(f"{path} holds no outputs")
    return str(runner), arrays
