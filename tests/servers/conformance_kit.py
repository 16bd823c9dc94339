"""The subjects of the conformance suite: how each server is set up, and what it answers.

Real ones answer as the tiny scripted checkpoint does. Replays (`real=False`) speak the documented or recorded protocol
of a server that doesn't run on Linux.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import diffusion_kit
from running_kit import Running
from server_kit import Fake, Flavour, drafted, entry, flavours, open_target, own_environment, pinned

from pytest_llmbench.checkpoints import script
from pytest_llmbench.matrix import MatrixEntry

LITERT_MODEL = Path(__file__).parents[1] / "data" / "tiny.litertlm"
CONTEXT = 1024
"""Tokens, as the folders' configuration has it, and as llama.cpp's server is told."""
MLX_FIX = "pip install 'pytest-llmbench[mlx]'"
Where = Literal["process", "program", "inside", "elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server that is set up. `pid`: its process, where it runs before the entry is opened."""

    entry: MatrixEntry
    pid: int | None = None


Prepare = Callable[[Path, Path], AbstractContextManager[Place]]
"""Takes a folder of its own and the tiny checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A server. `missing`: why it can't run here, "" if it can.

    `where`: an HTTP "process" that we start, a "program" for each answer, "inside" of this process, or "elsewhere".
    `text`: None where it isn't known beforehand. `tokens`, `plain_tokens`: of an answer with thinking and without.
    `uncached`: tokens at a repeated prompt's end that its cache doesn't answer. `finish`: what ends an answer, None
    where it isn't told. `goes_on`: after the end token, if asked to. `parts`: an answer's thinking and visible tokens.
    `too_long`: its words for a prompt that its context can't hold; None if it reads such a prompt, and reads it whole.
    """

    name: str
    backend: str
    prepare: Prepare
    missing: str = ""
    real: bool = True
    where: Where = "process"
    text: str | None = "".join(script.ANSWER)
    reasoning: str = "".join(script.REASONING)
    tokens: int | None = 21
    plain_tokens: int | None = 13
    uncached: int | None = 1
    finish: str | None = "stop"
    goes_on: bool = False
    parts: tuple[int | None, int | None] = (6, 12)
    too_long: str | None = None


# --- real servers ---


@contextmanager
def _flavour(flavour: Flavour, folder: Path, checkpoints: Path) -> Iterator[Place]:
    chosen = drafted(pinned(flavour, folder), folder, checkpoints)
    model = checkpoints / "tiny-scripted" if flavour.suffix else _short(folder, checkpoints)
    yield Place(entry=entry(chosen, model))


def _short(folder: Path, checkpoints: Path) -> Path:
    """A copy of the scripted checkpoint whose context is short."""
    copy = Path(shutil.copytree(checkpoints / "tiny-scripted", folder / "tiny-scripted"))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = CONTEXT
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return copy


@contextmanager
def _litert(flavour: Flavour, folder: Path, checkpoints: Path) -> Iterator[Place]:
    """On a copy: the server writes what it has compiled beside the model."""
    yield Place(entry=entry(flavour, Path(shutil.copy(LITERT_MODEL, folder))))


@contextmanager
def _diffusion(flavour: Flavour, folder: Path, checkpoints: Path) -> Iterator[Place]:
    yield Place(entry=entry(flavour, diffusion_kit.make_llada(folder / "tiny-llada.gguf", checkpoints)))


@contextmanager
def _openai(flavour: Flavour, folder: Path, checkpoints: Path) -> Iterator[Place]:
    """A real server that only this test has started, used at its address."""
    with _flavour(flavour, folder, checkpoints) as place, open_target(place.entry, folder) as target:
        wanted = replace(
            place.entry,
            backend="openai",
            server_url=target.info.base_url,
            server_binary=None,
            extra_args=(),
            fixed_length=True,
        )
        yield Place(entry=wanted, pid=target.info.pid)


def real_subjects() -> tuple[Subject, ...]:
    """Everything that runs on Linux."""
    found = {flavour.name: flavour for flavour in flavours()}
    engine = Flavour(name="engine", backend="engine", suffix="", missing="" if find_spec("mlx") else MLX_FIX)
    diffusion = Flavour(
        name="diffusion-cli",
        backend="diffusion-cli",
        suffix="",
        binary=diffusion_kit.REAL,
        extra_args=("-t", "1", "-ub", "192", "--diffusion-steps", "12"),
        missing=diffusion_kit.MISSING,
    )
    litert, wheel = own_environment("litert-lm", "litert-lm"), found["xllamacpp"]
    return (
        *(_of_flavour(flavour) for flavour in found.values()),
        replace(_of_flavour(engine), where="inside", goes_on=True),
        replace(
            _of_flavour(litert),
            prepare=partial(_litert, litert),
            reasoning="",
            parts=(6, None),
            too_long="Input token ids are too long",
        ),
        replace(
            _of_flavour(diffusion),
            prepare=partial(_diffusion, diffusion),
            where="program",
            text=None,
            reasoning="",
            tokens=None,
            # Its own words, "input too long", are lost where it ends before its log is written.
            too_long="the program gave no answer: exit 1",
        ),
        replace(
            _of_flavour(wheel),
            name="openai",
            backend="openai",
            prepare=partial(_openai, wheel),
            where="elsewhere",
            parts=(None, None),
        ),
    )


def _of_flavour(flavour: Flavour) -> Subject:
    refusals = {"llama-server": "exceeds the available context size", "mlx-vlm": "exceeds the available context budget"}
    return Subject(
        name=flavour.name,
        backend=flavour.backend,
        prepare=partial(_flavour, flavour),
        missing=flavour.missing,
        tokens=flavour.counted(21),
        plain_tokens=flavour.counted(13),
        uncached=flavour.uncached,
        goes_on=flavour.backend == "llama-server",
        too_long=refusals.get(flavour.backend),
    )


# --- replays ---


@contextmanager
def _running(dialect: str, folder: Path, checkpoints: Path) -> Iterator[Place]:
    server = Running(folder, dialect)
    try:
        yield Place(entry=server.entry(), pid=server.process.pid)
    finally:
        server.stop()


@contextmanager
def _unsloth(folder: Path, checkpoints: Path) -> Iterator[Place]:
    status = {"active_model": "tiny-scripted", "is_gguf": True, "context_length": 8192, "loading": []}
    answers = {"/api/inference/status": status}
    server = Fake(folder, checkpoints / "tiny-scripted", backend="unsloth-studio", answers=answers)
    yield Place(entry=server.entry)


def replayed_subjects() -> tuple[Subject, ...]:
    """What is for macOS, or needs an account or a daemon of the machine's owner."""
    thinker = Subject(
        name="ollama",
        backend="ollama",
        prepare=partial(_running, "ollama"),
        real=False,
        where="elsewhere",
        text="Paris it is",
        reasoning="Hm.",
        tokens=5,
        plain_tokens=3,
        parts=(None, None),
        too_long="the input length exceeds the context length",
    )
    recorded = replace(thinker, text="<think> thinking</think>Paris.", reasoning="", tokens=6)
    return (
        thinker,
        replace(
            thinker,
            name="lm-studio",
            backend="lm-studio",
            prepare=partial(_running, "lm-studio"),
            finish=None,
            parts=(2, None),
        ),
        replace(
            recorded,
            name="docker-model-runner",
            backend="docker-model-runner",
            prepare=partial(_running, "docker-model-runner"),
        ),
        Subject(
            name="unsloth-studio",
            backend="unsloth-studio",
            prepare=_unsloth,
            real=False,
            text="One two",
            reasoning="",
            tokens=3,
            parts=(None, None),
        ),
    )


def subjects() -> tuple[Subject, ...]:
    return (*real_subjects(), *replayed_subjects())
