"""A program that is started anew for each answer, measured as a server is (see `diffusion_cli`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pytest_llmbench.backends.base import FIRST, TargetInfo, log_path
from pytest_llmbench.counting import why_invalid
from pytest_llmbench.errors import RequestError, ServerStartError, ServerTimeout
from pytest_llmbench.memory import MemoryPeak, MemorySampler
from pytest_llmbench.process import ServerProcess, describe_exit
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Delta, Sample, ServerTimings

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from pytest_llmbench.matrix import MatrixEntry, RunSettings

BYTES_PER_TOKEN = 3
"""English under the usual vocabularies has four; there is no tokenizer to ask, and too little room is an error."""
TEMPLATE_ROOM = 32
FIRST_TOKENS = 32
SAMPLE_S = 0.02
"""A small model's process lives for a tenth of a second."""
LOST = "the end of the program's output is missing"
"""Seen once in a hundred runs: it ended well, but before its last lines were written."""
_STEPS = re.compile(r"- steps\s+u32\s*=\s*(\d+)")
_TIMES = re.compile(r"total time: ([\d.]+)ms, time per step: ([\d.]+)ms.*")
_LOG_PREFIX = re.compile(r"\A[\d.]+ [A-Z] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the program printed. Its own times, in seconds, are without the load."""

    text: str
    total_s: float
    step_s: float
    steps: int | None


def parse_output(printed: str) -> Output | None:
    """The answer and its times; None where the program didn't print to the end."""
    times = _TIMES.search(printed)
    if times is None or not printed.endswith("\n"):
        return None
    steps = _STEPS.search(printed)
    return Output(
        text=_LOG_PREFIX.sub("", printed[times.end() :].lstrip("\n")).strip("\n"),
        total_s=float(times[1]) / 1e3,
        step_s=float(times[2]) / 1e3,
        steps=int(steps[1]) if steps else None,
    )


class DiffusionTarget:
    """Runs `command(tokens of prompt and answer)` for each request, one at a time."""

    def __init__(
        self,
        entry: MatrixEntry,
        settings: RunSettings,
        *,
        command: Callable[[int], tuple[str, ...]],
        log_dir: Path,
    ) -> None:
        self._entry = entry
        self._settings = settings
        self._command = command
        self._log = log_path(entry, log_dir)
        self._prompt_file = self._log.with_suffix(".prompt.txt")
        self._running: ServerProcess | None = None
        self._sampler = MemorySampler(self._pids, SAMPLE_S)
        self._open = ExitStack()
        self.tokenizer: Tokenizer | None = None
        self.info = TargetInfo(
            backend=entry.backend, version=None, model=entry.model_id, load_s=None, log_path=self._log
        )

    def __enter__(self) -> Self:
        self._open.enter_context(self._sampler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._prompt_file.unlink(missing_ok=True)

    def answer_first(self, *, version: str | None) -> None:
        """One small answer: what its process took beyond its own account of the generation was the load."""
        try:
            output, wall_ns, command = self._run(FIRST, FIRST_TOKENS, self._settings.temperature)
        except RequestError as error:
            raise ServerStartError(str(error)) from error
        load_s = None if output is None else max(0.0, wall_ns / 1e9 - output.total_s)
        self.info = replace(self.info, version=version, load_s=load_s, command=command)

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        output, wall_ns, _ = self._run(prompt, max_tokens, temperature)
        sample = Sample(
            prompt=prompt.name, deltas=(), end_ns=wall_ns, requested_tokens=max_tokens, unseen="answer", invalid=LOST
        )
        if output is None:
            return sample
        sample = replace(
            sample,
            deltas=(Delta(at_ns=wall_ns, kind="content", text=output.text),) if output.text else (),
            timings=ServerTimings(diffusion_steps=output.steps, diffusion_step_s=output.step_s),
        )
        return replace(sample, invalid=why_invalid(sample, prompt, cached=cached))

    def reset_peak_memory(self) -> None:
        self._sampler.reset()

    def peak_memory(self) -> MemoryPeak:
        return self._sampler.peak()

    def _pids(self) -> Collection[int]:
        running = self._running
        return () if running is None else running.processes()

    def _run(self, prompt: Prompt, max_tokens: int, temperature: float) -> tuple[Output | None, int, str]:
        """What one process printed, nanoseconds from its start to its end, and its command.

        RequestError where it failed, ServerTimeout where it took longer than `server_timeout`.
        """
        self._prompt_file.parent.mkdir(parents=True, exist_ok=True)
        self._prompt_file.write_text(_text(prompt, "user"), encoding="utf-8")
        system = _text(prompt, "system")
        size = sum(len(m.content.encode()) for m in prompt.messages) // BYTES_PER_TOKEN + TEMPLATE_ROOM + max_tokens
        words = ["-f", str(self._prompt_file), "--no-escape", "--temp", f"{temperature:g}"]
        command = (*self._command(size), *words, *(("-sys", system) if system else ()))
        before = self._log.stat().st_size if self._log.exists() else 0
        with ServerProcess.start(command, env=dict(self._entry.env), log_path=self._log) as process:
            self._running = process
            try:
                code = process.wait_exit(self._settings.server_timeout)
            finally:
                self._running = None
            wall_ns = time.monotonic_ns() - process.spawned_ns
            if code is None:
                raise ServerTimeout(process.explain(f"no answer for {self._settings.server_timeout:g} s"))
            if code != 0:
                raise RequestError(process.explain(f"the program gave no answer: {describe_exit(code)}"))
        return parse_output(self._printed(before)), wall_ns, process.command_line

    def _printed(self, start: int) -> str:
        with self._log.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")


def _text(prompt: Prompt, role: str) -> str:
    return "\n\n".join(m.content for m in prompt.messages if m.role == role)
