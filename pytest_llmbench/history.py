"""Many records of one place over time: where a figure's level changed, and what drifts too slowly for any gate.

Change points: PELT with the least-squares cost on logarithms (Killick, Fearnhead, Eckley, "Optimal detection of
changepoints with a linear computational cost", JASA 107, 2012), from the library `ruptures`. Drift: the Theil-Sen
slope, with Kendall's rank test against no trend (Mann 1945), from `scipy`. Both come with the extra [report].
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_llmbench import verdict
from pytest_llmbench.environment import machine_key, upgrades
from pytest_llmbench.errors import RecordError, Unavailable, UsageError

if TYPE_CHECKING:
    from pytest_llmbench.figures import Loaded, Source, Subject

METRICS: Final = (
    "decode_tok_s", "prefill_tok_s", "ttft_s", "peak_memory_bytes", "tok_s",
    "tok_s_ratio", "prefill_tok_s_ratio", "aggregate_tok_s_ratio",
)  # fmt: skip
"""Those that are followed if nothing else is said."""
FEWEST: Final = 8
"""Records below which a series has no history: with fewer, noise looks like a change too often."""
WORSE: Final = 0.02
"""By what share a figure may get worse over time, if nothing else is said."""
MIN_SEGMENT: Final = 3
PENALTY: Final = 6.0
"""Times σ² log n for each change: docs/compare.md has the share of false alarms that it gives."""
LEAST_NOISE: Final = 0.002
"""Below this share a change of level is rounding, whatever the series' own noise says."""
DRIFT_P: Final = 0.001
REACH: Final = 2
OUTLIER: Final = 3.0
MAD_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One record's figure."""

    subject: Subject
    value: float

    @property
    def source(self) -> Source:
        return self.subject.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """From the point `index` on the level is another: medians before and after, and by what share it moved."""

    index: int
    before: float
    after: float

    @property
    def share(self) -> float:
        return self.after / self.before - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one entry on one machine, in the order of time, whichever versions of the software were there.

    `drift` is by what share the trend line moves from the first to the last point, None where there is no clear trend.
    """

    name: str
    metric: str
    machine: str
    points: tuple[Point, ...]
    shifts: tuple[Shift, ...] = ()
    drift: float | None = None

    def worsened(self, share: float) -> float | None:
        """By how much the latest shift or the drift, whichever is the worse, made it worse, if by more than `share`."""
        moves = [self.shifts[-1].share] if self.shifts else []
        moves += [self.drift] if self.drift is not None else []
        worst = max((self.worse_by(move) for move in moves), default=0.0)
        return worst if worst > share else None

    def upgrades(self, shift: Shift) -> list[str]:
        """`name: old version → new version` for what was upgraded just where the level changed."""
        old, new = (self.points[at].subject for at in (shift.index - 1, shift.index))
        sides = (("backend", "version"), ("reference", "reference_version"))
        named = {new.facts.get(who, ""): (old.facts.get(what, ""), new.facts.get(what, "")) for who, what in sides}
        own = [f"{name}: {a or None} → {b or None}" for name, (a, b) in named.items() if a != b]
        return list(dict.fromkeys([*own, *upgrades(old.source.environment, new.source.environment)]))

    def worse_by(self, move: float) -> float:
        """A move by that share of the old value, turned so that more than 0 is worse."""
        return -move if verdict.direction(self.metric) == "higher" else move


def read_history(folder: Path) -> tuple[Loaded, tuple[str, ...]]:
    """All records below `folder`, and a line for each JSON file that is none. UsageError where there is no record."""
    from pytest_llmbench.figures import Loaded, load

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name the one that holds the records")
    loaded: list[Loaded] = []
    skipped: list[str] = []
    for path in sorted(path for path in folder.rglob("*.json") if not path.is_dir()):
        if not path.is_file():  # nobody may ever write into a pipe that lies there
            skipped.append(f"{path}: no file")
            continue
        try:
            loaded.append(load([path]))
        except RecordError as error:
            skipped.append(str(error))
    if not loaded:
        raise UsageError(f"{folder}: no run.json and no parity record below it")
    subjects = tuple(subject for one in loaded for subject in one.subjects)
    return Loaded(
        runs=tuple(run for one in loaded for run in one.runs),
        parities=tuple(parity for one in loaded for parity in one.parities),
        subjects=subjects,
    ), tuple(skipped)


def all_series(subjects: Iterable[Subject], metrics: Sequence[str], *, last: int | None = None) -> list[Series]:
    """A series for each entry, metric and machine, with its shifts and drift where there are enough points.

    A result that stands in two files (a record and what it was merged into) counts once. Unavailable where there are
    enough points and the extra [report] isn't installed.
    """
    found: dict[tuple[str, str, str], dict[tuple[str, float], Point]] = {}
    for subject in subjects:
        machine = machine_of(subject.source)
        for metric in metrics:
            values = subject.metrics.get(metric)
            if values is not None and values.value > 0:
                point = Point(subject=subject, value=values.value)
                place = found.setdefault((subject.name, metric, machine), {})
                place[subject.source.created, values.value] = point
    return [
        analyze(Series(name=name, metric=metric, machine=machine, points=_ordered(points)[-(last or len(points)) :]))
        for (name, metric, machine), points in sorted(found.items())
    ]


def ended(series: Iterable[Series], subjects: Iterable[Subject]) -> list[tuple[Series, Subject]]:
    """Series that stop, with the last result of their entry, which lacks the figure: they never show a change.

    What was skipped counts for nothing.
    """
    last: dict[tuple[str, str], Subject] = {}
    for subject in sorted(subjects, key=lambda subject: subject.source.created):
        if subject.outcome != "skipped":
            last[subject.name, machine_of(subject.source)] = subject
    found = ((one, last.get((one.name, one.machine))) for one in series)
    return [(one, end) for one, end in found if end is not None and _is_after(one, end)]


def _is_after(series: Series, end: Subject) -> bool:
    return series.metric not in end.metrics and end.source.created > series.points[-1].source.created


def _ordered(points: Mapping[tuple[str, float], Point]) -> tuple[Point, ...]:
    return tuple(points[at] for at in sorted(points))


def machine_of(source: Source) -> str:
    """What the records of one machine have in common; the fingerprint, where a record doesn't tell of its software."""
    return machine_key(source.environment) or source.fingerprint or source.chip


def analyze(series: Series) -> Series:
    """The series with its shifts and drift; as it is where it has too few points."""
    if len(series.points) < FEWEST:
        return series
    values = [point.value for point in series.points]
    return replace(series, shifts=shifts(values), drift=drift(values))


def shifts(values: Sequence[float]) -> tuple[Shift, ...]:
    """Where the level of the values (all positive, at least `FEWEST`) changes."""
    logs = [math.log(value) for value in values]
    sigma = noise(logs)
    ends = [0, *_pelt(without_outliers(logs, sigma), PENALTY * sigma**2 * math.log(len(logs)))]
    levels = [statistics.median(values[a:b]) for a, b in pairwise(ends)]
    return tuple(
        Shift(index=at, before=before, after=after)
        for at, before, after in zip(ends[1:-1], levels, levels[1:], strict=False)
    )


def noise(logs: Sequence[float]) -> float:
    """σ from the differences of neighbours, which a change of level touches once: MAD, scaled to a normal's σ."""
    steps = [b - a for a, b in pairwise(logs)]
    middle = statistics.median(steps)
    sigma = MAD_TO_SIGMA * statistics.median(abs(step - middle) for step in steps) / math.sqrt(2)
    return max(sigma, LEAST_NOISE)


def without_outliers(logs: Sequence[float], sigma: float) -> list[float]:
    """One bad day isn't a level: a value further than 3 σ from the median of its five neighbours becomes that median.

    Hampel's filter (Pearson, "Outliers in process modeling and identification", 2002); edges of levels of three points
    or more stay where they are.
    """
    windows = [logs[max(0, at - REACH) : at + REACH + 1] for at in range(len(logs))]
    middles = [statistics.median(window) for window in windows]
    return [middle if abs(x - middle) > OUTLIER * sigma else x for x, middle in zip(logs, middles, strict=True)]


def _pelt(logs: Sequence[float], penalty: float) -> list[int]:
    """Ends of the segments, the last one being the number of values."""
    try:
        import numpy as np
        import ruptures
    except ImportError as error:
        raise Unavailable("change points need ruptures", fix='pip install "pytest-llmbench[report]"') from error
    search = ruptures.Pelt(model="l2", min_size=MIN_SEGMENT, jump=1).fit(np.array(logs))
    return [int(end) for end in search.predict(pen=penalty)]


def drift(values: Sequence[float]) -> float | None:
    """By what share the Theil-Sen line moves over the whole series; None unless Kendall's test says p < `DRIFT_P`."""
    from scipy import stats as scipy_stats

    if len(set(values)) < 2:
        return None
    times = list(range(len(values)))
    if not scipy_stats.kendalltau(times, values).pvalue < DRIFT_P:
        return None
    slope = scipy_stats.theilslopes([math.log(value) for value in values], times).slope
    return math.expm1(float(slope) * (len(values) - 1))
