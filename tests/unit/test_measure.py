"""Measuring one prompt on a target that answers by a script."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from run_examples import settings

from pytest_llmbench.backends.base import TargetInfo
from pytest_llmbench.errors import MeasurementError, RequestError
from pytest_llmbench.matrix import CustomPrompt
from pytest_llmbench.measure import BURST_TOKENS, CACHED_TOKENS, Measurement, Meter
from pytest_llmbench.memory import MemoryPeak
from pytest_llmbench.prompts import Prompt, PromptMaker, PromptSpec, Tokenizer, builtin
from pytest_llmbench.sample import Delta, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a target was asked."""

    prompt: Prompt
    max_tokens: int
    temperature: float
    fixed_length: bool
    cached: bool


INFO = TargetInfo(backend="scripted", version=None, model="m", load_s=2.0, log_path=Path("e.log"))


@dataclass(slots=True)
class Scripted:
    """Answers request n with its first text after `first_ms[n]`, invalid where `invalid` names n."""

    first_ms: tuple[int, ...]
    invalid: Mapping[int, str] = field(default_factory=dict)
    fails_at: int | None = None
    log: list[Request | str] = field(default_factory=list)
    info: TargetInfo = INFO
    tokenizer: Tokenizer | None = None

    @property
    def requests(self) -> list[Request]:
        return [r for r in self.log if isinstance(r, Request)]

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        number = len(self.requests)
        self.log.append(
            Request(
                prompt=prompt, max_tokens=max_tokens, temperature=temperature, fixed_length=fixed_length, cached=cached
            )
        )
        if number == self.fails_at:
            raise RequestError("the server went away")
        at_ns = self.first_ms[number] * 1_000_000
        delta = Delta(at_ns=at_ns, kind="content", text="x")
        return Sample(
            prompt=prompt.name,
            deltas=(delta, replace(delta, at_ns=at_ns + 1_000_000)),
            end_ns=at_ns + 2_000_000,
            requested_tokens=max_tokens,
            completion_tokens=None if number == 2 else number,
            invalid=self.invalid.get(number),
        )

    def reset_peak_memory(self) -> None:
        self.log.append("reset")

    def peak_memory(self) -> MemoryPeak:
        self.log.append("peak")
        return MemoryPeak(peak_bytes=77, source="pss", samples=1, swap_delta_bytes=None)


def measure(
    target: Scripted,
    spec: PromptSpec | None = None,
    *,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    **changes: Any,
) -> Measurement:
    given = settings(**{"warmup": 1, "runs": 3} | changes)
    state = iter([{"thermal_state": "nominal"}, {"thermal_state": "fair"}])
    meter = Meter(
        target=target, maker=PromptMaker(None), settings=given, progress=progress, conditions=lambda: next(state)
    )
    return meter.measure("e", spec or builtin("short"))


def test_warm_ups_stand_apart_and_medians_are_of_the_runs() -> None:
    found = measure(Scripted((900, 30, 10, 20, 5, 4)))
    assert [s.ttft_s for s in found.warmups] == [0.9]
    assert [s.ttft_s for s in found.samples] == [0.03, 0.01, 0.02]
    assert found.median("ttft_s") == 0.02
    metrics = found.metrics()
    assert metrics["ttft_s"] == 0.02
    assert metrics["ttft_cached_s"] == 0.004
    assert metrics["load_s"] == 2.0
    assert metrics["peak_memory_bytes"] == 77
    assert metrics["prompt_tokens"] is None


def test_a_median_is_over_the_runs_that_have_the_figure() -> None:
    assert measure(Scripted((9, 9, 9, 9, 9, 9))).median("completion_tokens") == 2


def test_an_even_number_of_runs_has_the_middle_of_two_as_its_median() -> None:
    assert measure(Scripted((9, 10, 20, 9, 9)), runs=2).median("ttft_s") == pytest.approx(0.015)


def test_invalid_runs_are_kept_and_not_counted() -> None:
    found = measure(Scripted((900, 30, 1, 20, 5, 4), invalid={2: "a prefix cache answered"}))
    assert len(found.samples) == 3
    assert found.median("ttft_s") == pytest.approx(0.025)


def test_an_invalid_warm_up_does_no_harm() -> None:
    assert measure(Scripted((900, 1, 1, 1, 1, 1), invalid={0: "no text came"})).median("ttft_s") == 0.001


def test_without_a_valid_run_there_is_no_measurement() -> None:
    with pytest.raises(MeasurementError, match=r"e, prompt short: none of 2 runs is valid: cache; no text .*e\.log"):
        measure(Scripted((9, 9, 9, 9, 9), invalid={1: "no text", 2: "cache"}), runs=2)


def test_a_target_without_a_log_has_none_in_its_message() -> None:
    with pytest.raises(MeasurementError, match=r"none of 1 runs is valid: no text$"):
        measure(Scripted((9, 9, 9, 9), invalid={1: "no text"}, info=replace(INFO, log_path=None)), runs=1)


def test_an_invalid_cached_run_gives_no_cached_time() -> None:
    found = measure(Scripted((9, 9, 9, 9, 9, 9), invalid={5: "no text came"}))
    assert found.cached is not None
    assert found.metrics()["ttft_cached_s"] is None


def test_no_warm_up_is_allowed() -> None:
    found = measure(Scripted((7, 6, 5)), warmup=0, runs=1)
    assert found.warmups == ()
    assert found.median("ttft_s") == 0.007


def test_every_prompt_is_new_and_only_the_last_is_repeated() -> None:
    target = Scripted((9,) * 6)
    measure(target)
    *runs, primed, cached = target.requests
    assert len({r.prompt.messages for r in runs}) == 4
    assert not any(r.cached for r in runs)
    assert primed.prompt == cached.prompt == runs[-1].prompt
    assert primed.cached
    assert cached.cached
    assert {r.max_tokens for r in runs} == {512}
    assert {primed.max_tokens, cached.max_tokens} == {CACHED_TOKENS}


def test_the_settings_reach_each_request() -> None:
    target = Scripted((9,) * 6)
    custom = CustomPrompt(name="mine", text="Hi", max_tokens=5)
    spec = PromptSpec(name="mine", instruction="Hi")
    changes: dict[str, Any] = {"prompt_max_tokens": (("mine", 5),), "custom_prompts": (custom,), "prompts": ("mine",)}
    measure(target, spec, temperature=0.7, fixed_length=False, **changes)
    assert {(r.temperature, r.fixed_length) for r in target.requests} == {(0.7, False)}
    assert [r.max_tokens for r in target.requests][:4] == [5] * 4


def test_a_rest_is_followed_by_a_burst_that_no_figure_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    target = Scripted((1, 900, 30, 10, 20, 5, 4), invalid={0: "no text came"})
    found = measure(target, cooldown=8.0)
    assert rests == [8.0]
    assert target.requests[0].prompt.name == "burst"
    assert target.requests[0].max_tokens == BURST_TOKENS
    assert [s.ttft_s for s in (*found.warmups, *found.samples)] == [0.9, 0.03, 0.01, 0.02]
    assert target.log.index("reset") == 1, "the burst's memory is in no window"


def test_without_a_cooldown_there_is_no_burst() -> None:
    target = Scripted((9,) * 6)
    measure(target)
    assert target.log[0] == "reset"
    assert target.log[-1] == "peak"


def test_the_conditions_before_and_after_are_kept() -> None:
    found = measure(Scripted((9,) * 6))
    assert found.conditions == {"before": {"thermal_state": "nominal"}, "after": {"thermal_state": "fair"}}


def test_progress_names_each_step_and_never_goes_back() -> None:
    steps: list[tuple[int, int, str]] = []
    measure(Scripted((9,) * 6), progress=lambda *step: steps.append(step))
    assert [what for _, _, what in steps] == [
        "short: warm-up 1",
        "short: run 1",
        "short: run 2",
        "short: run 3",
        "short: cached run",
    ]
    assert [done for done, _, _ in steps] == [0, 1, 2, 3, 4]
    assert {total for _, total, _ in steps} == {5}


def test_a_failing_request_ends_the_measurement_with_its_own_error() -> None:
    with pytest.raises(RequestError, match="went away"):
        measure(Scripted((9,) * 6, fails_at=2))


def test_figures_that_contradict_each_other_are_said() -> None:
    assert any("repeated one's" in s for s in measure(Scripted((9, 1, 1, 1, 9, 90))).suspicions)
    assert measure(Scripted((9, 90, 90, 90, 9, 9))).suspicions == ()


def test_an_estimated_prompt_is_marked() -> None:
    assert measure(Scripted((9,) * 6)).prompt_exact is False
