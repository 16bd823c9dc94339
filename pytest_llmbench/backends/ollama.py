"""Ollama (as documented, and as its sources of 0.12 to 0.40 say; not run here).

The server that runs is used. Where none does, or where the entry has `env`, `extra_args` or `server_binary`, one of our
own is started on a free port, and stopped. It has no switch for its prefix cache (each prompt is new), none to go on
after the end token, and no tokenizer to ask. Another context length would make it load the model again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import answers, ollama_dialect, ollama_serve, reach
from pytest_llmbench.backends.base import Report
from pytest_llmbench.backends.ollama_dialect import CACHE_TYPE, HOST, model_name, whole_name
from pytest_llmbench.backends.running import Loaded, Place, RunningBackend, Session
from pytest_llmbench.backends.server import ALL_LINES
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sample import ServerTimings
from pytest_llmbench.sse import Wire

LONGEST_LOAD_S = 1.0


class Ollama(RunningBackend):
    """The server at `server_url`, `OLLAMA_HOST` or port 11434; else one of our own."""

    name: ClassVar[str] = "ollama"
    chat_path: ClassVar[str] = "/api/chat"
    wire: ClassVar[Wire] = ollama_dialect.WIRE
    meaningless: ClassVar[tuple[str, ...]] = ()
    family: ClassVar[str] = "^ollama$"
    workers: ClassVar[str] = "^(ollama|llama-server)"

    def url(self, entry: MatrixEntry) -> str:
        return entry.server_url or ollama_dialect.host_url(os.environ.get(HOST, ""))

    def check_streams(self, entry: MatrixEntry, streams: int) -> None:
        if streams > 1:
            ollama_serve.check_slots(entry, streams, url=self.url(entry))

    def find(self, entry: MatrixEntry) -> None:
        name = model_name(entry)
        ollama_dialect.check_fields(entry)
        answer = None if ollama_dialect.needs_own(entry) else reach.get(self.url(entry), "/api/tags")
        if answer is None and entry.server_url:
            raise Unavailable(f"no Ollama answers at {entry.server_url}", fix="start it there: ollama serve")
        if answer is None:
            ollama_serve.program(entry)
            models.check_ollama(name)
        elif whole_name(name) not in [row.get("name") for row in reach.rows(answer.json, "models")]:
            raise Unavailable(f"ollama has no model {name}", fix=f"ollama pull {name}")

    @contextmanager
    def serving(self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report) -> Iterator[Place]:
        if not ollama_dialect.needs_own(entry) and reach.get(self.url(entry), "/api/version") is not None:
            yield Place(url=self.url(entry))
            return
        with ollama_serve.own_server(entry, settings, log_dir=log_dir, report=report) as (url, process):
            yield Place(url=url, process=process)

    def load(self, session: Session) -> Loaded:
        name, options = model_name(session.entry), {"num_ctx": session.wanted_context}
        _generate(session, name, keep_alive=-1, options=options)
        return Loaded(asked=name, answers=name, facts=options)

    def clear(self, session: Session) -> None:
        _generate(session, model_name(session.entry), keep_alive=0)

    def holds(self, session: Session) -> bool:
        return _running(session, model_name(session.entry)) is not None

    def prove(self, session: Session, loaded: Loaded) -> None:
        row = _running(session, loaded.asked)
        if row is None:
            raise ServerStartError(f"Ollama answers, but doesn't list {loaded.asked} as running")
        session.check_context(reach.part(row, "context_length", kind=int))
        size, on_gpu = row.get("size"), row.get("size_vram")
        if size != on_gpu:
            session.report(f"ollama: {on_gpu} of the model's {size} bytes are on the GPU")
        wanted, process = dict(session.entry.env).get(CACHE_TYPE, "f16"), session.place.process
        if wanted != "f16" and process and not ollama_dialect.has_cache(wanted, process.log_tail(ALL_LINES)):
            raise ServerStartError(f"no line of Ollama's log says that its cache is {wanted}: it falls back silently")

    def version(self, session: Session) -> str | None:
        return reach.part(session.client.json("GET", "/api/version"), "version", kind=str)

    def body(self, session: Session, loaded: Loaded, prompt: Prompt, **how: Any) -> Mapping[str, Any]:
        options = {**loaded.facts, "num_predict": how["max_tokens"], "temperature": how["temperature"]}
        return ollama_dialect.body(loaded.asked, prompt, options)

    def check_answer(self, reply: Reply, loaded: Loaded) -> None:
        super().check_answer(reply, loaded)
        took_s = ollama_dialect.seconds(reply, "load") or 0.0
        if took_s > LONGEST_LOAD_S:
            raise RequestError(f"Ollama loaded the model inside the request, in {took_s:.1f} s", status=200)

    def timings(self, session: Session, loaded: Loaded, reply: Reply) -> ServerTimings:
        size = reach.part(_running(session, loaded.asked), "size", kind=int)
        return ollama_dialect.read_timings(reply, cached=answers.cached_tokens(reply), size=size)


def _generate(session: Session, name: str, **fields: Any) -> None:
    """Without a prompt, it loads or unloads."""
    session.client.json(
        "POST", "/api/generate", {"model": name, "stream": False, **fields}, timeout_s=session.patience_s
    )


def _running(session: Session, name: str) -> dict[str, Any] | None:
    found = reach.rows(session.client.json("GET", "/api/ps"), "models")
    return next((row for row in found if whole_name(name) == row.get("name")), None)
