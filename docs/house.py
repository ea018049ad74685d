"""The picture of the house, drawn from the code: ``python docs/house.py`` writes ``docs/images/house.svg``.

A row is a layer of the import contract in ``pyproject.toml``; a box is a room with the rooms inside it; a line is an
import, and lines only go down.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "driftscope"
PICTURE = ROOT / "docs" / "images" / "house.svg"
_WIDTH, _ROW, _BOX, _GAP = 980, 96, 62, 16


def layers() -> list[list[str]]:
    """Return the rooms of each layer, the topmost first, as the import contract names them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(c["layers"] for c in contracts if c["type"] == "layers" and "driftscope.inquiry" in c["layers"])
    return [[room.strip().removeprefix("driftscope.") for room in row.split("|")] for row in rows]


def rooms_inside(room: str) -> list[str]:
    """Return the folders of a room that hold code."""
    folder = PACKAGE / room
    return sorted(path.name for path in folder.glob("*/") if (path / "__init__.py").is_file())


def purpose(room: str) -> str:
    """Return what a room says it is for: the first line of its docstring."""
    path = PACKAGE / room / "__init__.py" if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.split("\n", 1)[0]


def imports() -> Counter[tuple[str, str]]:
    """Count the imports from one room of another, lazy and type-checking ones included."""
    found: Counter[tuple[str, str]] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("driftscope."):
                other = str(node.module).split(".")[1]
                if other != room:
                    found[room, other] += 1
    return found


def picture() -> str:
    """Return the SVG."""
    rows, places = layers(), {}
    for level, row in enumerate(rows):
        wide = (_WIDTH - _GAP * (len(row) + 1)) / len(row)
        for index, room in enumerate(row):
            places[room] = (_GAP + index * (wide + _GAP), _GAP + level * _ROW, wide)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {len(rows) * _ROW + _GAP}" '
        'font-family="sans-serif" font-size="13" role="img" aria-label="The rooms of driftscope and their imports">',
        f'<rect width="{_WIDTH}" height="{len(rows) * _ROW + _GAP}" fill="#ffffff"/>',
    ]
    for (upper, lower), count in sorted(imports().items()):
        if upper in places and lower in places and places[upper][1] < places[lower][1]:
            x1, y1, w1 = places[upper]
            x2, y2, w2 = places[lower]
            thick = min(1 + count / 25, 6)
            parts.append(
                f'<path d="M{x1 + w1 / 2:.0f},{y1 + _BOX} C{x1 + w1 / 2:.0f},{y1 + _ROW} {x2 + w2 / 2:.0f},{y2 - 34} '
                f'{x2 + w2 / 2:.0f},{y2}" fill="none" stroke="#9db4c0" stroke-width="{thick:.1f}" opacity="0.6"/>'
            )
    for room, (x, y, wide) in places.items():
        inside = ", ".join(rooms_inside(room))
        said, fits = purpose(room), int(wide / 5.4)
        said = said if len(said) <= fits else said[: fits - 2].rsplit(" ", 1)[0] + " …"
        parts.append(
            f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{_BOX}" rx="7" fill="#eef3f6" stroke="#5b7c8d"/>'
            f'<text x="{x + 10:.0f}" y="{y + 20}" font-weight="bold" fill="#1c2f38">{escape(room)}</text>'
            f'<text x="{x + 10:.0f}" y="{y + 37}" font-size="11" fill="#47606c">{escape(said)}</text>'
            f'<text x="{x + 10:.0f}" y="{y + 53}" font-size="11" fill="#7a4b1e">{escape(inside)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
