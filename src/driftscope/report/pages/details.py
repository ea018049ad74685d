"""A finding, and any measurement, in the words of a page: text and lists that a template can draw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.plain import to_plain
from driftscope.records.rules import RULES
from driftscope.records.user_code import written
from driftscope.report import wording

_DEEPEST = 4  # levels of a mapping drawn as a list; deeper ones are written as JSON


def finding(record: Finding) -> dict[str, Any]:
    """Return one finding in the words of the page."""
    rule = RULES.get(record.code)
    where = record.where
    source = written(where.file) if where.file else ""
    place = (
        ("output", where.output),
        ("node", f"{where.node or ''} {f'({where.operator})' if where.operator else ''}".strip()),
        ("module", where.module),
        ("source", source + (f":{where.line}" if source and where.line else "")),
    )
    tried = {True: "tried: it works", False: "tried: not enough", None: ""}[record.verified]
    return {
        "code": wording.one_line(record.code),
        "title": rule.title if rule else "",
        "meaning": rule.meaning if rule else "",
        "note": record.note,
        "what": wording.one_line(record.what),
        "why": wording.one_line(record.why),
        "fix": wording.clean(record.fix),
        "tried": tried,
        "worked": record.verified is True,
        "place": [(label, wording.one_line(text)) for label, text in place if text],
        "line": where.line,
        "expression": wording.clean(where.expression or ""),
        "evidence": tree(record.evidence),
    }


def tree(value: Any, depth: int = 0) -> Any:
    """Turn JSON data into text and lists of ``(name, subtree)`` pairs that the template can draw."""
    if isinstance(value, Mapping):
        if depth >= _DEEPEST:
            return wording.clean(json.dumps(to_plain(value), ensure_ascii=False))
        drawn = ((wording.one_line(key), tree(item, depth + 1)) for key, item in value.items())
        return [(key, item) for key, item in drawn if item not in ("", [])]
    if isinstance(value, (list, tuple)):
        if all(not isinstance(item, (Mapping, list, tuple)) for item in value):
            leaves = [_leaf(item) for item in value]
            return ("\n" if any(" " in leaf for leaf in leaves) else ", ").join(leaves)
        return tree({str(i): item for i, item in enumerate(value)}, depth)
    return _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return wording.clean(value)
