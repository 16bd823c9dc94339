"""The pages that people read, and the commands on them: what the tests of both kinds of command share."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The texts of a page's blocks in that language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block for found, block in FENCE.findall(text) if found == language]


COMMANDS = tuple(
    dict.fromkeys(
        line.removeprefix("$ ")
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    )
)


def commands(program: str) -> list[str]:
    """The commands that start with that word, each once."""
    return [command for command in COMMANDS if command.split()[0] == program]
