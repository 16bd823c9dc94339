"""Servers that run anyway: what one answers to a short question, and which processes hold the model that it serves.

With the standard library alone, so that a readiness list costs little.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pytest_llmbench.errors import Unavailable
from pytest_llmbench.ports import is_loopback, port_owner
from pytest_llmbench.sse import read_within

if TYPE_CHECKING:
    import psutil

PATIENCE_S = 2.0
MOST_BYTES = 16 * 1024**2
CHUNK_BYTES = 65536
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`json` is None where the body is none."""

    status: int
    json: Any


def checked_url(said: str, *, variable: str) -> str:
    """What an environment variable says, without a slash at the end; Unavailable for what is no URL."""
    try:
        parts = urlsplit(said)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise Unavailable(f"{variable} is {said!r}, no URL", fix=f"export {variable}=http://HOST:PORT")
    return said.rstrip("/")


def get(url: str, path: str, *, api_key: str | None = None) -> Answer | None:
    """What `url` answers to a GET; None where nobody does."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with closing(kind(parts.hostname or "", parts.port, timeout=PATIENCE_S)) as connection:
        try:
            connection.request("GET", parts.path + path, headers=headers)
            response = connection.getresponse()
            pieces = iter(lambda: response.read1(CHUNK_BYTES), b"")
            body = read_within(pieces, most=MOST_BYTES, patience_s=PATIENCE_S)
        except (OSError, UnicodeError, http.client.HTTPException):  # UnicodeError: no host can be called so
            return None
    return Answer(status=response.status, json=_parsed(body))


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def rows(data: Any, key: str | None = None) -> list[dict[str, Any]]:
    """The JSON objects of a list, or of the list under `key`; what is anything else is left out."""
    found = data.get(key) if key is not None and isinstance(data, dict) else data
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def part(data: Any, *keys: str, kind: type[T]) -> T | None:
    """What stands under `keys` in nested JSON objects; None where it is missing or of another kind."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    odd = isinstance(data, bool) and kind is not bool
    return data if isinstance(data, kind) and not odd else None


def listens(url: str) -> bool:
    """Whether somebody accepts connections there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PATIENCE_S).close()
    except (OSError, UnicodeError):
        return False
    return True


def serving_pids(url: str, *, family: str, workers: str, since: float) -> tuple[int, ...]:
    """The processes behind `url`, on this machine.

    `family`: names of the program to which the port's listener belongs, of whose uppermost process everything below
    counts; "" where the listener holds no model. `workers`: names of processes that hold one and were started after
    `since` (seconds of the system's clock), wherever they stand; "" for none.
    """
    if not is_loopback(url):
        return ()
    found = {p.pid for p in _listener_tree(url, family)} if family else set[int]()
    if workers:
        found |= {p.pid for worker in _started_since(since, workers) for p in _tree(worker)}
    return tuple(sorted(found))


def still_running(pids: Iterable[int]) -> tuple[int, ...]:
    """Those of `pids` that run, and what they have started by now."""
    import psutil

    found = set[int]()
    for pid in pids:
        with suppress(psutil.Error):
            found.update(p.pid for p in _tree(psutil.Process(pid)))
    return tuple(sorted(found))


def _listener_tree(url: str, family: str) -> Iterator[psutil.Process]:
    import psutil

    parts = urlsplit(url)
    owner = port_owner(parts.port or 80)
    if owner is None or owner.pid is None:
        return
    with suppress(psutil.Error):
        top = psutil.Process(owner.pid)
        while (parent := top.parent()) is not None and re.search(family, parent.name()):
            top = parent
        yield from _tree(top)


def _started_since(since: float, names: str) -> Iterator[psutil.Process]:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.create_time() >= since and re.search(names, process.name()):
                yield process


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)
