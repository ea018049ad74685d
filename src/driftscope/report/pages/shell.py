"""What every page has in common: one file, no request, its record inside, and a policy that allows nothing else."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from driftscope.report.pages import gauges

RECORD_ID = "driftscope-record"

# In JSON these characters can only stand inside strings, where an escape means the same. Without them no name can
# close the script element it is stored in.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


_SCRIPTS = ("copying.js", "page.js", "sheet.js")


def page(record: Mapping[str, Any], title: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Fill the page template.

    Parameters
    ----------
    record : mapping
        The record as plain JSON data; it is stored in the page.
    title : str
    entries : sequence of mapping
        What is drawn, one below the other: see ``sheet_view.document``.

    Returns
    -------
    str
        Works offline, without scripts too; its Content-Security-Policy allows nothing but the page's own style and
        script, by hash, and pictures that are part of the page.
    """
    css = asset("page.css") + asset("sheet.css")
    script = "\n".join(asset(name) for name in _SCRIPTS)
    policy = "; ".join(
        ("default-src 'none'", f"style-src '{_hash(css)}'", f"script-src '{_hash(script)}'", "img-src data:",
         "base-uri 'none'", "form-action 'none'")
    )  # fmt: skip
    return templates().get_template("page.html").render(
        title=title, entries=entries, many=any(e["above"] for e in entries), gauge=gauges.AXIS, policy=policy,
        css=Markup(css), script=Markup(script), record_id=RECORD_ID, record=embedded(record),
    )  # fmt: skip


def embedded(data: Any) -> Markup:
    """Write JSON data so that it can stand in a script element."""
    return Markup(json.dumps(data, separators=(",", ":")).translate(_ESCAPES))


def picture_source(svg: str) -> str:
    """Return a drawing as an address that is its content: drawn as an image, nothing in it can run or be fetched."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def asset(name: str) -> str:
    """Return a file of this room."""
    return resources.files("driftscope.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of this room."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = _breakable
    environment.filters["whole"] = _whole
    return environment


_LONG = 20  # letters; shorter names stand on one line everywhere


def _breakable(path: str) -> Markup:
    """Allow a long name to be broken where a part of it begins or ends rather than anywhere in a word."""
    if " " in path:
        return Markup(" ").join(_breakable(word) for word in path.split(" "))
    if len(path) <= _LONG:
        return Markup.escape(path)
    # Escaped piece by piece: an escape holds no character at which it may be broken.
    parts = re.split(r"(?<=[/_:])|(?=[.\[(])", path)
    return Markup("<wbr>").join(Markup.escape(part) for part in parts if part)


# Numbers in which a browser sees a place to break: a sign inside, or a percent sign apart.
_NUMBER = re.compile(r"\d[\d.,]*(?:e[-+]\d+| %)")


def _whole(text: str) -> Markup:
    """Keep each number of a sentence on one line."""
    parts, end = [], 0
    for found in _NUMBER.finditer(text):
        number = Markup('<span class="whole">{}</span>').format(found.group())
        parts += [Markup.escape(text[end : found.start()]), number]
        end = found.end()
    return Markup("").join([*parts, Markup.escape(text[end:])])
