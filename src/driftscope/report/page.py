"""One self-contained page per record: no network, no scripts but its own, the record itself inside."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from driftscope.errors import RecordError
from driftscope.records.collection import COLLECTION_SCHEMA, Collection
from driftscope.records.comparison import SCHEMA, Comparison
from driftscope.records.files import PAGE_SUFFIXES, read_text
from driftscope.report import gauges, view

_RECORD_ID = "driftscope-record"
_EMBEDDED = re.compile(rf'<script type="application/json" id="{_RECORD_ID}">(.*?)</script>', re.DOTALL)
_DEEPEST = 60  # levels of nesting a record may have; ours have fewer than ten

# In JSON these characters can only stand inside strings, where an escape means the same. Without them no name can
# close the script element it is stored in.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def render(record: Comparison | Collection) -> str:
    """Write a record as one HTML page.

    Returns
    -------
    str
        Works offline, without scripts too; its Content-Security-Policy allows nothing but the page's own style and
        script, by hash. :func:`read` gets the record back.
    """
    css, script = _asset("page.css"), _asset("page.js")
    policy = "; ".join(
        ("default-src 'none'", f"style-src '{_hash(css)}'", f"script-src '{_hash(script)}'", "base-uri 'none'",
         "form-action 'none'")
    )  # fmt: skip
    embedded = json.dumps(record.to_dict(), separators=(",", ":")).translate(_ESCAPES)
    return _templates().get_template("page.html").render(
        **view.document(record), policy=policy, css=Markup(css), script=Markup(script), record_id=_RECORD_ID,
        record=Markup(embedded), gauge_width=gauges.WIDTH, rounding_x=gauges.floors_position(1.5),
        large_x=gauges.floors_position(2.5),
    )  # fmt: skip


def fragment(comparison: Comparison) -> str:
    """Write a compact version for notebooks: no scripts, no style sheet that could reach the notebook's own."""
    return _templates().get_template("fragment.html").render(e=view.excerpt(comparison))


def read(path: str | Path) -> dict[str, Any]:
    """Return the record a page or a ``.json`` file holds, as plain data.

    Raises
    ------
    RecordError
        If the file is missing, is not one of ours, or is damaged.
    """
    text = read_text(path)
    name = str(path)
    if Path(path).suffix.lower() in PAGE_SUFFIXES:
        found = _EMBEDDED.search(text)
        if found is None:
            raise RecordError(f"{name!r} holds no record: it is not a driftscope page, or it was cut short")
        text = found.group(1)
    try:
        data = json.loads(text)
    except ValueError as error:  # also for whole numbers of thousands of digits
        raise RecordError(f"{name!r} is damaged: {error}") from error
    except RecursionError as error:
        raise RecordError(f"{name!r} is nested too deeply to be a record") from error
    if not isinstance(data, dict):
        raise RecordError(f"{name!r} is not a record: it holds a {type(data).__name__}, not an object")
    if _depth(data) > _DEEPEST:
        raise RecordError(f"{name!r} is nested too deeply to be a record")
    return data


def load(path: str | Path) -> Comparison | Collection:
    """Return the record a page or a ``.json`` file holds.

    Raises
    ------
    RecordError
        As :func:`read`, and if the record's schema is unknown.
    """
    data = read(path)
    if data.get("schema") == COLLECTION_SCHEMA:
        return Collection.from_dict(data)
    if data.get("schema") == SCHEMA:
        return Comparison.from_dict(data)
    raise RecordError(
        f"{str(path)!r} holds no record this version can read (schema {data.get('schema')!r}); "
        f"known: {SCHEMA}, {COLLECTION_SCHEMA}"
    )


def _depth(data: Any) -> int:
    deepest, waiting = 0, [(data, 1)]
    while waiting and deepest <= _DEEPEST:
        value, level = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        deepest = max(deepest, level)
        waiting.extend((item, level + 1) for item in inner if isinstance(item, (dict, list)))
    return deepest


def _asset(name: str) -> str:
    return resources.files("driftscope.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(path: str) -> Markup:
    """Allow a path to be broken where it steps down rather than anywhere in a word."""
    step = Markup("<wbr>")
    return Markup.escape(path).replace(".", step + ".").replace("[", step + "[")
