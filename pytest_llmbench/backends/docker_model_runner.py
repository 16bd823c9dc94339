"""Docker Model Runner (as documented, and as its sources say; not run here), with llama.cpp or another engine under it.

It routes a request by its model's name and passes the engine's answer on, so that `/engines/ps`, not the answer, tells
what is loaded. `extra_args` are flags for the engine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from pytest_llmbench.backends import reach
from pytest_llmbench.backends.llama_dialect import llama_fields
from pytest_llmbench.backends.running import Loaded, RunningBackend, Session
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.prompts import Prompt

HOST, DEFAULT = "MODEL_RUNNER_HOST", "http://127.0.0.1:12434"


class DockerModelRunner(RunningBackend):
    """The runner at `server_url`, `MODEL_RUNNER_HOST` or port 12434."""

    name: ClassVar[str] = "docker-model-runner"
    one_at_a_time: ClassVar[str] = "it doesn't tell into how many parts its engine divides the context"
    chat_path: ClassVar[str] = "/engines/v1/chat/completions"
    meaningless: ClassVar[tuple[str, ...]] = ("env", "server_binary")
    # The port is Docker's; an engine that runs in a container on a Mac's virtual machine isn't among our processes.
    workers: ClassVar[str] = r"(?i)llama|mlx|vllm|sglang"

    def url(self, entry: MatrixEntry) -> str:
        return entry.server_url or reach.checked_url(os.environ.get(HOST) or DEFAULT, variable=HOST)

    def find(self, entry: MatrixEntry) -> None:
        answer = reach.get(self.url(entry), "/models")
        if answer is None or answer.status != 200:
            raise self._absent(entry)
        tags = [tag for row in reach.rows(answer.json) for tag in reach.part(row, "tags", kind=list) or ()]
        if not any(_is(tag, entry.model_id) for tag in tags):
            fix = f"docker model pull {entry.model_id}"
            raise Unavailable(f"Docker Model Runner has no model {entry.model_id}", fix=fix)

    def _absent(self, entry: MatrixEntry) -> Unavailable:
        desktop = sys.platform == "darwin"
        start = "docker desktop enable model-runner --tcp 12434" if desktop else "docker model install-runner"
        then = f"{start}, then docker model pull {entry.model_id}"
        if shutil.which("docker") is None and entry.server_url is None:
            install = "brew install --cask docker" if desktop else "install Docker"
            return Unavailable("Docker is not installed", fix=f"{install}, then {then}")
        return Unavailable(f"no Docker Model Runner answers at {self.url(entry)}", fix=then)

    def load(self, session: Session) -> Loaded:
        """Set it up; the first request loads it."""
        name = session.entry.model_id
        flags = {"runtime-flags": list(session.entry.extra_args)} if session.entry.extra_args else {}
        body = {"model": name, "context-size": session.wanted_context, **flags}
        session.client.json("POST", "/engines/_configure", body, timeout_s=session.patience_s)
        return Loaded(asked=name, answers=name)

    def clear(self, session: Session) -> None:
        row = _running(session, session.entry.model_id)
        if row is not None:
            body = {"models": [row["model_name"]], "backend": row.get("backend_name", "")}
            session.client.json("POST", "/engines/unload", body, timeout_s=session.patience_s)

    def holds(self, session: Session) -> bool:
        return _running(session, session.entry.model_id) is not None

    def prove(self, session: Session, loaded: Loaded) -> None:
        row = _running(session, loaded.asked)
        if row is None or row.get("loading"):
            raise ServerStartError(f"Docker Model Runner answers, but doesn't list {loaded.asked} as running")
        if not session.entry.extra_args:
            return
        rows = reach.rows(session.client.json("GET", "/engines/_configure"))
        known = [reach.part(r, "Config", "runtime-flags", kind=list) for r in rows if _is(r.get("Model"), loaded.asked)]
        if list(session.entry.extra_args) not in known:
            raise ServerStartError(f"extra_args were not taken: Docker Model Runner has the flags {known}")

    def version(self, session: Session) -> str | None:
        engine = (_running(session, session.entry.model_id) or {}).get("backend_name")
        try:
            version = reach.part(session.client.json("GET", "/version"), "version", kind=str)
        except RequestError:
            version = None
        return " ".join(filter(None, (version, f"({engine})" if engine else ""))) or None

    def request_fields(
        self, session: Session, loaded: Loaded, prompt: Prompt, *, fixed_length: bool, cached: bool
    ) -> Mapping[str, Any]:
        """llama.cpp's; the other engines pass over what they don't know."""
        return llama_fields(prompt, fixed_length=fixed_length, cached=cached)

    def check_answer(self, reply: Reply, loaded: Loaded) -> None:
        """Engines answer with a file's name, or with one of their own."""


def whole_name(name: str) -> str:
    """As Docker resolves it: with namespace and tag, in small letters.

    >>> whole_name("docker.io/ai/qwen3.5:35B-A3B-Q4_K_M"), whole_name("smollm2")
    ('ai/qwen3.5:35b-a3b-q4_k_m', 'ai/smollm2:latest')
    """
    short = name.removeprefix("index.").removeprefix("docker.io/")
    spaced = short if "/" in short else f"ai/{short}"
    return (spaced if ":" in spaced.rpartition("/")[2] else f"{spaced}:latest").casefold()


def _is(name: Any, ours: str) -> bool:
    return isinstance(name, str) and whole_name(name) == whole_name(ours)


def _running(session: Session, name: str) -> dict[str, Any] | None:
    rows = reach.rows(session.client.json("GET", "/engines/ps"))
    return next((row for row in rows if _is(row.get("model_name"), name)), None)
