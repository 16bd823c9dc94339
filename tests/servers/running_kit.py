"""Servers that run anyway, for tests: `protocol_server.py` in a process of its own, which only the test may stop."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from server_kit import HERE, read_record, settings, wait_until, write_program

from pytest_llmbench.backends import builtin_backends, reach
from pytest_llmbench.backends.running import RunningTarget
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.measure import Measurement, Meter
from pytest_llmbench.ports import free_port
from pytest_llmbench.prompts import PromptMaker, builtin

MODELS = {
    "ollama": "qwen3:0.6b",
    "lm-studio": "qwen3-0.6b",
    "docker-model-runner": "ai/qwen3:0.6B-Q4_K_M",
    "openai": "some-model",
}
CHATS = {
    "ollama": "/api/chat",
    "lm-studio": "/api/v1/chat",
    "docker-model-runner": "/engines/v1/chat/completions",
    "openai": "/v1/chat/completions",
}
THINKING = ("off", "on")


class Running:
    """A running server. `plan`: see `protocol_server.py`."""

    def __init__(self, folder: Path, dialect: str, *, port: int | None = None, **plan: Any) -> None:
        self.record = folder / "asked.jsonl"
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.dialect = dialect
        self.model = MODELS[dialect]
        plan_path = write_plan(folder, dialect, port=port, **plan)
        command = [sys.executable, "-I", "-S", str(HERE / "protocol_server.py"), str(plan_path)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(lambda: reach.listens(self.url), "the protocol server listens")

    def entry(self, **changes: Any) -> MatrixEntry:
        given = {"model_id": self.model, "server_url": self.url, "backend": self.dialect, **changes}
        return MatrixEntry(id="tried", path=Path("made.yaml"), line=1, **given)

    def asked(self, path: str) -> list[dict[str, Any]]:
        """The bodies of the requests for `path`, in their order."""
        return [line["body"] for line in read_record(self.record) if line["path"] == path]

    @property
    def chats(self) -> list[dict[str, Any]]:
        return self.asked(CHATS[self.dialect])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def write_plan(folder: Path, dialect: str, **plan: Any) -> Path:
    """A plan for `protocol_server.py`, which has the dialect's model and whose thinking can be switched."""
    full = {
        "dialect": dialect,
        "models": [MODELS[dialect]],
        "record": str(folder / "asked.jsonl"),
        "reasoning": THINKING,
        **plan,
    }
    path = folder / "protocol.json"
    path.write_text(json.dumps(full), encoding="utf-8")
    return path


def ollama_program(folder: Path, **plan: Any) -> Path:
    """A program like `ollama`, for a server of our own."""
    command = [sys.executable, "-I", "-S", str(HERE / "protocol_server.py"), str(write_plan(folder, "ollama", **plan))]
    return write_program(folder / "ollama", command)


def opened(
    entry: MatrixEntry, log_dir: Path, *, said: list[str] | None = None, **changes: Any
) -> AbstractContextManager[Any]:
    """The entry's backend, opened; what it reports goes to `said`."""
    backend = builtin_backends()[entry.backend]
    report = (lambda _line: None) if said is None else said.append
    return backend.open(entry, settings(**changes), log_dir=log_dir, report=report)


def measure(target: RunningTarget, *, name: str = "short", **changes: Any) -> Measurement:
    """One run, no warm-up, and the cached one."""
    run = settings(**changes)
    meter = Meter(
        target=target,
        maker=PromptMaker(target.tokenizer, think=run.think),
        settings=run,
        progress=lambda _done, _total, _what: None,
        conditions=dict,
    )
    return meter.measure("tried", builtin(name))
