"""A run's results as JSON: what one test gives, and the file `run.json` that holds them all.

The format is `schema/run.schema.json`. Times are UTC, numbers finite, files replaced whole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pytest_llmbench.errors import RecordError
from pytest_llmbench.json_node import JsonNode
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.measure import Measurement
from pytest_llmbench.run_shape import check_run
from pytest_llmbench.verdict import Verdict

if TYPE_CHECKING:
    from pytest_llmbench.backends.base import TargetInfo

SCHEMA = "llmbench-run"
SCHEMA_VERSION = 1
SOURCE = "llmbench_source"
"""The name in `extra` under which a merged result says where it comes from; other names are the user's."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
_RUN_PARTS: Mapping[str, type | UnionType] = {
    "created": str,
    "complete": bool,
    "environment": dict,
    "options": dict,
    "results": list,
}
_SOURCE_PARTS: Mapping[str, type | UnionType] = {"created": str, "environment": dict, "options": dict}
_RESULT_PARTS: Mapping[str, type | UnionType] = {
    "nodeid": str,
    "outcome": str,
    "duration_s": int | float,
    "finished_at": str,
    "reason": str | None,
    "entry": dict | None,
    "prompt": str | None,
    "measurement": dict | None,
    "verdicts": list,
    "extra": dict,
}
_ENTRY_FIELDS = ("id", "backend", "model_id", "model", "name", "group", "fmt", "quant", "kv_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One finished test. `reason`: why it failed, was skipped, or couldn't be measured.

    `parity`: a whole section of a live parity run, with the first of its tests.
    """

    nodeid: str
    outcome: Outcome
    duration_s: float
    finished_at: str
    reason: str | None = None
    entry: Mapping[str, Any] | None = None
    prompt: str | None = None
    measurement: Mapping[str, Any] | None = None
    verdicts: Sequence[Mapping[str, Any]] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`. RecordError names what is missing or unknown."""
        _check_parts(data, _RESULT_PARTS, "result")
        unknown = sorted(set(data) - {f.name for f in fields(cls)})
        if unknown:
            raise RecordError(f"no valid result: unknown {', '.join(unknown)}")
        if data["outcome"] not in get_args(Outcome):
            raise RecordError(f"no valid result: outcome is {data['outcome']!r}, not {', '.join(get_args(Outcome))}")
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole session, or several merged: `sources` then holds the heads of the merged ones by name, and each result
    says in `extra[SOURCE]` which is its own."""

    created: str
    environment: Mapping[str, Any]
    options: Mapping[str, Any]
    results: tuple[Result, ...]
    complete: bool = True
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def source_of(self, result: Result) -> str:
        """The name of the result's head in `sources`; "" in a run that wasn't merged."""
        return str(result.extra[SOURCE]) if self.sources else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "created": self.created,
            "complete": self.complete,
            "environment": dict(self.environment),
            "options": dict(self.options),
            **({"sources": {name: dict(head) for name, head in self.sources.items()}} if self.sources else {}),
            "results": [r.to_json() for r in self.results],
        }

    @classmethod
    def from_json(cls, data: Any, *, path: Path) -> Self:
        """RecordError for another schema, another version, or a file that lacks a part."""
        check_head(data, path=path)
        try:
            _check_parts(data, _RUN_PARTS, "run")
            run = cls(
                created=data["created"],
                complete=data["complete"],
                environment=data["environment"],
                options=data["options"],
                results=tuple(Result.from_json(r) for r in data["results"]),
                sources=_sources(data.get("sources", {})),
            )
            _check_origins(run)
        except RecordError as error:
            raise RecordError(f"{path}: {error}; restore the file, or run again") from error
        check_run(JsonNode(value=data, file=path))
        return run


def utc_now() -> str:
    """Now, as records write it: `2026-01-31T12:00:00.000+00:00`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def check_head(data: Any, *, path: Path) -> None:
    """RecordError unless `data` says that it is a run of this version."""
    if not isinstance(data, dict):
        raise RecordError(f"{path}: a run is a JSON object, this is a {type(data).__name__}")
    schema, version = data.get("schema"), data.get("schema_version")
    if schema != SCHEMA:
        raise RecordError(f"{path}: schema is {schema!r}, not {SCHEMA!r}; is it another kind of file?")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise RecordError(f"{path}: {SCHEMA} version {version!r}; this release reads {SCHEMA_VERSION}: upgrade it")


def _check_parts(data: Any, parts: Mapping[str, type | UnionType], what: str) -> None:
    """RecordError unless `data` is an object that has each of `parts`, of its type."""
    if not isinstance(data, dict):
        raise RecordError(f"no valid {what}: a {type(data).__name__}, not a JSON object")
    for name, kind in parts.items():
        if name not in data:
            raise RecordError(f"no valid {what}: {name} is missing")
        value = data[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RecordError(f"no valid {what}: {name} is {value!r:.80}")


def _sources(data: Any) -> dict[str, Any]:
    """Heads of merged runs. RecordError unless each has what a run's head has."""
    if not isinstance(data, dict):
        raise RecordError("no valid run: sources is no JSON object")
    for head in data.values():
        _check_parts(head, _SOURCE_PARTS, "source")
    return data


def _check_origins(run: Run) -> None:
    """RecordError unless each result of a merged run says from which of its sources it is."""
    for result in run.results:
        if run.sources and result.extra.get(SOURCE) not in run.sources:
            raise RecordError(f"no valid run: {result.nodeid} has no {SOURCE} of {', '.join(run.sources)} in its extra")


def entry_json(entry: MatrixEntry) -> dict[str, Any]:
    """What a result says of its entry: never its key, environment or arguments (those are in the hidden command)."""
    return {name: getattr(entry, name) for name in _ENTRY_FIELDS}


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """A measurement with its raw samples, its figures and what is odd about them."""
    return {
        "started_at": measurement.started_at.isoformat(timespec="milliseconds"),
        "target": _target_json(measurement.target),
        "settings": settings_json(measurement.settings),
        "prompt_exact": measurement.prompt_exact,
        "metrics": measurement.metrics(),
        "warmups": [s.to_json() for s in measurement.warmups],
        "samples": [s.to_json() for s in measurement.samples],
        "cached": measurement.cached.to_json() if measurement.cached else None,
        "memory": asdict(measurement.memory) if measurement.memory else None,
        "conditions": dict(measurement.conditions),
        "suspicions": list(measurement.suspicions),
        "level": measurement.level,
        "rounds": [{"valid": r.valid, "metrics": r.metrics()} for r in measurement.rounds],
    }


def settings_json(settings: RunSettings) -> dict[str, Any]:
    """The values that a measurement ran with, in plain JSON types."""
    found: dict[str, Any] = json.loads(dumps(asdict(settings) | {"custom_prompts": None}))
    return found


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {"outcome": str(verdict.outcome)}


def _target_json(target: TargetInfo) -> dict[str, Any]:
    return asdict(target) | {"log_path": target.log_path.name if target.log_path else None}


def dumps(data: Any, *, indent: int | None = None) -> str:
    """JSON without NaN or infinity (ValueError), in the order in which it was built."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=indent, default=_plain)
    # Half a surrogate pair can't be written as UTF-8, but JSON has an escape for it.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def loads(text: str) -> Any:
    """Parse JSON whose numbers are all finite; ValueError for anything else."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number that a record may hold")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in a record")


def write_json(path: Path, data: Any) -> None:
    """`write_text` of `data`, indented."""
    write_text(path, dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write to a name of its own, then rename: a reader sees the old file or the new one, never a half.

    A link stays a link to what is replaced. A device or a pipe is written to: renamed over, /dev/null would be a file.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", newline="")
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_run(path: Path) -> Run:
    """Read `run.json`. RecordError with the path for anything that is no run."""
    try:
        data = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: can't be read as JSON: {error}") from error
    return Run.from_json(data, path=path)
