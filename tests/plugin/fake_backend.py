"""A backend whose answers are known beforehand: the tests copy this file into a folder, as its `conftest.py`.

An entry's `extra_args` say how it behaves, in pairs:

    --rate 40          tokens per second of its answers (default 50)
    --absent FIX       not available here, with that fix
    --fail open        can't be opened; `stream`: opens and never answers; `invalid`: only invalid samples
    --broken FILE      doesn't answer while FILE exists in the test folder
    --sleep 0.1        seconds of real time for each request
    --thinking N       tokens of reasoning before the answer
    --many no          has no way to be sent several requests at once; `queue`: answers them one by one

What it does is appended to `events.jsonl` beside it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmbench.accelerator import Accelerator
from pytest_llmbench.backends.base import Backend, Report, TargetInfo
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemoryPeak
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Delta, Sample
from pytest_llmbench.session import bench_of

HERE = Path(__file__).parent
TTFT_NS = 250_000_000
CACHED_TTFT_NS = 125_000_000


def log(what: str, entry: MatrixEntry, **facts: object) -> None:
    line = json.dumps({"what": what, "id": entry.id, "at_ns": time.monotonic_ns(), "pid": os.getpid()} | facts)
    with (HERE / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


class FakeTarget:
    """Answers each prompt at the entry's rate, on a clock of its own."""

    def __init__(self, entry: MatrixEntry) -> None:
        self._entry = entry
        self._said = behaviour(entry)

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            backend="fake",
            version="1.2.3",
            model=self._entry.model_id,
            load_s=1.5,
            command=f"fake --model {self._entry.model_id}",
            base_url="http://127.0.0.1:1/v1",
            pid=os.getpid(),
        )

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        log("stream", self._entry, prompt=prompt.name, max_tokens=max_tokens, think=prompt.think, cached=cached)
        time.sleep(float(self._said.get("--sleep", "0")))
        if self._said.get("--fail") == "stream" or (HERE / self._said.get("--broken", "no such file")).exists():
            raise RequestError("fake: the connection was closed; look at the server's log")
        return self._sample(prompt, max_tokens, CACHED_TTFT_NS if cached else TTFT_NS)

    def reset_peak_memory(self) -> None:
        log("reset", self._entry)

    def peak_memory(self) -> MemoryPeak:
        return MemoryPeak(peak_bytes=3_000_000_000, source="rss", samples=2, swap_delta_bytes=0)

    def _sample(self, prompt: Prompt, tokens: int, first_ns: int) -> Sample:
        step_ns = round(1e9 / float(self._said.get("--rate", "50")))
        thinking = min(int(self._said.get("--thinking", "0")), tokens)
        stamps = [first_ns + number * step_ns for number in range(tokens)]
        kinds = ["reasoning" if number < thinking else "content" for number in range(tokens)]
        return Sample(
            prompt=prompt.name,
            deltas=tuple(Delta(at_ns=at, kind=kind, text="x ") for at, kind in zip(stamps, kinds, strict=True)),  # type: ignore[arg-type]
            end_ns=stamps[-1] + 1,
            requested_tokens=tokens,
            finish_reason="length",
            prompt_tokens=100,
            cached_tokens=0,
            completion_tokens=tokens,
            token_source="usage",
            thinking_tokens=thinking,
            visible_tokens=tokens - thinking,
            invalid="the fake says so" if self._said.get("--fail") == "invalid" else None,
        )


class ManyTarget(FakeTarget):
    """Answers several at once; each begins 50 ms after the one before, or 10 s."""

    def stream_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int, temperature: float, fixed_length: bool = True
    ) -> tuple[Sample, ...]:
        said = [prompt.messages[0].content for prompt in prompts]
        log("together", self._entry, prompts=said, max_tokens=max_tokens, fixed_length=fixed_length)
        if self._said.get("--fail") == "stream":
            raise RequestError("fake: the connection was closed; look at the server's log")
        late_ns = 10_000_000_000 if self._said.get("--many") == "queue" else 50_000_000
        return tuple(
            replace(self._sample(prompt, max_tokens, TTFT_NS + number * late_ns), sent_ns=7)
            for number, prompt in enumerate(prompts)
        )


def behaviour(entry: MatrixEntry) -> dict[str, str]:
    return dict(zip(entry.extra_args[::2], entry.extra_args[1::2], strict=True))


class Fake(Backend):
    """Opens a `FakeTarget`, and logs when it opens and closes."""

    name = "fake"

    def check(self, entry: MatrixEntry) -> None:
        log("check", entry)
        if "--absent" in behaviour(entry):
            raise Unavailable("fakectl is not installed", fix=behaviour(entry)["--absent"])

    @contextmanager
    def open(self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report) -> Iterator[FakeTarget]:
        if behaviour(entry).get("--fail") == "open":
            raise ServerStartError("fake: exited with 3 before it was ready; last lines: no such model")
        log("open", entry, runs=settings.runs, warmup=settings.warmup, log_dir=str(log_dir))
        try:
            yield (FakeTarget if behaviour(entry).get("--many") == "no" else ManyTarget)(entry)
        finally:
            log("close", entry)


class Single(Fake):
    """As `Fake`, one request at a time."""

    name = "single"
    one_at_a_time = "it has one thread"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # A lock of its own: the machine's may be held by a real benchmark meanwhile.
    bench_of(config).accelerator = Accelerator(HERE / "accelerator.lock")


def pytest_llmbench_register_backends(backends: dict[str, Backend]) -> None:
    backends["fake"] = Fake()
    backends["single"] = Single()
