"""Several records of one kind as one: shards of a run, runs of several machines, models of a parity run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import RecordError
from pytest_llmbench.figures import read_record
from pytest_llmbench.parity import SECTIONS, ParityModel
from pytest_llmbench.parity_json import to_json
from pytest_llmbench.parity_record import ParityRecord
from pytest_llmbench.record import SOURCE, Result, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The merged record as JSON, and a line for each duplicate: which was kept."""

    data: Mapping[str, Any]
    duplicates: tuple[str, ...]


def merge(paths: Sequence[Path]) -> Merged:
    """Merge runs, or parity records of the same sides and settings. RecordError where they don't go together."""
    runs: list[tuple[Path, Run]] = []
    parities: list[ParityRecord] = []
    for path in paths:
        record = read_record(path)
        if isinstance(record, Run):
            runs.append((path, record))
        else:
            parities.append(record)
    if runs and parities:
        raise RecordError(f"{runs[0][0]} is a run and {parities[0].path} a parity record; merge each kind by itself")
    return merge_parity(parities) if parities else merge_runs(runs)


def merge_runs(runs: Sequence[tuple[Path, Run]]) -> Merged:
    """Each result keeps its own machine: `extra.llmbench_source` names the head in `sources`.

    Of two results of one test on one machine the later one counts, unless it was skipped and the other wasn't.
    """
    sources: dict[str, dict[str, Any]] = {}
    chosen: dict[tuple[str, str], tuple[str, Result]] = {}
    duplicates: list[str] = []
    for path, run in runs:
        names = _name_sources(path, run, sources)
        for result in run.results:
            name = names[run.source_of(result)]
            key = (_machine(sources[name]), result.nodeid)
            found = (name, replace(result, extra={**result.extra, SOURCE: name}))
            if key in chosen and chosen[key][1] != found[1]:
                found = _later(chosen[key], found)
                duplicates.append(f"{result.nodeid}: twice on one machine; kept {found[1].outcome} of {found[0]}")
            chosen[key] = found
    return Merged(data=_merged(runs, sources, [result for _, result in chosen.values()]), duplicates=tuple(duplicates))


def _name_sources(path: Path, run: Run, sources: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The run's own names of its sources → their names in the merged one; "" is the run itself."""
    heads: Mapping[str, Mapping[str, Any]] = run.sources or {
        "": {"created": run.created, "environment": run.environment, "options": run.options, "file": str(path)}
    }
    names = {}
    for own, head in heads.items():
        known = next((name for name, other in sources.items() if _same(other, head)), None)
        names[own] = known or str(len(sources) + 1)
        sources[names[own]] = dict(head)
    return names


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """One run, given twice or merged before."""
    return bool(a["created"] == b["created"] and a["environment"] == b["environment"])


def _machine(head: Mapping[str, Any]) -> str:
    return str(head["environment"].get("fingerprint", ""))


def _later(a: tuple[str, Result], b: tuple[str, Result]) -> tuple[str, Result]:
    return max(a, b, key=lambda found: (found[1].outcome != "skipped", found[1].finished_at))


def _merged(runs: Sequence[tuple[Path, Run]], sources: Mapping[str, dict[str, Any]], results: list[Result]) -> Any:
    newest = max((run for _, run in runs), key=lambda run: run.created)
    machines = sorted({_machine(head) for head in sources.values()})
    environment = dict(newest.environment)
    if len(machines) > 1:  # never that of one machine
        environment["fingerprint"] = hashlib.sha256(" ".join(machines).encode()).hexdigest()[:12]
    return Run(
        created=newest.created,
        environment=environment,
        options=newest.options,
        results=tuple(results),
        complete=all(run.complete for _, run in runs),
        sources=sources,
    ).to_json()


def merge_parity(records: Sequence[ParityRecord]) -> Merged:
    """Models of all records; of a model that stands in several the sections of the later record replace the earlier's.

    RecordError where sides, gate, goal or machine differ: their ratios don't belong into one summary.
    """
    ordered = sorted(records, key=lambda record: record.created)
    for other in ordered[1:]:
        _require_alike(ordered[0], other)
    models: dict[str, ParityModel] = {}
    duplicates: list[str] = []
    for record in ordered:
        for model in record.models:
            if model.id in models:
                models[model.id], twice = _merge_models(models[model.id], model)
                duplicates += [f"{model.id} {section}: twice; kept that of {record.path}" for section in twice]
            else:
                models[model.id] = model
    sections = tuple(s for s in SECTIONS if any(s in record.sections for record in records))
    merged = replace(ordered[-1], models=tuple(models.values()), sections=sections)
    return Merged(data=to_json(merged), duplicates=tuple(duplicates))


def _require_alike(a: ParityRecord, b: ParityRecord) -> None:
    for what, mine, theirs in (
        ("candidate", _side(a.candidate), _side(b.candidate)),
        ("baseline", _side(a.baseline), _side(b.baseline)),
        ("gate", f"{a.gate:g}", f"{b.gate:g}"),
        ("goal", f"{a.goal:g}", f"{b.goal:g}"),
        ("machine", a.environment.get("fingerprint"), b.environment.get("fingerprint")),
    ):
        if mine != theirs:
            raise RecordError(f"{a.path} and {b.path} don't go together: {what} {mine} and {theirs}; report them apart")


def _side(engine: Any) -> str:
    return f"{engine.name} {engine.version}"


def _merge_models(old: ParityModel, new: ParityModel) -> tuple[ParityModel, list[str]]:
    measured = {point.section for point in new.points}
    twice = sorted({point.section for point in old.points} & measured)
    points = sorted(
        (*(point for point in old.points if point.section not in measured), *new.points),
        key=lambda point: SECTIONS.index(point.section),
    )
    state = new if new.status != "ok" else old
    if not {point.section for point in old.points} - measured:
        state = new
    return replace(new, points=tuple(points), status=state.status, reason=state.reason), twice
