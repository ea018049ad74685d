"""How Sphinx builds the documentation: the Markdown pages of the repository, the API, and the gallery executed.

The source folder is the repository's root, so that the pages' links to README.md and to each other are the same here
and on a code host. ``python docs/build.py`` (``make docs``) runs this.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from importlib.metadata import version as version_of
from pathlib import Path

# One thread each: two builds of one page should show the same bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Sphinx turns every logger on; what exporters tell themselves is no part of an example.
for noisy in ("onnxscript", "onnx_ir", "torch.onnx", "torch.onnx._internal.exporter._registration", "matplotlib"):
    logging.getLogger(noisy).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", category=FutureWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)

project = "driftscope"
author = "the driftscope developers"
project_copyright = "the driftscope developers"
release = version = version_of("driftscope")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "changelog.d/README.md", "docs/**"]
exclude_patterns = ["docs/_build/**", "docs/gallery/**", "docs/auto_gallery/**/*.ipynb"]

html_theme = "furo"
html_title = "driftscope"
html_show_sphinx = False
html_copy_source = False
# Offline: furo's own fonts and scripts are part of the theme, and nothing else is loaded.
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4
myst_links_external_new_tab = False
# Fences in the pages carry options of their own, as ```python file=name; they are shown as their language.
suppress_warnings = ["myst.xref_ambiguous", "config.cache"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = "$ "

sphinx_gallery_conf = {
    "examples_dirs": ["docs/gallery"],
    "gallery_dirs": ["docs/auto_gallery"],
    "filename_pattern": r"\.py",
    "abort_on_example_error": True,
    "download_all_examples": True,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 1_000_000,
    "matplotlib_animations": False,
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": ("_repr_html_", "__repr__"),
}

_LINK = re.compile(r"\]\((?!\w+:)([^)#]+\.(?:md|rst))\)")
_FENCE = re.compile(r"^```(\w+) [^\n`]+$", re.MULTILINE)


def _add_navigation(_app: object, name: str, source: list[str]) -> None:
    """Give the front page and the index the trees of pages that their lists of links already are."""
    source[0] = _FENCE.sub(r"```\1", source[0])
    if name == "README":
        source[0] += _tree("", ["docs/index", "docs/auto_gallery/index", "CONTRIBUTING", "changelog.d/README"])
    if name == "docs/index":
        for section in source[0].split("\n## ")[1:]:
            pages = [str(Path(link).with_suffix("")) for link in _LINK.findall(section) if not link.startswith("..")]
            source[0] += _tree(section.split("\n")[0], pages)
    if name == "docs/reference/codes/index":
        codes = [str(Path(link).with_suffix("")) for link in _LINK.findall(source[0])]
        source[0] += _tree("", codes)


def _tree(caption: str, pages: list[str]) -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"\n\n```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```\n"


def setup(app: object) -> None:
    """Connect what changes pages as they are read."""
    app.connect("source-read", _add_navigation)  # type: ignore[attr-defined]
