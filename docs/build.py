"""Check the documentation and render it as plain HTML pages, without network.

``make docs`` runs this. It fails when a link or an anchor between the Markdown pages (and the README) leads nowhere,
or when a generated reference page is out of date.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import click
import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = DOCS / "_build"
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_LAYOUT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{{ title }} · driftscope</title>
<style>
body { max-width: 46rem; margin: 3rem auto; padding: 0 1.2rem; font: 16px/1.6 system-ui, sans-serif; }
pre { overflow-x: auto; padding: .9rem 1.1rem; border: 1px solid color-mix(in srgb, currentColor 18%, transparent);
  border-radius: 8px; font-size: .86rem; line-height: 1.5; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: .92rem; }
th, td { text-align: left; padding: .35rem .9rem .35rem 0; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
nav { font-size: .9rem; } img { max-width: 100%; }
</style></head><body><nav><a href="{{ home }}">driftscope</a></nav><main>{{ body }}</main></body></html>
"""


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown page: where it stands below the repository, what it says, where it can be entered."""

    path: str
    tokens: list[Token]
    anchors: frozenset[str] = field(default_factory=frozenset)

    @property
    def title(self) -> str:
        """The text of its first heading."""
        for index, token in enumerate(self.tokens):
            if token.type == "heading_open":
                return self.tokens[index + 1].content
        return self.path


def markdown() -> MarkdownIt:
    """Return the parser: CommonMark with tables, and no HTML passed through."""
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def read(path: str) -> Page:
    """Read one page and find its anchors, spelled as GitHub spells them."""
    tokens = markdown().parse((ROOT / path).read_text(encoding="utf-8"))
    anchors: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", tokens[index + 1].content.lower()).replace(" ", "-")
            seen = anchors.get(slug, 0)
            anchors[slug] = seen + 1
            token.attrSet("id", f"{slug}-{seen}" if seen else slug)
    return Page(path, tokens, frozenset(str(t.attrGet("id")) for t in tokens if t.type == "heading_open"))


def collect() -> dict[str, Page]:
    """Return every page of the documentation by its path below the repository."""
    below = sorted(p for p in DOCS.rglob("*.md") if BUILD not in p.parents)
    paths = [name for name in TOP_PAGES if (ROOT / name).exists()]
    return {path: read(path) for path in (*paths, *(p.relative_to(ROOT).as_posix() for p in below))}


def broken_links(pages: dict[str, Page]) -> list[str]:
    """Return one sentence for each link that leads nowhere."""
    broken = []
    for page in pages.values():
        for line, target in _links(page.tokens):
            problem = _problem(page.path, target, pages)
            if problem:
                broken.append(f"{page.path}:{line}: {target}: {problem}")
    return broken


def _links(tokens: list[Token]) -> list[tuple[int, str]]:
    found = []
    for block in tokens:
        for token in block.children or []:
            target = token.attrGet("href") or token.attrGet("src")
            if target is not None and token.type in ("link_open", "image"):
                found.append((block.map[0] + 1 if block.map else 0, str(target)))
    return found


def _problem(source: str, target: str, pages: dict[str, Page]) -> str:
    if _EXTERNAL.match(target):
        return ""
    path, _, anchor = unquote(target).partition("#")
    full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    if full.startswith(".."):
        return "leads out of the repository"
    if not (ROOT / full).exists():
        return f"there is no {full}"
    if anchor and full in pages and anchor not in pages[full].anchors:
        return f"{full} has no heading #{anchor}"
    return ""


def render(pages: dict[str, Page], build: Path) -> None:
    """Write every page as HTML below ``build``, with links between pages turned to HTML pages."""
    shutil.rmtree(build, ignore_errors=True)
    layout = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_LAYOUT)
    for page in pages.values():
        for block in page.tokens:
            for token in block.children or []:
                if token.type == "link_open":
                    token.attrSet("href", _html_link(page.path, str(token.attrGet("href")), pages))
        target = build / _html_name(page.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # html=False: what a page says is escaped, only Markdown becomes markup.
        body = Markup(markdown().renderer.render(page.tokens, markdown().options, {}))
        home = posixpath.relpath("index.html", posixpath.dirname(_html_name(page.path)) or ".")
        target.write_text(layout.render(title=page.title, body=body, home=home), encoding="utf-8")


def _html_name(path: str) -> str:
    return "index.html" if path == "README.md" else path.removesuffix(".md") + ".html"


def _html_link(source: str, target: str, pages: dict[str, Page]) -> str:
    path, hash_, anchor = target.partition("#")
    full = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
    if _EXTERNAL.match(target) or not path or full not in pages:
        return target
    return posixpath.relpath(_html_name(full), posixpath.dirname(_html_name(source)) or ".") + hash_ + anchor


def main() -> int:
    """Check, then render; return the exit code."""
    sys.path.insert(0, str(DOCS))
    import generate

    stale = [n for n, text in generate.pages().items() if not _same(generate.REFERENCE / n, text)]
    pages = collect()
    problems = [f"docs/reference/{name} is out of date: run python docs/generate.py" for name in stale]
    problems += broken_links(pages)
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        return 1
    render(pages, BUILD)
    click.echo(f"{len(pages)} pages in {BUILD.relative_to(ROOT)}, every link leads somewhere")
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
