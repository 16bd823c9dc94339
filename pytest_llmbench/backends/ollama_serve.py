"""An Ollama server of our own: on a free port, with the entry's variables, stopped at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_llmbench.backends import reach
from pytest_llmbench.backends.base import Report, log_path
from pytest_llmbench.backends.ollama_dialect import HOST, model_name, needs_own
from pytest_llmbench.backends.programs import find_program
from pytest_llmbench.backends.server import GRACE_S, choose_port
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.ports import LOOPBACK
from pytest_llmbench.process import ServerProcess

SLOTS = "OLLAMA_NUM_PARALLEL"
APPLICATION = "/Applications/Ollama.app/Contents/Resources/ollama"


def program(entry: MatrixEntry) -> str:
    """Ollama's program; Unavailable with the fix."""
    if entry.server_binary is None and sys.platform == "darwin" and Path(APPLICATION).is_file():
        return APPLICATION
    install = "brew install ollama" if sys.platform == "darwin" else "install Ollama"
    return find_program("ollama", entry.server_binary, fix=f"{install}, then ollama pull {model_name(entry)}")


def check_slots(entry: MatrixEntry, streams: int, *, url: str) -> None:
    """Unavailable where `streams` requests at once would wait, or might: the server at `url` doesn't tell its slots.

    A server of our own has as many as are asked for, unless the entry's `env` says otherwise.
    """
    given = dict(entry.env).get(SLOTS, str(streams))
    if given.isdecimal() and int(given) < streams:
        raise Unavailable(f"{SLOTS} is {given}: {streams} requests at once would wait", fix="give it more in env")
    if not needs_own(entry) and reach.get(url, "/api/version") is not None:
        why = f"the Ollama at {url} doesn't tell how many requests it answers at once"
        raise Unavailable(why, fix=f"env: {{{SLOTS}: {streams}}}, for a server of our own")


@contextmanager
def own_server(
    entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
) -> Iterator[tuple[str, ServerProcess]]:
    """Start a server and wait until it answers; gives its URL and its process."""
    port = choose_port(settings)
    url = f"http://{LOOPBACK}:{port}"
    with ServerProcess.start(
        (program(entry), "serve", *entry.extra_args),
        env={**_environment(settings), **dict(entry.env), HOST: f"{LOOPBACK}:{port}"},
        log_path=log_path(entry, log_dir),
        grace_s=GRACE_S,
    ) as process:
        process.wait_ready(
            lambda _left_s: process.owns_port(port) and reach.get(url, "/api/version") is not None,
            timeout_s=settings.server_timeout,
            report=report,
        )
        yield url, process


def _environment(settings: RunSettings) -> dict[str, str]:
    """What the entry's own variables may change."""
    return {
        # At its start it would else delete layers that no model has yet: those of a download that goes on.
        "OLLAMA_NOPRUNE": "1",
        SLOTS: str(max(settings.concurrency, default=1)),
    }
