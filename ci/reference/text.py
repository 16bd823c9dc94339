"""Tables, and what the guides in `docs/` say of a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_llmbench import markdown

ROOT: Final = Path(__file__).resolve().parents[2]
NONE: Final = "–"
_ANY_SIZE: Final = 10_000_000


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with an empty line behind it; empty cells get a dash."""
    filled = [[value or NONE for value in row] for row in rows]
    return "\n".join(markdown.table(head, filled, room=_ANY_SIZE))


def prose(text: str) -> str:
    """Text of a docstring or a help, with its own code in backticks, for a table's cell."""
    return markdown.one_line(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def codes(names: Iterable[str]) -> str:
    """`a`, `b`, `c`."""
    return ", ".join(markdown.code(name) for name in names)


def meanings(guide: str, *headings: str) -> dict[str, str]:
    """What the tables below these headings of `docs/GUIDE` (all of it without headings) say of each name.

    A name stands in backticks in a row's first cell; the row's last cell is its meaning.
    """
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    parts = [_section(text, heading) for heading in headings] or [text]
    return {
        name: _moved(cells[-1])
        for part in parts
        for cells in map(_cells, part.splitlines())
        if len(cells) > 1
        for name in re.findall(r"`([^`]+)`", cells[0])
    }


def explained(names: Collection[str], guide: Mapping[str, str], where: str) -> dict[str, str]:
    """The meaning of each of `names`. ValueError if the guide `where` has no row for one."""
    missing = sorted(set(names) - set(guide))
    if missing:
        raise ValueError(f"docs/{where} has no row for {codes(missing)}; say there what it means")
    return {name: guide[name] for name in names}


def _section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []


def _moved(text: str) -> str:
    """With links as they must be in a folder further down."""
    return re.sub(r"\]\((?!https?:|#)", "](../", text)
