"""``.pt2`` files: inspected, then loaded."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path as FilePath
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.errors import ProgramError
from driftscope.programs.pt2_contents import inspect_archive

_LOGGERS = ("torch.export", "torch._export", "torch.export.pt2_archive._package", "torch._export.serde.serialize")


def read_exported(path: FilePath) -> ExportedProgram:
    """Load an exported program without unpickling anything but tensors.

    Raises
    ------
    ProgramError
        If the file is missing, damaged, holds what would have to be executed, or is refused by this torch.
    """
    if not path.is_file():
        raise ProgramError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise ProgramError(f"{path} is not a .pt2 archive, or is truncated")
    left_out = inspect_archive(path)
    return _load(_without(path, left_out) if left_out else path, path)


def _without(path: FilePath, left_out: set[str]) -> io.BytesIO:
    """Return the archive with some members empty, which torch reads as "none"."""
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            target.writestr(name, b"" if name in left_out else source.read(name))
    copy.seek(0)
    return copy


def _load(source: Any, path: FilePath) -> ExportedProgram:
    # torch logs a traceback before it raises; the sentence below is what the user needs.
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(source)
    except Exception as error:
        # Anything a newer or damaged schema may raise; the file is the user's.
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProgramError(
            f"{path} cannot be loaded by torch {torch.__version__}: {words[:300]}"
            " (a program whose inputs or outputs are classes of a library, as in transformers, needs that library"
            " imported first)"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
