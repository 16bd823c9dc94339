"""Saved results in one form, whichever kind of record they come from: what is compared, listed and exported.

run.json      a subject is an entry and a prompt; its metrics are the medians
parity.json   a subject is a point of a model's section; its metrics are the candidate's, and each one's ratio to
              the baseline's as METRIC_ratio; `reference` holds the baseline's
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Final, Literal

from pytest_llmbench import parity, stats, verdict
from pytest_llmbench.environment import Environment, differences
from pytest_llmbench.errors import RecordError
from pytest_llmbench.json_node import read_json
from pytest_llmbench.parity_record import OUR_SCHEMA, ParityRecord, parse_parity_record
from pytest_llmbench.record import SCHEMA, Result, Run, verdict_json

PARITY_SCHEMAS: Final = (OUR_SCHEMA, "nuvec-parity-record")
_WORST: Final = ("error", "failed", "xpassed", "passed", "xfailed", "skipped")
"""Of several tests of one subject the worst outcome counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """One metric of one subject: its figure, and the runs' own ones that stand behind it (() where there are none)."""

    value: float
    samples: tuple[float, ...] = ()

    @property
    def spread(self) -> tuple[float, float, Literal["bounds", "range"]] | None:
        """Bounds of the median where there are samples enough, else their range; None for one sample."""
        if len(self.samples) < 2:
            return None
        if (bounds := stats.median_bounds(self.samples)) is not None:
            return *bounds, "bounds"
        return min(self.samples), max(self.samples), "range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where results come from: the file, when it was begun (ISO 8601, UTC), and on what machine."""

    path: Path
    created: str
    fingerprint: str
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chip(self) -> str:
        """The machine's chip or GPU; "" where the record doesn't say."""
        return str(self.environment.get("gpu") or self.environment.get("chip") or "")

    @property
    def commit(self) -> str:
        """The repository's commit; "" where the record doesn't say."""
        return str(self.environment.get("git_commit") or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was measured together. `facts` are model, backend, version, fmt, quant, kv_cache, section, ….

    `metrics` is empty where nothing was measured; `outcome` and `reason` then say why. `verdicts` are as in run.json.
    """

    id: str
    prompt: str
    source: Source
    outcome: str
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Values] = field(default_factory=dict)
    reference: Mapping[str, Values] = field(default_factory=dict)
    verdicts: Sequence[Mapping[str, Any]] = ()
    suspicions: tuple[str, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Power and thermal state before and after, as in run.json."""

    @property
    def name(self) -> str:
        """Entry and prompt, as a test id has them."""
        return f"{self.id}-{self.prompt}" if self.prompt else self.id

    @property
    def counts(self) -> Mapping[str, float]:
        """How many tokens went in and out: other counts, another measurement."""
        return {
            name: self.metrics[name].value for name in ("prompt_tokens", "completion_tokens") if name in self.metrics
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything read for one side of a comparison, or for one report."""

    runs: tuple[tuple[Source, Run], ...] = ()
    parities: tuple[tuple[Source, ParityRecord], ...] = ()
    subjects: tuple[Subject, ...] = ()

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(source for source, _ in (*self.runs, *self.parities))


def load(paths: Iterable[Path]) -> Loaded:
    """Read runs and parity records: files, or folders with run.json, parity.json, parity-….json in them.

    RecordError names a file that is neither, and a folder without any.
    """
    runs: list[tuple[Source, Run]] = []
    parities: list[tuple[Source, ParityRecord]] = []
    subjects: list[Subject] = []
    for path in (file for given in paths for file in files_of(given)):
        record = read_record(path)
        if isinstance(record, Run):
            runs.append((source := run_source(path, record), record))
            subjects += run_subjects(record, source)
        else:
            parities.append((source := parity_source(path, record), record))
            subjects += parity_subjects(record, source)
    return Loaded(runs=tuple(runs), parities=tuple(parities), subjects=tuple(subjects))


def files_of(path: Path) -> list[Path]:
    """The file itself, or the records that a run left in a folder."""
    if not path.is_dir():
        return [path]
    found = [path / "run.json", *sorted(path.glob("parity*.json"))]
    if there := [file for file in found if file.is_file()]:
        return there
    raise RecordError(f"{path}: no run.json and no parity.json in it; name the folder that --llmbench-out named")


def read_record(path: Path) -> Run | ParityRecord:
    """Of whichever kind the file says it is. RecordError for what is no record of ours."""
    schema = (root := read_json(path)).get("schema")
    if schema is None or schema.value not in (SCHEMA, *PARITY_SCHEMAS):
        root.fail(f"no record: its schema is {None if schema is None else schema.value!r}", hint="name another file")
    return Run.from_json(root.value, path=path) if schema.value == SCHEMA else parse_parity_record(root)


def run_source(path: Path, run: Run) -> Source:
    """Of a run; the head of a merged one stands for all its machines."""
    fingerprint = str(run.environment.get("fingerprint", ""))
    return Source(path=path, created=run.created, fingerprint=fingerprint, environment=run.environment)


def parity_source(path: Path, record: ParityRecord) -> Source:
    """Of a parity record; one of another program has no fingerprint."""
    fingerprint = str(record.environment.get("fingerprint", ""))
    created = record.created.astimezone(UTC).isoformat(timespec="milliseconds")
    return Source(path=path, created=created, fingerprint=fingerprint, environment=record.environment)


def run_subjects(run: Run, source: Source) -> list[Subject]:
    """One for each entry and prompt (and machine, in a merged run), from all of its tests."""
    grouped: dict[tuple[str, str, str], list[Result]] = {}
    for result in run.results:
        if result.entry is not None:
            grouped.setdefault((result.entry["id"], result.prompt or "", run.source_of(result)), []).append(result)
    return [
        _run_subject(results, _origin(source, run.sources[origin]) if origin else source)
        for (_, _, origin), results in grouped.items()
    ]


def _origin(source: Source, head: Mapping[str, Any]) -> Source:
    environment = head["environment"]
    return replace(
        source, created=head["created"], fingerprint=environment.get("fingerprint", ""), environment=environment
    )


def _run_subject(results: Sequence[Result], source: Source) -> Subject:
    last = max(results, key=lambda r: (r.measurement is not None, r.finished_at))
    entry, measurement = last.entry or {}, last.measurement
    worst = min(results, key=lambda r: _WORST.index(r.outcome))
    facts = {name: str(entry.get(name) or "") for name in ("model", "model_id", "backend", "fmt", "quant", "kv_cache")}
    facts["version"] = "" if measurement is None else str(measurement["target"]["version"] or "")
    return Subject(
        id=str(entry["id"]),
        prompt=last.prompt or "",
        source=source,
        outcome=worst.outcome,
        reason=worst.reason or "",
        facts=facts,
        metrics={} if measurement is None else measured_values(measurement),
        verdicts=[v for result in results for v in result.verdicts],
        suspicions=() if measurement is None else tuple(measurement["suspicions"]),
        conditions={} if measurement is None else measurement["conditions"],
    )


def measured_values(measurement: Mapping[str, Any]) -> dict[str, Values]:
    """Of a measurement as run.json has it: what was measured, with the values of the valid runs."""
    valid = list(_runs(measurement))
    return {
        name: Values(value=value, samples=tuple(v for run in valid if (v := run.get(name)) is not None))
        for name, value in measurement["metrics"].items()
        if value is not None
    }


def _runs(measurement: Mapping[str, Any]) -> Iterator[Mapping[str, float | None]]:
    """The figures of each valid run: of a request by itself, or of a round.

    A round is one sample, with its requests' medians: what slows one of them slows all, so that as samples of their own
    they would make intervals look far narrower than they are.
    """
    samples, level = measurement["samples"], measurement.get("level")
    if level is None:
        yield from (sample["metrics"] for sample in samples if sample["invalid"] is None)
        return
    for number, found in enumerate(measurement["rounds"]):
        if found["valid"]:
            requests = [sample["metrics"] for sample in samples[number * level : (number + 1) * level]]
            medians = {name: stats.median_of_known(request[name] for request in requests) for name in requests[0]}
            yield medians | found["metrics"]


def parity_subjects(record: ParityRecord, source: Source) -> list[Subject]:
    """One for each point of each section of each model."""
    return [
        _parity_subject(record, model, point, source)
        for model in record.models
        for point in model.points
        if point.results
    ]


def _parity_subject(
    record: ParityRecord, model: parity.ParityModel, point: parity.ParityPoint, source: Source
) -> Subject:
    gated = [(r, found) for r in point.results if r.gated and (found := parity.judge(r, record.gate)) is not None]
    outcome, reason = _parity_outcome(point, [found for _, found in gated])
    return Subject(
        id=parity.point_id(model.name, point.section, point.name),
        prompt="",
        source=source,
        outcome=outcome,
        reason=reason,
        facts={
            "model": model.name,
            "model_id": model.id,
            "backend": record.candidate.name,
            "version": record.candidate.version,
            "section": point.section,
            "point": point.name,
            "reference": record.baseline.name,
            "reference_version": record.baseline.version,
        },
        metrics={name: values for r in point.results for name, values in result_values(r).items()},
        reference={r.metric: _side_values(r.baseline) for r in point.results if r.baseline is not None},
        verdicts=[verdict_json(found) for _, found in gated],
    )


def result_values(result: parity.ParityResult) -> dict[str, Values]:
    """The candidate's figure and its ratio to the baseline's; {} where the candidate has none."""
    if result.candidate is None:
        return {}
    found = {result.metric: _side_values(result.candidate)}
    if (ratio := result.ratio) is not None and result.baseline is not None:
        pairs = zip(result.candidate.samples, result.baseline.samples, strict=False)
        ratios = tuple(r for pair in pairs if (r := verdict.ratio(result.metric, *pair)) is not None)
        same = len(result.candidate.samples) == len(result.baseline.samples)
        found[f"{result.metric}_ratio"] = Values(value=ratio, samples=ratios if same else ())
    return found


def _side_values(side: parity.Side) -> Values:
    return Values(value=side.median, samples=side.samples)


def _parity_outcome(point: parity.ParityPoint, verdicts: Sequence[verdict.Verdict]) -> tuple[str, str]:
    """As the point's tests would end."""
    for result in point.results:
        if result.candidate_failed or result.baseline is None:
            return "error" if result.candidate_failed else "skipped", result.reason
    failed = [found.message() for found in verdicts if not found.passed]
    return ("failed", "\n".join(failed)) if failed else ("passed", "")


def environment_differences(old: Source, new: Source) -> list[str]:
    """`name: old → new` for what makes two machines incomparable; of a record of another kind, what both say."""
    if (old.fingerprint and old.fingerprint == new.fingerprint) or old.environment == new.environment:
        return []
    try:
        return differences(Environment.from_json(old.environment), Environment.from_json(new.environment))
    except (TypeError, AttributeError):  # a record of another program, or one changed by a hook
        names = ("machine", "chip", "gpu", "memory_bytes", "os")
        a, b = old.environment, new.environment
        found = [f"{n}: {a.get(n)} → {b.get(n)}" for n in names if n in a and n in b and a[n] != b[n]]
        return found or [f"fingerprint: {old.fingerprint or 'unknown'} → {new.fingerprint or 'unknown'}"]
