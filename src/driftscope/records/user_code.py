"""Whose code a line is, and how a path is written so that a reader elsewhere understands it.

A place is the innermost line of the user's own code: inside the project (pytest's rootdir, else the current folder) if
there is one, else any that no library holds.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

# What Python, torch.fx, torch.compile and dataclasses call the code that they make.
_MADE = ("<frozen", "<eval_with_key", "<torch", "<__", "<attrs generated", "<makefun")
_INSTALLED = re.compile(r"(?:[A-Za-z]:)?[^\s\"'<>:|(]*[\\/](?:site|dist)-packages[\\/]")
# Of a trace written on another machine only the text is known.
_STANDARD = re.compile(r"[\\/]lib[\\/]python3\.\d+[\\/]")


@functools.cache
def _not_users() -> tuple[str, ...]:
    """Folders whose code is not the user's: Python's own, installed packages, and this one."""
    paths = sysconfig.get_paths()
    ours = str(Path(__file__).resolve().parents[1])
    folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], ours}
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        folders.add(str(Path(torch.__file__).parent))
    return tuple(f + os.sep for f in folders)


def file_of(module: object) -> str:
    """The file that a module was read from; empty where there is none."""
    file = getattr(module, "__dict__", {}).get("__file__")  # some modules answer to any name
    return file if isinstance(file, str) else ""


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a file holds the user's code: not the standard library, an installed package, or ours."""
    if file.startswith("<"):
        # Notebook cells and functions typed or exec'd have such names too, whatever stands between the brackets.
        return not file.startswith(_MADE)
    return not (_INSTALLED.match(file) or _STANDARD.search(file) or file.startswith(_not_users()))


def innermost(files: Sequence[str], root: str | Path | None = None) -> int | None:
    """Return the position of the user's own line among the files of a trace, the outermost first; None for none."""
    users = [index for index, file in enumerate(files) if is_users(file)]
    folder = Path(root or os.getcwd())
    inside = [index for index in users if _below(files[index], folder)]
    chosen = inside or users
    return chosen[-1] if chosen else None


def calling_line(root: str | Path | None = None) -> tuple[str, int] | None:
    """Return file and line of the user's innermost frame that is running now."""
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    found.reverse()
    index = innermost([file for file, _ in found], root)
    return None if index is None else found[index]


def _below(file: str, root: Path) -> bool:
    return file.startswith(str(root).rstrip(os.sep) + os.sep)


def written(file: str, root: str | Path | None = None) -> str:
    """Write a path without what only one machine knows: from the project's folder, a package, or its last two parts."""
    short = str(portable(file, root))
    if not Path(short).is_absolute() and not re.match(r"[A-Za-z]:|~", short):
        return short.replace("\\", "/")
    return "/".join(short.replace("\\", "/").split("/")[-2:])


def portable(value: Any, root: str | Path | None = None) -> Any:
    """Return JSON data, or a text, in which no path leads through the folders of this machine.

    The project's folder is left out, as is everything before an installed package; the home folder is ``~``.
    """
    if isinstance(value, Mapping):
        return {key: _field(key, item, root) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item, root) for item in value]
    if not isinstance(value, str) or ("/" not in value and "\\" not in value):
        return value
    folder, home = str(Path(root or os.getcwd())).rstrip(os.sep), str(Path.home())
    text = value.replace(folder + os.sep, "") if len(folder) > 1 else value
    text = _INSTALLED.sub("", text)
    return text.replace(home + os.sep, "~" + os.sep) if len(home) > 1 else text


def _field(key: object, item: Any, root: str | Path | None) -> Any:
    # Fields named so hold the path of a source file and nothing else.
    return written(item, root) if key == "file" and isinstance(item, str) else portable(item, root)
