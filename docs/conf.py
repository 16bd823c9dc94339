"""Sphinx: how `ci/docs` makes the site of these pages. They are Markdown, and can be read where they lie as well."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

from pytest_llmbench import __version__

project = "pytest-llmbench"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["results"]
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
smartquotes = False  # `--out` has no dash in it

SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
LINK = re.compile(r"^- \[.*?\]\((.*?)\.md\)", re.MULTILINE)
TOCTREE = "\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the index's lists the navigation too: in the repository a directive would only be clutter."""
    if page == "index":
        _, *parts = SECTION.split(source[0])
        for caption, text in zip(parts[::2], parts[1::2], strict=True):
            source[0] += TOCTREE.format(caption=caption, pages="\n".join(LINK.findall(text)))
