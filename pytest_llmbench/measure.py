"""Measure one prompt on one open target: warm-ups, runs with a new prompt each time, then the last prompt again.

Figures are medians over the valid runs. Warm-ups are kept, apart; invalid samples are kept and never counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_llmbench import concurrency, stats
from pytest_llmbench.backends.base import ServesMany
from pytest_llmbench.concurrency import Round
from pytest_llmbench.errors import MeasurementError, Unavailable
from pytest_llmbench.matrix import RunSettings
from pytest_llmbench.memory import MemoryPeak
from pytest_llmbench.prompts import Prompt, PromptMaker, PromptSpec
from pytest_llmbench.sample import SAMPLE_METRICS, Sample
from pytest_llmbench.suspect import suspicions

if TYPE_CHECKING:
    from pytest_llmbench.backends.base import Target, TargetInfo

BURST_TOKENS = 8
"""Tokens of the untimed request that wakes an accelerator after a pause (clocks ramp, residency lapses)."""

ONE_BY_ONE = "leave out --llmbench-concurrency"

CACHED_TOKENS = 16
"""A cached run is timed to its first text, which may come behind a few tokens that show none (`<think>`)."""


Progress = Callable[[int, int, str], None]
"""Told before each request how many of how many are done, and what comes next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All samples of one entry and prompt, with what they were taken on. `prompt_exact`: made to the token."""

    entry_id: str
    prompt: str
    target: TargetInfo
    settings: RunSettings
    started_at: datetime
    prompt_exact: bool
    warmups: tuple[Sample, ...]
    samples: tuple[Sample, ...]
    cached: Sample | None
    memory: MemoryPeak | None
    conditions: Mapping[str, Any]
    """Power and thermal state before and after, as the caller's `conditions` function gave them."""
    level: int | None = None
    """How many requests ran at once: `samples` then has one round of them after the other. None: each by itself."""

    @property
    def valid(self) -> tuple[Sample, ...]:
        return tuple(s for s in self.samples if s.invalid is None)

    def median(self, metric: str) -> float | None:
        """The median of a sample's metric over the valid runs that have it; None where none has."""
        return stats.median_of_known(getattr(sample, metric) for sample in self.valid)

    def metrics(self) -> dict[str, float | None]:
        """Every figure by its name, None where it wasn't measured."""
        cached = self.cached if self.cached is not None and self.cached.invalid is None else None
        return {
            "load_s": self.target.load_s,
            "ttft_cached_s": cached.ttft_s if cached else None,
            "peak_memory_bytes": self.memory.peak_bytes if self.memory else None,
            **{name: self.median(name) for name in SAMPLE_METRICS},
            **(concurrency.metrics(self.valid_rounds) if self.level is not None else {}),
        }

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The samples by the requests that ran together; () where each ran by itself."""
        return () if self.level is None else concurrency.rounds(self.samples, self.level)

    @property
    def valid_rounds(self) -> tuple[Round, ...]:
        return tuple(r for r in self.rounds if r.valid)

    @property
    def suspicions(self) -> tuple[str, ...]:
        """What physics forbids in these figures, in words: of the medians, and of any one sample."""
        found = [*suspicions(self.metrics()), *(odd for s in self.valid for odd in suspicions(s.metrics()))]
        late = sum(s.bunched for s in self.valid)
        if late:
            found.append(
                f"{late} of {len(self.valid)} runs were read late (deltas in bunches): their decode isn't real"
            )
        over = sum(bool(s.ran_over) for s in self.valid)
        if over:
            found.append(
                f"{over} of {len(self.valid)} runs gave far more tokens than they were asked for: the server doesn't "
                "keep to max_tokens, or counts something else"
            )
        if self.level is not None and (waited := concurrency.queued(self.valid_rounds, self.level)) is not None:
            found.append(waited)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """Takes measurements on one open target; the prompts of all of them differ from each other."""

    target: Target
    maker: PromptMaker
    settings: RunSettings
    progress: Progress
    conditions: Callable[[], Mapping[str, Any]]

    def measure(self, entry_id: str, spec: PromptSpec, *, level: int | None = None) -> Measurement:
        """Run one prompt; with `level`, that many new ones of its kind at once, each run being a round of them.

        MeasurementError if no run is valid; errors of the target pass through.
        Unavailable for a level, if the target can't be sent several requests.
        """
        started_at, before = datetime.now(UTC), dict(self.conditions())
        self._rest()
        self.target.reset_peak_memory()
        taken = list(self._requests(spec, level))
        warm = self.settings.warmup * (level or 1)
        warmups, samples = taken[:warm], taken[warm:]
        prompt = samples[-1][0]
        measurement = Measurement(
            entry_id=entry_id,
            prompt=spec.name,
            target=self.target.info,
            settings=self.settings,
            started_at=started_at,
            prompt_exact=all(p.exact and s.prompt_tokens in (None, p.tokens) for p, s in samples),
            warmups=tuple(s for _, s in warmups),
            samples=tuple(s for _, s in samples),
            cached=self._cached(prompt) if level is None else None,
            memory=self.target.peak_memory(),
            conditions={"before": before, "after": dict(self.conditions())},
            level=level,
        )
        _require_valid(measurement)
        return measurement

    def _requests(self, spec: PromptSpec, level: int | None) -> Iterator[tuple[Prompt, Sample]]:
        total = self._total
        for number in range(self.settings.warmup + self.settings.runs):
            warm = number < self.settings.warmup
            which = f"warm-up {number + 1}" if warm else f"run {number + 1 - self.settings.warmup}"
            self.progress(number, total, f"{spec.name}: {which}")
            prompts = [self.maker.make(spec) for _ in range(level or 1)]
            samples = [self._stream(prompts[0], self._length(spec))] if level is None else self._round(prompts, spec)
            yield from zip(prompts, samples, strict=True)

    def _round(self, prompts: Sequence[Prompt], spec: PromptSpec) -> Sequence[Sample]:
        if not isinstance(self.target, ServesMany):
            raise Unavailable(f"{self.target.info.backend} can't be sent several requests at once", fix=ONE_BY_ONE)
        return concurrency.check_round(
            self.target.stream_many(
                prompts,
                max_tokens=self._length(spec),
                temperature=self.settings.temperature,
                fixed_length=self.settings.fixed_length,
            )
        )

    def _cached(self, prompt: Prompt) -> Sample | None:
        """The last prompt again, twice: once to prime the cache, once for its time to the first token."""
        self.progress(self._total - 1, self._total, f"{prompt.name}: cached run")
        self._stream(prompt, CACHED_TOKENS, cached=True)
        return self._stream(prompt, CACHED_TOKENS, cached=True)

    @property
    def _total(self) -> int:
        return self.settings.warmup + self.settings.runs + 1

    def _length(self, spec: PromptSpec) -> int:
        return self.settings.max_tokens_for(spec.name)

    def _stream(self, prompt: Prompt, max_tokens: int, *, cached: bool = False) -> Sample:
        return self.target.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=self.settings.temperature,
            fixed_length=self.settings.fixed_length,
            cached=cached,
        )

    def _rest(self) -> None:
        """Let the machine cool, then wake it again outside the clock."""
        if self.settings.cooldown <= 0:
            return
        self.progress(0, self._total, f"cooling down for {self.settings.cooldown:g} s")
        time.sleep(self.settings.cooldown)
        burst = PromptSpec(name="burst", instruction="Count to ten.")
        self._stream(self.maker.make(burst), BURST_TOKENS)


def _require_valid(measurement: Measurement) -> None:
    if not measurement.valid:
        reasons = sorted({s.invalid or "" for s in measurement.samples})
        log_path = measurement.target.log_path
        log = "" if log_path is None else f" (server log: {log_path})"
        raise MeasurementError(
            f"{measurement.entry_id}, prompt {measurement.prompt}: none of {len(measurement.samples)} runs is valid: "
            f"{'; '.join(reasons)}{log}"
        )
