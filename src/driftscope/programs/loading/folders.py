"""Folders and files of other tools: what is loaded, and what is named with the way to compare it all the same."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from driftscope.errors import ProgramError
from driftscope.programs.loading.hugging_face import hugging_face_model
from driftscope.records.words import listed

_NAMED = 5
# How the numbers of a file that nothing here can run are brought all the same.
_RECORDED = "run it there, save its outputs as .npz, and compare with that file"
# suffix -> what such a file is
_ELSEWHERE = {
    ".gguf": "weights for llama.cpp",
    ".tflite": "a LiteRT (TensorFlow Lite) model",
    ".engine": "a TensorRT engine",
    ".plan": "a TensorRT engine",
    ".trt": "a TensorRT engine",
    ".mlmodel": "a Core ML model",
    ".mlpackage": "a Core ML model",
    ".pb": "a TensorFlow graph",
    ".h5": "a Keras model",
    ".keras": "a Keras model",
}


def is_torchscript(path: Path) -> bool:
    """Whether a ``.pt`` file holds a TorchScript program: told from the names in the archive, nothing is loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.partition("/")[2].startswith("code/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError):
        return False  # no archive that can be listed: whoever reads it says what it is


def starts_an_archive(path: Path) -> bool:
    """Whether a file begins as zip archives do, whole or not."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def refuse_known(path: Path) -> None:
    """Refuse a file of a kind that only another tool can run, and say how its outputs are compared.

    Raises
    ------
    ProgramError
        If the suffix is one of those.
    """
    what = _ELSEWHERE.get(path.suffix.lower())
    if what is not None:
        polygraphy = " (polygraphy run --save-outputs writes what driftscope reads)" if "TensorRT" in what else ""
        raise ProgramError(f"{path} is {what}, which driftscope cannot run: {_RECORDED}{polygraphy}")


def pairs_in(a: str, b: str) -> list[tuple[str, Path, Path]]:
    """Pair the ONNX files of two folders by name: name, path in each; empty unless both hold several.

    Raises
    ------
    ProgramError
        If both hold several and no name is in both.
    """
    found = _models_of(a, b)
    if not all(len(files) > 1 for files in found):
        return []
    common = [name for name in found[0] if name in found[1]]
    if not common:
        raise ProgramError(f"{a} and {b} hold no .onnx file of the same name")
    return [(name, found[0][name], found[1][name]) for name in common]


def _models_of(*folders: str) -> list[dict[str, Path]]:
    return [{f.name: f for f in sorted(Path(p).glob("*.onnx"))} if Path(p).is_dir() else {} for p in folders]


def left_alone(a: str, b: str) -> str:
    """Say which ONNX files only one of two folders holds, so that they have no counterpart; empty where none."""
    of_a, of_b = _models_of(a, b)
    parts = []
    for folder, own, other in ((a, of_a, of_b), (b, of_b, of_a)):
        names = [name for name in own if name not in other]
        few = listed(names, _NAMED)
        parts += [f"only {folder} holds {few}"] if names else []
    return f"Not compared: {'; '.join(parts)}." if parts else ""


def model_in(folder: Path) -> Path | Any:
    """Find the model in a folder: an ONNX file, or a Hugging Face model built with transformers.

    Returns
    -------
    Path or torch.nn.Module
        The path of the one ``.onnx`` file (``model.onnx`` where there are several), or the module that
        ``config.json`` describes with the folder's safetensors in it, in evaluation mode.

    Raises
    ------
    ProgramError
        If there is neither, transformers is needed and not installed, or the class that ``config.json`` names is not
        one of transformers' own.
    """
    files = sorted(folder.glob("*.onnx"))
    if len(files) == 1 or (folder / "model.onnx") in files:
        return folder / "model.onnx" if len(files) > 1 else files[0]
    if files:
        few = ", ".join(f.name for f in files[:_NAMED]) + (", ..." if len(files) > _NAMED else "")
        raise ProgramError(f"{folder} is a folder that holds {len(files)} models: give one of {few}")
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return hugging_face_model(folder)
    raise ProgramError(
        f"{folder} is a folder that holds neither an .onnx file nor config.json with .safetensors;"
        " give the file of the model"
    )
