"""How a transform is written: names, other names, options, and compositions."""

from __future__ import annotations

import difflib
import re
from typing import Any

from driftscope.errors import InputError
from driftscope.transforms.transforming import KINDS, Level

# Other ways to write a transform with its options.
_ALIASES: dict[str, Level] = {
    "vmap_error": Level("vmap", {"randomness": "error"}),
    "vmap_different": Level("vmap", {"randomness": "different"}),
    "vmap_same": Level("vmap", {"randomness": "same"}),
    "vmap_chunk": Level("vmap", {"chunk_size": 1}),
    "vmap_chunk1": Level("vmap", {"chunk_size": 1}),
    "vmap_chunk_1": Level("vmap", {"chunk_size": 1}),
    "vmap_chunked": Level("vmap", {"chunk_size": 1}),
    "compile_eager": Level("compile", {"backend": "eager"}),
    "compile_aot_eager": Level("compile", {"backend": "aot_eager"}),
    "compile_aot": Level("compile", {"backend": "aot_eager"}),
    "compile_inductor": Level("compile", {"backend": "inductor"}),
    "compile_fullgraph": Level("compile", {"backend": "eager", "fullgraph": True}),
    "export_strict": Level("export", {"strict": True}),
    "export_non_strict": Level("export", {"strict": False}),
    "export_nonstrict": Level("export", {"strict": False}),
}

# Words that may stand in parentheses as an option: compile(eager), export(strict), vmap(different).
_WORDS: dict[str, dict[str, dict[str, Any]]] = {
    "vmap": {word: {"randomness": word} for word in ("error", "different", "same")},
    "compile": {
        **{word: {"backend": word} for word in ("eager", "aot_eager", "inductor")},
        "fullgraph": {"backend": "eager", "fullgraph": True},
    },
    "export": {"strict": {"strict": True}, "non_strict": {"strict": False}, "nonstrict": {"strict": False}},
}
_OPTIONS = {"vmap": {"randomness", "chunk_size"}, "compile": {"backend", "fullgraph"}, "export": {"strict"}}


def levels_of(text: str) -> tuple[Level, ...]:
    """Read a transform as a user writes it, outermost first.

    ``"vmap"``, ``"vmap(grad)"``, ``"vmap[chunk_size=1]"``, ``"compile_eager"``, ``"export(strict)"``.

    Raises
    ------
    InputError
        If a name or an option is unknown; the nearest name is given.
    """
    match = re.fullmatch(r"\s*([\w\- :]+?)\s*(?:\[([^\]]*)\])?\s*(?:\((.*)\))?\s*", text) if text.strip() else None
    if match is None:
        raise InputError(f"cannot read the transform {text!r}; write 'vmap', 'vmap(grad)' or 'vmap[chunk_size=1]'")
    name, options, inner = match.groups()
    level = _level(name, options or "")
    if not inner:
        return (level,)
    parts = [part.strip() for part in inner.split(",")]
    if all(("=" in part and "(" not in part) or _word(part) in _WORDS.get(level.name, {}) for part in parts):
        return (_with(level, parts),)
    return (level, *levels_of(inner))


def _word(text: str) -> str:
    return re.sub(r"[\s\-:]+", "_", text.strip().strip("'\"").lower())


def _level(name: str, options: str) -> Level:
    word = _word(name)
    if word in _ALIASES:
        level = _ALIASES[word]
    elif word in KINDS:
        level = Level(word)
    else:
        near = difflib.get_close_matches(word, [*KINDS, *_ALIASES], n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(KINDS)}"
        raise InputError(f"there is no transform {name.strip()!r}; {hint}")
    return _with(level, [part for part in options.split(",") if part.strip()])


def _with(level: Level, parts: list[str]) -> Level:
    options = dict(level.options)
    for part in parts:
        if _word(part) in _WORDS.get(level.name, {}):
            options.update(_WORDS[level.name][_word(part)])
            continue
        key, _, value = (item.strip() for item in part.partition("="))
        if key not in _OPTIONS.get(level.name, set()):
            known = ", ".join(sorted(_OPTIONS.get(level.name, set()))) or "none"
            raise InputError(f"{level.name} has no option {key!r} here; its options are: {known}")
        constants: dict[str, Any] = {"True": True, "False": False, "None": None}
        options[key] = int(value) if value.isdigit() else constants.get(value, value.strip("'\""))
    return Level(level.name, options)
