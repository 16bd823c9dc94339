"""`journal.jsonl`: one line for each finished test, on the disk before the next one starts.

The first line is the head (schema, environment, options), each further one a result. A crash loses the test in flight
at most; what it may leave is a torn last line, which is dropped with a warning when the journal is read.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pytest_llmbench.errors import RecordError
from pytest_llmbench.json_node import JsonNode
from pytest_llmbench.record import SCHEMA, SCHEMA_VERSION, Result, Run, check_head, dumps, loads
from pytest_llmbench.run_shape import check_result

NAME = "journal.jsonl"


class Journal:
    """An open journal; `write` returns when the line is on the disk. It is one process's alone until it is closed."""

    def __init__(self, path: Path, *, created: str, environment: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Start a new journal, or go on with the one at `path` (a torn last line is cut off).

        RecordError where another process writes it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: on a full disk nothing must be left over for `close` to write.
        self._file: IO[bytes] = path.open("ab", buffering=0)
        try:
            _lock(self._file, path)
            _check_ours(path)
            _cut_torn_line(path)
        except BaseException:
            self._file.close()
            raise
        if path.stat().st_size == 0:
            head = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "created": created}
            self._line(head | {"environment": dict(environment), "options": dict(options)})

    def write(self, result: Result) -> None:
        self._line(result.to_json())

    def close(self) -> None:
        self._file.close()

    def _line(self, data: Mapping[str, Any]) -> None:
        left = memoryview(dumps(data).encode() + b"\n")
        while left:
            left = left[self._file.write(left) :]
        os.fsync(self._file.fileno())


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A journal as a run (a test that ran twice counts with its last result), and what was wrong with the file."""

    run: Run
    warning: str | None = None


def read(path: Path) -> Read:
    """RecordError where it isn't a journal; a torn last line is only a warning."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: can't be read: {error}") from error
    *lines, rest = data.split(b"\n")
    warning = f"{path}: dropped a torn last line ({len(rest)} bytes)" if rest else None
    if not lines:
        raise RecordError(f"{path}: no journal, its first line is missing; delete it to start anew")
    head = _parse(lines[0], path, 1)
    check_head(head, path=path)
    results = [_result(line, path, number) for number, line in enumerate(lines[1:], 2)]
    latest = {r.nodeid: r for r in results}
    run = Run.from_json({**head, "complete": False, "results": []}, path=path)
    return Read(
        run=Run(
            created=run.created,
            environment=run.environment,
            options=run.options,
            results=tuple(latest.values()),
            complete=False,
        ),
        warning=warning,
    )


def _result(line: bytes, path: Path, number: int) -> Result:
    data = _parse(line, path, number)
    try:
        found = Result.from_json(data)
    except RecordError as error:
        raise RecordError(f"{path}:{number}: {error}") from error
    check_result(JsonNode(value=data, file=Path(f"{path}:{number}")))
    return found


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        data = loads(line.decode("utf-8"))
    except ValueError as error:
        raise RecordError(
            f"{path}:{number}: not JSON ({error}); the file was changed by hand or by the disk"
        ) from error
    if not isinstance(data, dict):
        raise RecordError(f"{path}:{number}: a journal's line is a JSON object")
    return data


def set_aside(path: Path) -> None:
    """Keep an earlier run's journal under another name, and empty it: in a new run its tests would count as done.

    RecordError where another process writes it. It isn't renamed: who opened it a moment ago would lock another file.
    """
    with suppress(FileNotFoundError), path.open("r+b") as file:
        _lock(file, path)
        if path.stat().st_size:
            shutil.copyfile(path, path.with_name(f"{path.stem}.previous{path.suffix}"))
            file.truncate(0)


def _lock(file: IO[bytes], path: Path) -> None:
    """The kernel lets go of it when the process ends, however that comes."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RecordError(f"{path}: another pytest writes it; wait for its end, or name another folder") from error
    except OSError:
        return  # a file system without locks


def _check_ours(path: Path) -> None:
    """RecordError rather than a line in a file that is something else."""
    with path.open("rb") as file:
        first = file.readline()
    if first.endswith(b"\n"):
        check_head(_parse(first, path, 1), path=path)
    elif not first.startswith(b'{"schema"'[: len(first)]):
        raise RecordError(f"{path}: not a journal; name another folder, or move that file away")


def _cut_torn_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        with path.open("r+b") as file:
            file.truncate(len(whole))
