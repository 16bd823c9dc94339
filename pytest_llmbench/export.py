"""Saved results in other programs' formats: CSV, Bencher's metric format, github-action-benchmark's JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from pytest_llmbench import markdown, verdict
from pytest_llmbench.errors import UsageError
from pytest_llmbench.figures import Subject, Values
from pytest_llmbench.units import unit_of

FACTS: Final = ("model", "model_id", "backend", "version", "fmt", "quant", "kv_cache", "section", "point")
ORDER: Final = (
    "ttft_s", "ttft_cached_s", "ttfv_s", "prefill_tok_s", "decode_tok_s", "itl_p50_s", "itl_p95_s", "itl_p99_s",
    "load_s", "peak_memory_bytes", "total_s",
)  # fmt: skip
MOST_SLUG: Final = 64
"""Characters of a measure's name that Bencher takes."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
Better = Literal["higher", "lower"]


def to_csv(subjects: Sequence[Subject]) -> str:
    """A row for each entry and prompt, or point and side; metrics in columns, their unit in the head.

    What wasn't measured is an empty cell, and `reason` says why. A text that a spreadsheet would take for a formula
    gets an apostrophe before it.
    """
    metrics = metric_names(subjects)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [f"{name} [{unit_of(name)}]" if unit_of(name) else name for name in metrics]
    writer.writerow(["file", "created", "chip", "fingerprint", "commit", "id", "prompt", *FACTS, "side", "outcome",
                     *heads, "suspicions", "reason"])  # fmt: skip
    for subject in subjects:
        for side, values in _sides(subject):
            writer.writerow([*_head_cells(subject, side), *_numbers(values, metrics), *_tail_cells(subject)])
    return out.getvalue()


def metric_names(subjects: Iterable[Subject]) -> list[str]:
    """Every metric that was measured, the well-known ones first."""
    seen = {name for subject in subjects for values in (subject.metrics, subject.reference) for name in values}
    return [*(name for name in ORDER if name in seen), *sorted(seen - set(ORDER))]


def to_bmf(subjects: Iterable[Subject]) -> dict[str, dict[str, dict[str, float]]]:
    """Bencher Metric Format: benchmark → measure → value, with bounds where there are samples.

    Only metrics of which more or less is better. A metric that wasn't measured is left out: never a 0.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for subject in one_of_each(subjects):
        measures = {_slug(name): _metric(values) for name, values in judged(subject).items()}
        if measures:
            found[subject.name] = measures
    return found


def to_gha(subjects: Iterable[Subject], better: Better) -> list[dict[str, Any]]:
    """github-action-benchmark's JSON for `customBiggerIsBetter` (better = higher) or `customSmallerIsBetter`."""
    return [
        {
            "name": f"{subject.name} {name}",
            "unit": unit_of(name),
            "value": values.value,
            **_range(values),
            "extra": _extra(subject, values),
        }
        for subject in one_of_each(subjects)
        for name, values in judged(subject).items()
        if verdict.direction(name) == better
    ]


def one_of_each(subjects: Iterable[Subject]) -> Iterator[Subject]:
    """The subjects. UsageError for two results of one name: both formats know a result by its name alone."""
    seen: dict[str, Subject] = {}
    for subject in subjects:
        if (other := seen.setdefault(subject.name, subject)) is not subject:
            paths = " and ".join(dict.fromkeys(str(one.source.path) for one in (other, subject)))
            raise UsageError(f"{subject.name} stands twice in {paths}: make a file for each run or machine")
        yield subject


def judged(subject: Subject) -> dict[str, Values]:
    """The metrics of which it is known whether more or less is better."""
    return {name: values for name, values in subject.metrics.items() if _has_direction(name)}


def _has_direction(metric: str) -> bool:
    try:
        verdict.direction(metric)
    except UsageError:
        return False
    return True


def _sides(subject: Subject) -> Iterable[tuple[str, Mapping[str, Values]]]:
    if not subject.reference:
        return [("", subject.metrics)]
    return [("candidate", subject.metrics), ("baseline", subject.reference)]


def _head_cells(subject: Subject, side: str) -> list[str]:
    source, facts = subject.source, dict(subject.facts)
    if side == "baseline":
        facts |= {"backend": facts["reference"], "version": facts["reference_version"]}
    where = (str(source.path), source.created, source.chip, source.fingerprint, source.commit)
    cells = (*where, subject.id, subject.prompt, *(facts.get(name, "") for name in FACTS), side, subject.outcome)
    return [_text(cell) for cell in cells]


def _numbers(values: Mapping[str, Values], metrics: Iterable[str]) -> list[str]:
    return ["" if (found := values.get(name)) is None else repr(found.value) for name in metrics]


def _tail_cells(subject: Subject) -> list[str]:
    return [_text("; ".join(subject.suspicions)), _text(subject.reason.strip().partition("\n")[0])]


def _text(cell: str) -> str:
    line = markdown.one_line(cell)
    return f"'{line}" if cell.startswith(_FORMULA) else line


def _slug(metric: str) -> str:
    return metric.replace("_", "-")[:MOST_SLUG]


def _metric(values: Values) -> dict[str, float]:
    spread = values.spread
    return {"value": values.value, **({"lower_value": spread[0], "upper_value": spread[1]} if spread else {})}


def _range(values: Values) -> dict[str, str]:
    spread = values.spread
    return {"range": f"± {max(values.value - spread[0], spread[1] - values.value):.4g}"} if spread else {}


def _extra(subject: Subject, values: Values) -> str:
    facts = [f"{name}: {subject.facts[name]}" for name in FACTS if subject.facts.get(name)]
    return "\n".join([f"n: {len(values.samples) or 1}", *facts, *(f"suspect: {odd}" for odd in subject.suspicions)])
