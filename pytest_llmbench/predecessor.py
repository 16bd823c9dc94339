"""The predecessor's CSV files as a run: each figure under the name that it deserves, and what is unsound marked.

Its runs repeat one prompt, so `ttft_ms` is the time of a prompt that the server knows: `ttft_cached_s` here. Its first
run, `cold_ttft_ms`, is `ttft_s`. It counts CPU wrongly (always 0), so that column is left out.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pytest_llmbench import stats
from pytest_llmbench.errors import RecordError
from pytest_llmbench.predecessor_odd import suspicions
from pytest_llmbench.record import Result, Run
from pytest_llmbench.sample import Sample

TEXT: Final = ("test_id", "test_name", "backend", "fmt", "quant", "kv_cache", "prompt_type", "backend_version")
NUMBERS: Final = (
    "run_num", "ttft_ms", "decode_tps", "prefill_tps", "completion_tokens", "prompt_tokens", "total_time_s",
    "model_load_s", "thinking_tokens", "visible_tokens", "cold_ttft_ms", "peak_mem_mb",
)  # fmt: skip
OPTIONAL: Final = ("model", "peak_cpu_pct", "tool_call_valid", "quality_pass")
MEBIBYTE: Final = 2**20
MOST: Final = 1e12
"""Beyond any figure of it, in whatever unit: a cell that holds more is damaged."""
OTHER_DELIMITERS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NAME_TIME: Final = re.compile(r"(\d{8})_(\d{6})")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
Row = Mapping[str, Any]


def import_csv(paths: Sequence[Path], *, machine: str = "") -> Run:
    """One run of all files. `machine` is what the user says of it: the files don't.

    RecordError with file and line for what isn't such a file.
    """
    results = [result for path in paths for result in _results(path)]
    if not results:
        raise RecordError(f"{', '.join(map(str, paths))}: no rows; nothing to import")
    return Run(
        created=max(_created(path) for path in paths),
        environment=_environment(paths, machine),
        options={"imported": [path.name for path in paths]},
        results=tuple(results),
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The file's rows, numbers as numbers (None where a cell is empty). RecordError with file and line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_columns(path, reader.fieldnames or ())
            return [_row(path, reader.line_num, row) for row in reader]
    except OSError as error:
        raise RecordError(f"{path}: can't be read ({error.strerror}); check the path") from error
    except (ValueError, csv.Error) as error:
        raise RecordError(f"{path}: can't be read as CSV in UTF-8: {error}") from error


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if len(names) <= 1:
        raise RecordError(
            f"{path}:1: {_one_column(''.join(names))}; is it one of the predecessor's files (bench_….csv)?"
        )
    missing = [name for name in (*TEXT, *NUMBERS) if name not in names]
    unknown = [str(name) for name in names if name not in (*TEXT, *NUMBERS, *OPTIONAL)]
    if missing or unknown or len(set(names)) != len(names):
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown) or 'a column twice'}"
        raise RecordError(f"{path}:1: {what}; is it one of the predecessor's files (bench_….csv)?")


def _one_column(head: str) -> str:
    """What a first line without a comma says."""
    between = next((words for mark, words in OTHER_DELIMITERS.items() if mark in head), "")
    return f"its cells stand between {between}, not commas: save it as CSV with commas" if between else "lacks columns"


def _row(path: Path, line: int, row: Mapping[str | None, Any]) -> dict[str, Any]:
    if None in row or None in row.values():
        raise RecordError(f"{path}:{line}: not as many cells as there are columns; was the file cut off?")
    cells = {str(name): str(value).strip() for name, value in row.items()}
    if not _ID.fullmatch(cells["test_id"]) or not cells["prompt_type"]:
        raise RecordError(
            f"{path}:{line}: test_id {cells['test_id']!r} and prompt {cells['prompt_type']!r} are no names"
        )
    return cells | {name: _number(path, line, name, cells[name]) for name in NUMBERS}


def _number(path: Path, line: int, name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST:
        raise RecordError(f"{path}:{line}: {name} is {text!r:.40}, not a number of 0 or more, and below {MOST:g}")
    return value


def _results(path: Path) -> list[Result]:
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in read_rows(path):
        grouped.setdefault((row["test_id"], row["prompt_type"]), []).append(row)
    created = _created(path)
    return [_result(path.name, created, rows) for rows in grouped.values()]


def _result(file: str, created: str, rows: Sequence[Row]) -> Result:
    first = rows[0]
    name = f"{first['test_id']}-{first['prompt_type']}"
    return Result(
        nodeid=f"{file}::imported[{name}]",
        outcome="passed",
        duration_s=sum(row["total_time_s"] or 0.0 for row in rows),
        finished_at=created,
        entry=_entry(first),
        prompt=first["prompt_type"],
        measurement=_measurement(created, rows),
        extra={"imported_from": file, **_checks(rows)},
    )


def _entry(row: Row) -> dict[str, str]:
    shown = {"id": row["test_id"], "name": row["test_name"], "model": row.get("model", "")}
    same = {name: row[name] for name in ("backend", "fmt", "quant", "kv_cache")}
    return {**shown, **same, "model_id": row.get("model", ""), "group": "imported"}


def _checks(rows: Iterable[Row]) -> dict[str, str]:
    """What its tool-call and quality checks said, where they ran."""
    found = {}
    for name in ("tool_call_valid", "quality_pass"):
        said = [row[name] for row in rows if row.get(name)]
        if said:
            found[name] = ",".join(said)
    return found


def _measurement(created: str, rows: Sequence[Row]) -> dict[str, Any]:
    samples = [_sample(row) for row in rows]
    metrics = _medians(rows, samples)
    first = rows[0]
    return {
        "started_at": created,
        "target": _target(first),
        "settings": _settings(rows),
        "prompt_exact": False,
        "metrics": metrics,
        "warmups": [],
        "samples": samples,
        "cached": None,
        "memory": _memory(metrics["peak_memory_bytes"], len(rows)),
        "conditions": {"before": {}, "after": {}},
        "suspicions": list(suspicions(rows)),
        "level": None,
        "rounds": [],
    }


def _medians(rows: Sequence[Row], samples: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found = {name: stats.median_of_known(s["metrics"][name] for s in samples) for name in samples[0]["metrics"]}
    found["ttft_s"] = _positive(rows[0]["cold_ttft_ms"], 1e-3)
    memory = max((row["peak_mem_mb"] or 0.0 for row in rows), default=0.0)
    return {
        "load_s": _positive(rows[0]["model_load_s"], 1.0),
        "ttft_cached_s": stats.median_of_known(_positive(row["ttft_ms"], 1e-3) for row in rows),
        "peak_memory_bytes": round(memory * MEBIBYTE) or None,
        **found,
    }


def _sample(row: Row) -> dict[str, Any]:
    """A run; it has no stamps, only what the file says of it."""
    bare = Sample(
        prompt=row["prompt_type"],
        deltas=(),
        end_ns=round((row["total_time_s"] or 0.0) * 1e9),
        requested_tokens=0,
        finish_reason=None,
        prompt_tokens=_count(row["prompt_tokens"]),
        cached_tokens=None,
        completion_tokens=_count(row["completion_tokens"]),
        token_source=None,
        thinking_tokens=_count(row["thinking_tokens"]),
        visible_tokens=_count(row["visible_tokens"]),
    ).to_json()
    said = {
        "prefill_tok_s": _positive(row["prefill_tps"], 1.0),
        "decode_tok_s": _positive(row["decode_tps"], 1.0),
        "total_s": _positive(row["total_time_s"], 1.0),
    }
    return {**bare, "stopped_early": None, "ran_over": None, "metrics": {**bare["metrics"], **said}}


def _target(row: Row) -> dict[str, Any]:
    unknown = dict.fromkeys(("command", "base_url", "pid", "log_path", "fingerprint"))
    load_s = _positive(row["model_load_s"], 1.0)
    version = row["backend_version"] or None
    return {"backend": row["backend"], "version": version, "model": row.get("model", ""), "load_s": load_s, **unknown}


def _settings(rows: Sequence[Row]) -> dict[str, Any]:
    """What can be told from the rows; the rest is as the predecessor has it when nothing is said."""
    most = max((row["completion_tokens"] or 1 for row in rows), default=1)
    return {
        "runs": len(rows),
        "warmup": 1,
        "max_tokens": max(1, round(most)),
        "temperature": 0.0,
        "server_timeout": 600.0,
        "cooldown": 8.0,
        "bench_port": None,
        "prompts": [rows[0]["prompt_type"]],
        "think": None,
        "fixed_length": False,
        "prompt_max_tokens": [],
        "custom_prompts": None,
        "concurrency": [],
    }


def _memory(peak: float | None, samples: int) -> dict[str, Any] | None:
    if peak is None:
        return None
    rest = {"swap_delta_bytes": None, "mlx_peak_bytes": None}
    return {"peak_bytes": round(peak), "source": "rss", "samples": samples, **rest}


def _environment(paths: Sequence[Path], machine: str) -> dict[str, Any]:
    """Nothing is known of it; its fingerprint is the machine's that was named, or else these files' own."""
    text = machine or "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    nothing = (
        "cores_physical", "cores_logical", "cores_performance", "cores_efficiency", "gpu", "gpu_cores", "memory_bytes",
        "wired_limit_bytes", "swap_used_bytes", "git_commit", "git_dirty",
    )  # fmt: skip
    return {
        "machine": machine or "unknown",
        "chip": machine or "unknown",
        **dict.fromkeys(nothing),
        "os": "unknown",
        "os_version": "unknown",
        "python": "unknown",
        "versions": {},
        "power": {},
        "extra": {"imported": "the predecessor's CSV says nothing of its machine"},
        "fingerprint": hashlib.sha256(f"imported:{text}".encode()).hexdigest()[:12],
    }


def _created(path: Path) -> str:
    """The time in the file's name, else that of its last change."""
    found = _NAME_TIME.search(path.name)
    try:
        when = datetime.strptime("".join(found.groups()), "%Y%m%d%H%M%S").replace(tzinfo=UTC) if found else None
    except ValueError:
        when = None
    return (when or datetime.fromtimestamp(path.stat().st_mtime, UTC)).isoformat(timespec="milliseconds")


def _positive(value: float | None, scale: float) -> float | None:
    """0 is how the predecessor writes that it didn't measure."""
    return value * scale if value else None


def _count(value: float | None) -> int | None:
    return None if value is None else round(value)
