"""Which pages there are, and what makes each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference import commands, metrics, options, plugin, schemas, variables, yaml_fields
from reference.text import ROOT

FOLDER: Final = ROOT / "docs" / "reference"
_HEAD: Final = "<!-- Made from the code by ci/docs. Change the code, not this page. -->\n\n"
_PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "options.md": options.page,
    "variables.md": variables.page,
    "matrix-fields.md": yaml_fields.matrix_page,
    "parity-fields.md": yaml_fields.parity_page,
    "plugin.md": plugin.page,
    "metrics.md": metrics.page,
    "commands.md": commands.page,
}


def pages() -> dict[str, str]:
    """The text of each page by the name of its file. ValueError for a key that no guide explains."""
    made = {name: page() for name, page in _PAGES.items()} | schemas.pages()
    return {name: f"{_HEAD}{text.strip()}\n" for name, text in made.items()}


def write(folder: Path) -> None:
    """Write all pages into `folder`, and remove those that are pages no longer."""
    made = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()
