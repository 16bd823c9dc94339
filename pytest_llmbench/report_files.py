"""The reports that can be made of saved results, by name; each is a text.

The command line and the plugin's options know the names from here, so what makes a report is imported when it is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_llmbench.errors import UsageError

if TYPE_CHECKING:
    from pytest_llmbench.compare import Comparison
    from pytest_llmbench.export import Better
    from pytest_llmbench.figures import Loaded

    Render = Callable[[Loaded, Comparison | None], str]


def _html(loaded: Loaded, _: Comparison | None) -> str:
    from pytest_llmbench.report.page import html

    return html(loaded)


def _markdown(loaded: Loaded, comparison: Comparison | None) -> str:
    from pytest_llmbench.summary_page import page

    return page(loaded, comparison)


def _csv(loaded: Loaded, _: Comparison | None) -> str:
    from pytest_llmbench.export import to_csv

    return to_csv(loaded.subjects)


def _bmf(loaded: Loaded, _: Comparison | None) -> str:
    from pytest_llmbench.export import to_bmf

    return _json(to_bmf(loaded.subjects))


def _gha(better: Better) -> Render:
    def render(loaded: Loaded, _: Comparison | None) -> str:
        from pytest_llmbench.export import to_gha

        return _json(to_gha(loaded.subjects, better))

    return render


def _json(data: object) -> str:
    return json.dumps(data, allow_nan=False, ensure_ascii=True, indent=1) + "\n"


RENDER: Final[Mapping[str, Render]] = {
    "html": _html,
    "md": _markdown,
    "csv": _csv,
    "bmf": _bmf,
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
    from pytest_llmbench.record import write_text

    written = []
    for kind in kinds:
        path = folder / FILES[kind]
        write_text(path, RENDER[kind](loaded, comparison))
        written.append(path)
    return written


def require_kind(kind: str) -> str:
    """UsageError for a report that nobody knows."""
    if kind not in RENDER:
        raise UsageError(f"no report {kind!r}; there are: {', '.join(RENDER)}")
    return kind
