"""Tables for the terminal: what is ready, and what was measured. Numbers get their units here and nowhere before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_llmbench import columns, units
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.verdict import Outcome, interval_text, ratio_text

if TYPE_CHECKING:
    from pytest_llmbench.matrix import MatrixEntry
    from pytest_llmbench.parity_plan import ParityPlan, ParityPlanModel
    from pytest_llmbench.record import Result
    from pytest_llmbench.session import Bench

Row = Sequence[str]
ODD = " (!)"
AT_ONCE = "several requests at once"
AT_ONCE_HEAD = ("id", "backend", "requests", *columns.CONCURRENCY_HEAD)

RESULT_HEAD = (
    "id", "backend", "quant", "kv", "TTFT", "TTFT cached", "decode tok/s", "prefill tok/s", "tokens in/out", "memory"
)  # fmt: skip


def table(head: Row, rows: Iterable[Row]) -> list[str]:
    """Left-aligned columns, as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def results_by_prompt(results: Iterable[Result]) -> dict[str, list[str]]:
    """For each prompt that was measured, and for what ran at once, the lines of its table."""
    found: dict[str, dict[tuple[str, str], Row]] = {}
    for result in results:
        if result.measurement is not None and result.entry is not None and result.prompt is not None:
            at_once = result.measurement.get("level") is not None
            row = (_concurrency_row if at_once else _result_row)(result.entry, result.measurement)
            # Several tests may share a measurement.
            key = (result.entry["id"], result.measurement["started_at"])
            found.setdefault(AT_ONCE if at_once else result.prompt, {})[key] = row
    return {
        prompt: table(AT_ONCE_HEAD if prompt == AT_ONCE else RESULT_HEAD, rows.values())
        for prompt, rows in found.items()
    }


def suspicion_lines(results: Iterable[Result]) -> list[str]:
    """What is odd about the figures, test by test."""
    return [
        f"{result.nodeid}: {odd}"
        for result in results
        if result.measurement is not None
        for odd in result.measurement["suspicions"]
    ]


def inconclusive_lines(results: Iterable[Result]) -> list[str]:
    """How many verdicts their intervals left open, and which."""
    lines = [
        f"{result.nodeid}: {found['metric']} {_open_verdict(found)}"
        for result in results
        for found in result.verdicts
        if found["outcome"] == Outcome.INCONCLUSIVE
    ]
    return [f"{len(lines)} decided by the ratio: no interval lay on one side of the gate", *lines] if lines else []


def _open_verdict(found: Mapping[str, Any]) -> str:
    gate = found["gate"]
    text = f"ratio {ratio_text(found['ratio'], gate)}"
    if found["interval"] is not None:
        text += f" (interval {interval_text(found['interval'], gate)})"
    return f"{text}, gate {gate:g}, n = {found['n']}: {'passed' if found['ratio'] >= gate else 'failed'}"


def _result_row(entry: Mapping[str, Any], measurement: Mapping[str, Any]) -> Row:
    figures = measurement["metrics"]

    def cell(fmt: Callable[[float | None], str], name: str) -> str:
        return fmt(figures[name])

    return (
        entry["id"] + (ODD if measurement["suspicions"] else ""),
        entry["backend"],
        entry["quant"] or units.MISSING,
        entry["kv_cache"],
        cell(units.seconds, "ttft_s"),
        cell(units.seconds, "ttft_cached_s"),
        cell(units.rate, "decode_tok_s"),
        cell(units.rate, "prefill_tok_s"),
        columns.tokens(figures.__getitem__),
        columns.memory(figures.__getitem__),
    )


def _concurrency_row(entry: Mapping[str, Any], measurement: Mapping[str, Any]) -> Row:
    return (
        entry["id"] + (ODD if measurement["suspicions"] else ""),
        entry["backend"],
        str(measurement["level"]),
        *columns.concurrency_cells(measurement["metrics"].__getitem__),
    )


def readiness(
    bench: Bench, entries: Iterable[MatrixEntry], models: Iterable[tuple[ParityPlan, ParityPlanModel]] = ()
) -> list[str]:
    """The readiness table of matrix entries and of parity plans' models, and how many of them could run."""
    head = ("id", "backend", "model", "quant", "kv", "ready", "why not, and the fix")
    rows = [_readiness_row(bench, entry) for entry in entries]
    rows += [_plan_row(bench, plan, model) for plan, model in models]
    ready = sum(row[5] == "yes" for row in rows)
    return [*table(head, rows), "", f"{ready}/{len(rows)} ready"]


def _readiness_row(bench: Bench, entry: MatrixEntry) -> Row:
    state, why = "yes", ""
    error = bench.unavailable(entry) if entry.enabled else None
    if not entry.enabled:
        state, why = "off", f"disabled: {entry.reason}; to try it: enabled: true in {entry.path.name}:{entry.line}"
    elif error is not None:
        state, why = "no", str(error) + (f" (needs: {entry.prereq})" if entry.prereq else "")
    return (entry.id, entry.backend, entry.model_id, entry.quant or units.MISSING, entry.kv_cache, state, why)


def _plan_row(bench: Bench, plan: ParityPlan, model: ParityPlanModel) -> Row:
    sides = f"{plan.candidate} vs {plan.baseline}"
    return (model.name, sides, model.id, model.quant or units.MISSING, units.MISSING, *_plan_state(bench, plan, model))


def _plan_state(bench: Bench, plan: ParityPlan, model: ParityPlanModel) -> tuple[str, str]:
    if not model.enabled:
        return "off", f"disabled: {model.reason}"
    try:
        checkpoint = bench.plans.checkpoint(plan, model)
    except Unavailable as error:
        return "no", str(error)
    missing = bench.plans.missing_programs(plan)
    if missing:
        return "no", f"{', '.join(missing)}: no program that can be run; correct `sides` in {plan.path.name}"
    return "yes", f"with random weights: {checkpoint.path}" if checkpoint.synthetic else ""
