"""The reports that can be made of saved results, by name; each is a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from pytest_llmbench.compare import Comparison
from pytest_llmbench.errors import UsageError
from pytest_llmbench.export import Better, to_bmf, to_csv, to_gha
from pytest_llmbench.figures import Loaded
from pytest_llmbench.report.page import html
from pytest_llmbench.summary_page import page

Render = Callable[[Loaded, Comparison | None], str]


def _gha(better: Better) -> Render:
    return lambda loaded, _: _json(to_gha(loaded.subjects, better))


def _json(data: object) -> str:
    return json.dumps(data, allow_nan=False, ensure_ascii=True, indent=1) + "\n"


RENDER: Final[Mapping[str, Render]] = {
    "html": lambda loaded, _: html(loaded),
    "md": page,
    "csv": lambda loaded, _: to_csv(loaded.subjects),
    "bmf": lambda loaded, _: _json(to_bmf(loaded.subjects)),
    "gha": _gha("higher"),
    "gha-smaller": _gha("lower"),
}
FILES: Final[Mapping[str, str]] = {
    "html": "report.html",
    "md": "report.md",
    "csv": "report.csv",
    "bmf": "report.bmf.json",
    "gha": "report.bigger.json",
    "gha-smaller": "report.smaller.json",
}
"""What each is called beside run.json."""


def write_reports(kinds: Iterable[str], folder: Path, loaded: Loaded, comparison: Comparison | None) -> list[Path]:
    """Write the reports into `folder`; returns their paths. OSError where that can't be done."""
    written = []
    for kind in kinds:
        path = folder / FILES[kind]
        write_text(path, RENDER[kind](loaded, comparison))
        written.append(path)
    return written


def write_text(path: Path, text: str) -> None:
    """Write and rename, so that nobody reads half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8", newline="")
    temporary.replace(path)


def require_kind(kind: str) -> str:
    """UsageError for a report that nobody knows."""
    if kind not in RENDER:
        raise UsageError(f"no report {kind!r}; there are: {', '.join(RENDER)}")
    return kind
