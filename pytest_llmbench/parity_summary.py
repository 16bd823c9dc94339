"""What a parity run comes to: geometric means, and the points below gate and goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmbench import stats, units, verdict
from pytest_llmbench.parity import ParityModel, ParityResult, correctness_flags
from pytest_llmbench.stats import GeometricMean

_DIGITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """A point whose unrounded `ratio` misses a limit; `key` is the summary's name of the point."""

    key: str
    model: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`below_gate` and `below_goal` list each point's headline metric; `failed` counts every gated metric.

    `solo_matches` of `solo_checks` concurrency points gave the same text batched as alone. `ttft` is keyed by
    prompt length and `legacy_prefill`, `concurrency` by level.
    """

    gate: float
    goal: float
    below_gate: tuple[Below, ...]
    below_goal: tuple[Below, ...]
    correctness_flags: tuple[str, ...]
    decode: GeometricMean
    memory: GeometricMean
    load_warm: GeometricMean
    ttft: tuple[tuple[str, GeometricMean], ...]
    concurrency: tuple[tuple[str, GeometricMean], ...]
    measured: int
    failed: int
    unmeasured: int
    solo_checks: int
    solo_matches: int

    def to_json(self) -> dict[str, object]:
        """The record's `summary` object; numbers rounded to four decimals."""
        return {
            "below_gate": _below_json(self.below_gate),
            "below_goal": _below_json(self.below_goal),
            "correctness_flags": list(self.correctness_flags),
            "decode_geomean": _mean_json(self.decode),
            "memory_geomean": _mean_json(self.memory),
            "load_warm_geomean": _mean_json(self.load_warm),
            "ttft_geomean": {name: _mean_json(mean) for name, mean in self.ttft},
            "concurrency_geomean": {name: _mean_json(mean) for name, mean in self.concurrency},
        }


def summarize(results: Sequence[ParityResult], gate: float, goal: float, models: Sequence[ParityModel] = ()) -> Summary:
    """Sum up `results` from unrounded ratios; `models` adds what only whole models tell (flags, solo checks).

    Raises `MeasurementError` for samples that give no ratio.
    """
    ratios = [(result, ratio) for result in results if (ratio := result.ratio) is not None]
    gated = [ratio for result, ratio in ratios if result.gated]
    checks = [equal for model in models for _, equal in model.solo_checks()]
    return Summary(
        gate=gate,
        goal=goal,
        below_gate=_below(ratios, gate),
        below_goal=_below(ratios, goal),
        correctness_flags=correctness_flags(models),
        decode=_mean(ratios, lambda result: result.section == "decode"),
        memory=_mean(ratios, lambda result: result.section == "memory"),
        load_warm=_mean(ratios, lambda result: result.key == "load_warm"),
        ttft=_ttft_means(ratios),
        concurrency=_point_means(item for item in ratios if item[0].section == "concurrency"),
        measured=len(gated),
        failed=sum(ratio < gate for ratio in gated),
        unmeasured=sum(result.gated and result.ratio is None for result in results),
        solo_checks=len(checks),
        solo_matches=sum(checks),
    )


def summary_lines(summary: Summary) -> list[str]:
    """The summary as lines for a terminal, at most about 80 columns with usual model ids."""
    return [
        *_count_lines(summary),
        *_mean_lines(summary),
        *(_below_line(item, summary.gate) for item in summary.below_gate),
        *_goal_lines(summary),
        *(f"correctness: {flag}" for flag in summary.correctness_flags),
    ]


_Measured = tuple[ParityResult, float]


def _is_headline(result: ParityResult) -> bool:
    """One metric stands for a point, so that it counts once; one repeat is too short a prefill to count."""
    if result.section == "ttft" and result.is_legacy:
        return result.metric == "prefill_tok_s" and result.point != "r1"
    return result.metric in ("tok_s", "ttft_s", "peak_bytes", "first_token_s", "aggregate_tok_s")


def _below(ratios: Iterable[_Measured], limit: float) -> tuple[Below, ...]:
    return tuple(
        Below(key=result.key, model=result.model, ratio=ratio)
        for result, ratio in ratios
        if result.gated and _is_headline(result) and ratio < limit
    )


def _mean(ratios: Iterable[_Measured], wanted: Callable[[ParityResult], bool]) -> GeometricMean:
    return stats.geomean([ratio for result, ratio in ratios if _is_headline(result) and wanted(result)])


def _point_means(ratios: Iterable[_Measured]) -> tuple[tuple[str, GeometricMean], ...]:
    points: dict[str, list[float]] = {}
    for result, ratio in ratios:
        if _is_headline(result):
            points.setdefault(result.point, []).append(ratio)
    return tuple((name, stats.geomean(points[name])) for name in sorted(points, key=int))


def _ttft_means(ratios: Sequence[_Measured]) -> tuple[tuple[str, GeometricMean], ...]:
    lengths = _point_means(
        (result, ratio) for result, ratio in ratios if result.section == "ttft" and not result.is_legacy
    )
    legacy = _mean(ratios, lambda result: result.key == "prefill_legacy")
    return (*lengths, ("legacy_prefill", legacy)) if legacy.n else lengths


def _below_json(items: Iterable[Below]) -> dict[str, list[dict[str, object]]]:
    grouped: dict[str, list[dict[str, object]]] = {}
    for item in items:
        grouped.setdefault(item.key, []).append({"model": item.model, "ratio": round(item.ratio, _DIGITS)})
    return grouped


def _mean_json(mean: GeometricMean) -> dict[str, object]:
    return {"value": None if mean.value is None else round(mean.value, _DIGITS), "n": mean.n}


def _count_lines(summary: Summary) -> list[str]:
    lines = [
        f"{summary.measured} gated results, {summary.failed} below gate {summary.gate:g}, "
        f"{summary.unmeasured} not measured"
    ]
    if summary.solo_checks:
        lines.append(f"batched output equals solo output at {summary.solo_matches} of {summary.solo_checks} points")
    return lines


def _mean_lines(summary: Summary) -> list[str]:
    named = [
        ("decode", summary.decode),
        *((name if name == "legacy_prefill" else f"ttft {name}", mean) for name, mean in summary.ttft),
        ("memory", summary.memory),
        ("load warm", summary.load_warm),
        *((f"concurrency {name}", mean) for name, mean in summary.concurrency),
    ]
    return [f"geomean {name:<16} {units.ratio(mean.value)}  (n {mean.n})" for name, mean in named if mean.n]


def _below_line(item: Below, limit: float) -> str:
    return f"below gate: {item.key} {item.model} {verdict.ratio_text(item.ratio, limit)}"


def _goal_lines(summary: Summary) -> list[str]:
    grouped = _below_json(summary.below_goal)
    if not grouped:
        return []
    counts = ", ".join(f"{key} {len(items)}" for key, items in grouped.items())
    return [f"below goal {summary.goal:g}: {counts}"]
