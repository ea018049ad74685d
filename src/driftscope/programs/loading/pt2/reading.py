"""``.pt2`` files: checked, packed again, loaded."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path as FilePath

import torch
from torch.export import ExportedProgram

from driftscope.errors import ProgramError
from driftscope.programs.archives import opened
from driftscope.programs.loading.pt2.archive import packed_again

_LOGGERS = ("torch.export", "torch._export", "torch.export.pt2_archive._package", "torch._export.serde.serialize")


def read_exported(path: FilePath) -> ExportedProgram:
    """Load an exported program; nothing in the file is unpickled, evaluated, imported or called.

    Raises
    ------
    ProgramError
        If the file is missing, damaged, holds more than data, or is refused by this torch.
    """
    if not path.is_file():
        raise ProgramError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise ProgramError(f"{path} is not a .pt2 archive, or is truncated")
    with opened(path, str(path), ProgramError) as archive:
        packed = packed_again(archive, str(path))
    return _load(packed, str(path))


def read_exported_bytes(data: bytes, what: str) -> ExportedProgram:
    """Load what ``torch.export.save`` wrote into memory, as :func:`read_exported` loads a file.

    Raises
    ------
    ProgramError
        As there; ``what`` is its name.
    """
    with opened(data, what, ProgramError) as archive:
        packed = packed_again(archive, what)
    return _load(packed, what)


def _load(source: io.BytesIO, what: str) -> ExportedProgram:
    # torch logs a traceback before it raises; the sentence below is what the user needs.
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(source)
    except Exception as error:
        # Anything that a program of the right form and the wrong content may raise; the file is the user's.
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProgramError(f"{what} cannot be loaded by torch {torch.__version__}: {words[:300]}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
