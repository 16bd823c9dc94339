"""Changes of level and drifts on the page: those that `llmbench history` finds, by the same rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_llmbench.errors import Unavailable
from pytest_llmbench.figures import Subject
from pytest_llmbench.history import FEWEST, METRICS, WORSE, Series, Shift, all_series
from pytest_llmbench.report.rows import machine, rounded, shown_name


def trends(subjects: Iterable[Subject]) -> dict[str, Any]:
    """`found`: each series with a change or a drift, those that got worse first.

    `missing` says what to install where nothing could be looked for; `fewest` is how many records a series takes.
    """
    try:
        series = all_series(subjects, METRICS)
    except Unavailable as error:
        return {"fewest": FEWEST, "missing": str(error), "found": []}
    moved = [_trend(one) for one in series if one.shifts or one.drift is not None]
    return {"fewest": FEWEST, "missing": "", "found": sorted(moved, key=lambda trend: not trend["worse"])}


def _trend(series: Series) -> dict[str, Any]:
    """The page knows a row by its entry, machine and record: `created` is the first record of the new level."""
    source = series.points[0].source
    return {
        "name": series.name,
        "metric": shown_name(series.metric),
        "machine": machine(source),
        "place": series.machine,
        "records": len(series.points),
        "worse": series.worsened(WORSE) is not None,
        "shifts": [_shift(series, shift) for shift in series.shifts],
        "drift": _move(series, series.drift),
    }


def _shift(series: Series, shift: Shift) -> dict[str, Any]:
    source = series.points[shift.index].source
    levels = {"before": rounded(shift.before), "after": rounded(shift.after)}
    upgraded = series.upgrades(shift)
    move = _move(series, shift.share)
    return {"created": source.created, "commit": source.commit, "upgraded": upgraded, **levels, "move": move}


def _move(series: Series, share: float | None) -> dict[str, Any] | None:
    return None if share is None else {"share": rounded(share), "worse": series.worse_by(share) > 0}
