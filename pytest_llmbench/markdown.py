"""Text that others wrote, made fit to stand in a page of Markdown, and tables that keep to a number of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST_CHARACTERS: Final = 300
MOST_BYTES: Final = 60_000
"""Of a page: GitHub refuses more than 1 MiB for all steps of a job, and a comment of more than 65,536 characters."""
_SPECIAL: Final = frozenset("\\`*_{}[]()#+!|~<>&@$\"'")


def one_line(text: str, most: int | None = None) -> str:
    """`text` without line ends and control characters, on one line of `most` characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def escape(text: str, most: int | None = None) -> str:
    """`one_line`, so that Markdown and HTML show it as it is, in a table's cell too."""
    return "".join(f"&#{ord(c)};" if c in _SPECIAL else c for c in one_line(text, most))


def quoted(text: str) -> str:
    """`escape` of no more than `MOST_CHARACTERS`."""
    return escape(text, MOST_CHARACTERS)


def code(text: str, most: int = MOST_CHARACTERS) -> str:
    """`one_line` as code, in a table's cell too; easier to read in the source than `escape`."""
    line = one_line(text, most)
    plain = not set(line) & set("`|<>&@\\")
    return f"`{line}`" if plain and line else f"<code>{escape(line)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, room: int, where: str = "") -> list[str]:
    """A row for each of `rows`, as many as `room` bytes take; then how many are left out and `where` they are.

    Cells are escaped already.
    """
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    rows = list(rows)
    used = size(lines)
    for shown, row in enumerate(rows):
        line = f"| {' | '.join(row)} |"
        used += size([line])
        if used > room:
            return [*lines, "", f"… and {len(rows) - shown} more{where}.", ""]
        lines.append(line)
    return [*lines, ""]


def size(lines: Iterable[str]) -> int:
    """Bytes of UTF-8 that the lines take, with their ends."""
    return sum(len(line.encode()) + 1 for line in lines)
