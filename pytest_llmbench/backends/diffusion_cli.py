"""llama.cpp's program for diffusion models, `llama-diffusion-cli` (facts: llama.cpp 0.6.0-dev).

It is no server: each request is a process that loads the model, refines a whole answer of fixed length in steps, prints
it and ends. So there is no first token and no cache, and two requests at a time would be two models.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from pytest_llmbench.backends.base import Backend, Report, check_each
from pytest_llmbench.backends.diffusion_target import DiffusionTarget
from pytest_llmbench.backends.flags import left_open, value_of
from pytest_llmbench.backends.llama_dialect import gguf_file, parse_version
from pytest_llmbench.backends.llama_server import CONTEXT, LAYERS
from pytest_llmbench.backends.programs import find_program, program_output
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings

FIX = "build llama.cpp's examples (cmake --build build --target llama-diffusion-cli), name the program as server_binary"
OURS = ("-m", "--model", "-p", "--prompt", "-f", "--file")
LENGTH = ("-ub", "--ubatch-size")
STEPS = ("--diffusion-steps",)
SCHEDULES = ("--diffusion-eps", "--diffusion-block-length")
BLOCK = 32
DEFAULT_STEPS = 128
HEAD_BYTES = 128


class DiffusionCli(Backend):
    """`llama-diffusion-cli` on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "diffusion-cli"
    one_at_a_time: ClassVar[str] = "it is no server, but a process for each answer"

    def binary(self, entry: MatrixEntry) -> str:
        return find_program("llama-diffusion-cli", entry.server_binary, fix=FIX)

    def model(self, entry: MatrixEntry) -> Path:
        return gguf_file(entry)

    def check(self, entry: MatrixEntry) -> None:
        if entry.server_url:
            raise Unavailable("diffusion-cli is a program, not a server at a server_url", fix="take out server_url")
        for word in entry.extra_args:
            if word.partition("=")[0] in OURS:
                raise Unavailable(f"extra_args set {word}", fix="take it out: model and prompt come from the entry")
        check_each(lambda: self.binary(entry), lambda: self.model(entry))

    @contextmanager
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> Iterator[DiffusionTarget]:
        self.check(entry)
        model, binary = self.model(entry), self.binary(entry)
        kind = architecture(model)

        def command(length: int) -> tuple[str, ...]:
            words = arguments(entry.extra_args, length=length, architecture=kind)
            return (binary, "-m", str(model), *words, *entry.extra_args)

        report(f"trying {self.name} on {model.name}")
        with DiffusionTarget(entry, settings, command=command, log_dir=log_dir) as target:
            target.answer_first(version=parse_version(program_output(binary, "--version")))
            yield target


def arguments(given: Sequence[str], *, length: int, architecture: str | None) -> tuple[str, ...]:
    """The words that `given` leaves open, for an answer that is, with its prompt, `length` tokens long.

    The program stops at an assertion unless it gets one schedule of two, whole blocks, and steps that they share.
    """
    words: list[str] = []
    if all(value_of(given, (flag,)) is None for flag in SCHEDULES):
        # Dream refines all positions at once, LLaDA and what came after it a block at a time.
        words += ["--diffusion-eps", "0.001"] if architecture == "dream" else ["--diffusion-block-length", str(BLOCK)]
    block = max(1, _number([*given, *words], SCHEDULES[1:], 1))
    whole = _number(given, LENGTH, -(-length // block) * block)
    blocks = max(1, whole // block) if block > 1 else 1
    defaults = {
        LENGTH: str(whole),
        CONTEXT: str(whole),
        LAYERS: "99",
        STEPS: str(max(1, DEFAULT_STEPS // blocks) * blocks),
        ("--seed", "-s"): "1",
    }
    return (*words, *left_open(given, defaults))


def _number(words: Sequence[str], names: Sequence[str], default: int) -> int:
    """A flag's number; `default` where it isn't given or is none, which the program itself complains about best."""
    said = value_of(words, names) or ""
    return int(said) if said.isdecimal() else default


def architecture(model: Path) -> str | None:
    """`general.architecture`, where it stands first in the file, as usual (ggml's docs/gguf.md; 8 is a string)."""
    with model.open("rb") as file:
        head = file.read(HEAD_BYTES)
    key = b"general.architecture"
    before = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)
    at = struct.calcsize("<4sIQQ") + len(before)
    if not head[:at].endswith(before):
        return None
    (size,) = struct.unpack_from("<Q", head, at)
    return head[at + 8 : at + 8 + size].decode("utf-8", "replace")
