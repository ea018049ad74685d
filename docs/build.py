"""Check the documentation and build it as a site, without network.

``make docs`` runs this. It fails when a link or an anchor between the Markdown pages (and the README) leads nowhere,
when a generated reference page is out of date, or when Sphinx warns.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = DOCS / "_build"
MADE = DOCS / "auto_gallery"  # written by sphinx-gallery
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
# The front page is README.html, as on a code host; a folder is opened at index.html.
_FRONT = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=README.html">'
    '<title>driftscope</title><a href="README.html">driftscope</a>\n'
)
_MAIN = re.compile(r"<(?:article|div)[^>]*role=\"main\"[^>]*>(.*?)</(?:article|main|body)>", re.DOTALL)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]+>", re.DOTALL)
_EXCERPT = 6000  # characters of a page in which the search looks for its words
_READ_KEPT = """\
if (location.protocol === "file:") {
  const texts = TEXTS;
  const fetched = window.fetch;
  const here = new URL(".", location.href).href;
  window.fetch = (address, ...rest) => {
    const name = decodeURI(new URL(address, location.href).href.replace(here, "").split(/[#?]/)[0]);
    return name in texts ? Promise.resolve(new Response(texts[name])) : fetched(address, ...rest);
  };
}
"""
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown page: where it stands below the repository, what it says, where it can be entered."""

    path: str
    tokens: list[Token]
    anchors: frozenset[str] = field(default_factory=frozenset)


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
    below = sorted(p for p in DOCS.rglob("*.md") if BUILD not in p.parents and MADE not in p.parents)
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


def render(build: Path) -> int:
    """Build the site with Sphinx, the gallery's examples executed; a warning is an error. Returns the exit code."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-c",
        str(DOCS),
        "-q",
        "-W",
        "--keep-going",
        str(ROOT),
        str(build),
    ]
    return subprocess.run(command, check=False).returncode


def keep_excerpts(build: Path) -> None:
    """Let the search show excerpts without a server: it reads other pages, which a browser refuses to file://."""
    texts = {}
    for page in sorted(build.rglob("*.html")):
        body = _MAIN.search(page.read_text(encoding="utf-8"))
        if body:
            plain = " ".join(html.unescape(_TAG.sub(" ", body[1])).split())
            texts[page.relative_to(build).as_posix()] = f'<div role="main">{html.escape(plain[:_EXCERPT])}</div>'
    script = _READ_KEPT.replace("TEXTS", json.dumps(texts).replace("<", "\\u003c"))
    (build / "_static").mkdir(exist_ok=True)
    (build / "_static" / "excerpts.js").write_text(script, encoding="utf-8")
    search = build / "search.html"
    with_script = search.read_text(encoding="utf-8").replace(
        "</head>", '<script src="_static/excerpts.js"></script>\n</head>', 1
    )
    search.write_text(with_script, encoding="utf-8")


def main() -> int:
    """Check, then build; return the exit code."""
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
    code = render(BUILD)
    if code == 0:
        (BUILD / "index.html").write_text(_FRONT, encoding="utf-8")
        keep_excerpts(BUILD)
        click.echo(f"{len(pages)} pages and the gallery in {BUILD.relative_to(ROOT)}, every link leads somewhere")
        click.echo(f"open {BUILD / 'index.html'}")
    return code


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())
