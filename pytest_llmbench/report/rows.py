"""What the page shows, as JSON: a row for each thing that was measured, or was to be.

A row is an entry and prompt of a run, a side of a parity record's point, or a test of neither that didn't pass. Metrics
have the same name on every row (`decode_tok_s`, …), wherever they come from; what wasn't measured isn't there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.figures import Loaded, Source, Subject, Values
from pytest_llmbench.history import machine_of
from pytest_llmbench.matrix import concurrency_level
from pytest_llmbench.parity import DEFAULT_GATE, DEFAULT_GOAL, ParityPoint, point_id
from pytest_llmbench.record import Result

DIGITS: Final = 6
REASON_CHARACTERS: Final = 1200
_SHOWN: Final = {"tok_s": "decode_tok_s", "peak_bytes": "peak_memory_bytes", "model_ready_s": "load_s"}
"""Names of a parity record's metrics on the page."""
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "thinking_tokens")
_HELD_BACK: Final = (None, "nominal")

Row = dict[str, Any]


def page_data(loaded: Loaded) -> dict[str, Any]:
    """`sources` and `rows`; a row's `source` is an index."""
    numbers: dict[tuple[Path, str, str], int] = {}
    sources: list[dict[str, Any]] = []
    limits = {id(source): (record.gate, record.goal) for source, record in loaded.parities}
    index: dict[int, int] = {}
    for source in [*loaded.sources, *(subject.source for subject in loaded.subjects)]:
        key = (source.path, source.created, source.fingerprint)
        if key not in numbers:
            numbers[key] = len(sources)
            sources.append(_source(source, *limits.get(id(source), (DEFAULT_GATE, DEFAULT_GOAL))))
        index[id(source)] = numbers[key]
    points = _points(loaded)
    rows = [
        row
        for subject in loaded.subjects
        for row in _rows(subject, index[id(subject.source)], points.get((id(subject.source), subject.id)))
    ]
    return {"sources": sources, "rows": rows + _other_tests(loaded, index)}


def _source(source: Source, gate: float, goal: float) -> dict[str, Any]:
    environment = source.environment
    return {
        "file": "/".join(source.path.parts[-2:]),
        "created": source.created,
        "fingerprint": source.fingerprint,
        "place": machine_of(source),
        "commit": source.commit,
        "machine": machine(source),
        "memory_bytes": environment.get("memory_bytes"),
        "system": _system(environment),
        "power": _power(environment.get("power")),
        "swap_bytes": environment.get("swap_used_bytes", environment.get("swap_used_bytes_at_start")),
        "gate": gate,
        "goal": goal,
    }


def machine(source: Source) -> str:
    """What the page calls a machine: its chip or GPU, else its name."""
    return source.chip or str(source.environment.get("machine") or "unknown machine")


def _system(environment: Mapping[str, Any]) -> str:
    if isinstance(macos := environment.get("macos"), Mapping):
        return f"macOS {macos.get('version', '')}".strip()
    return " ".join(str(environment[name]) for name in ("os", "os_version") if environment.get(name))


def _power(found: Any) -> dict[str, Any]:
    """Source, Low Power Mode and thermal state, of our records or another program's."""
    known: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    return {
        "source": known.get("power_source", known.get("source")),
        "low_power_mode": known.get("low_power_mode"),
        "thermal_state": known.get("thermal_state"),
    }


def _points(loaded: Loaded) -> dict[tuple[int, str], ParityPoint]:
    """A parity record's points by source (its `id`, as in `page_data`) and subject."""
    return {
        (id(source), point_id(model.name, point.section, point.name)): point
        for source, record in loaded.parities
        for model in record.models
        for point in model.points
    }


def _rows(subject: Subject, source: int, point: ParityPoint | None) -> Iterable[Row]:
    yield _row(subject, source, subject.metrics) | _place(subject, point, 0)
    if not subject.facts.get("reference"):
        return
    backend, version = subject.facts["reference"], subject.facts["reference_version"]
    baseline = _row(subject, source, subject.reference)
    silent = {"odd": [], "verdicts": [], "reason": subject.reason if not subject.reference else ""}
    status = "reference" if subject.reference else "skipped"
    yield baseline | _place(subject, point, 1) | silent | {
        "side": "baseline", "backend": backend, "version": version, "status": status, "outcome": status
    }  # fmt: skip


def _row(subject: Subject, source: int, metrics: Mapping[str, Values]) -> Row:
    facts = subject.facts
    return {
        "source": source,
        "id": subject.id,
        "prompt": subject.prompt,
        "side": "candidate" if facts.get("reference") else "",
        "model": facts.get("model") or facts.get("model_id", ""),
        "modelId": facts.get("model_id", ""),
        **{name: facts.get(name, "") for name in ("backend", "version", "fmt", "quant", "section", "point")},
        "kv": facts.get("kv_cache", ""),
        "outcome": subject.outcome,
        "status": status_of(subject),
        "reason": subject.reason[:REASON_CHARACTERS],
        "odd": list(subject.suspicions),
        "verdicts": [_verdict(found) for found in subject.verdicts],
        "metrics": {shown_name(name): _figure(values) for name, values in metrics.items() if _is_shown(name)},
        "conditions": _conditions(subject),
    }


def status_of(subject: Subject) -> str:
    """The outcome, or `inconclusive` or `suspect` where a test passed that isn't to be believed as it is."""
    if subject.outcome != "passed":
        return subject.outcome
    if any(found["outcome"] == "inconclusive" for found in subject.verdicts):
        return "inconclusive"
    return "suspect" if subject.suspicions else "passed"


def _place(subject: Subject, point: ParityPoint | None, side: int) -> Row:
    """Context length in tokens, and how many requests ran at once where that was measured."""
    tokens = subject.metrics.get("prompt_tokens")
    if point is None:
        level = concurrency_level(subject.prompt) if "wall_s" in subject.metrics else None
        return {"context": None if tokens is None else tokens.value, "level": level}
    level = int(point.name) if point.section == "concurrency" else None
    known = point.prompt_tokens[side] if point.prompt_tokens else None
    exact = int(point.name) if point.section == "ttft" and point.name.isdigit() else None
    note = "" if point.note is None else point.note
    return {
        "context": known or exact,
        "level": level,
        "note": note,
        "same": point.same_tokens,
        "solo": point.matches_solo,
    }


def shown_name(metric: str) -> str:
    """What the page calls a metric of a record."""
    return _SHOWN.get(metric, metric)


def _is_shown(name: str) -> bool:
    return name in _COUNTS or name.endswith(("_s", "_bytes", "_ratio"))


def _figure(values: Values) -> list[Any]:
    """[value, low, high, samples, how], as `Values.spread` has them."""
    samples = [rounded(sample) for sample in values.samples]
    if (spread := values.spread) is None:
        return [rounded(values.value), None, None, samples, ""]
    low, high, how = spread
    return [rounded(values.value), rounded(low), rounded(high), samples, how]


def rounded(value: float) -> float:
    """Enough digits for a page, and a third of the bytes."""
    return float(f"{value:.{DIGITS}g}")


def _verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    names = ("outcome", "metric", "value", "reference", "ratio", "interval", "gate", "n", "reason", "rule")
    return {name: found[name] for name in names}


def _conditions(subject: Subject) -> dict[str, Any]:
    """Power before, thermal state before and after; `held_back`: that the machine was slowed down, None: not known."""
    before, after = (_power(subject.conditions.get(when)) for when in ("before", "after"))
    if not subject.conditions:
        before = after = _power(subject.source.environment.get("power"))
    states = (before["thermal_state"], after["thermal_state"])
    slowed = before["low_power_mode"] or after["low_power_mode"] or any(state not in _HELD_BACK for state in states)
    known = None not in states or before["low_power_mode"] is not None
    return {**before, "thermal_after": states[1], "held_back": True if slowed else (False if known else None)}


def _other_tests(loaded: Loaded, index: Mapping[int, int]) -> list[Row]:
    """Tests without an entry that say something no subject says: a parity section that couldn't run, a user's own."""
    known = {subject.id for subject in loaded.subjects}
    return [
        _test_row(result, index[id(source)])
        for source, run in loaded.runs
        for result in run.results
        if result.entry is None and _point_id(result) not in known and _says_something(result)
    ]


def _says_something(result: Result) -> bool:
    return result.outcome != "passed" or bool(result.verdicts)


def _point_id(result: Result) -> str:
    """`MODEL-SECTION-POINT` of a parity test, "" of another."""
    test = result.nodeid.rpartition("::")[2]
    return test[len("test_parity[") : -1].rpartition("-")[0] if test.startswith("test_parity[") else ""


def _test_row(result: Result, source: int) -> Row:
    extra = result.extra
    model = str(extra.get("model_id") or "")
    empty = dict.fromkeys(("prompt", "side", "backend", "version", "fmt", "quant", "kv"), "")
    return empty | {
        "source": source,
        "id": result.nodeid.rpartition("::")[2],
        "model": model.rpartition("/")[2],
        "modelId": model,
        "section": str(extra.get("section") or ""),
        "point": str(extra.get("point") or ""),
        "outcome": result.outcome,
        "status": result.outcome,
        "reason": (result.reason or "")[:REASON_CHARACTERS],
        "odd": [],
        "verdicts": [_verdict(found) for found in result.verdicts],
        "metrics": {},
        "conditions": {"held_back": None},
        "context": None,
        "level": None,
    }
