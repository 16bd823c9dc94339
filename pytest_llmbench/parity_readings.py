"""One sample of one side at a point: what it is asked, and what is made of the stamps that come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_llmbench import file_cache
from pytest_llmbench.parity_pair import Pair, Who
from pytest_llmbench.parity_planned import PlannedPoint, PlannedSection
from pytest_llmbench.parity_prompts import ParityPrompts
from pytest_llmbench.sides.messages import Batched, Generated, MemoryUse
from pytest_llmbench.sides.process import SideProcess

NS = 1e-9
FIRST_TOKENS = 16
"""Tokens that follow when the first one's time is measured: a stream goes on, it doesn't end with its first token."""
DECODE_MEMORY_REPEATS = 40
"""The prompt of the memory point `decode`."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Metrics by name, in their units; the tokens of each row; further counters."""

    values: Mapping[str, float]
    tokens: tuple[Ids, ...] = ()
    raw: Mapping[str, float] = field(default_factory=dict)


Sampler = Callable[[Pair, Who], Reading]
"""Takes one sample of a side. SideError where it fails."""


def sampler(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    """What takes the samples of a point, with its `prompts_of`."""
    return _SAMPLERS[section.section](section, point, prompts)


def prompts_of(section: PlannedSection, point: PlannedPoint, prompts: ParityPrompts) -> tuple[Ids, ...]:
    """The prompts that the point's samples are taken with; none for loading."""
    settings = section.settings
    if point.streams is not None:
        return prompts.streams(point.streams, settings.concurrency.prompt_tokens)
    if point.repeats is not None:
        return (prompts.repeats(point.repeats),)
    if point.prompt_tokens is not None:
        return (prompts.exact(point.prompt_tokens),)
    if point.section == "load":
        return (prompts.exact(settings.load.first_token_prompt_tokens),)
    return (prompts.repeats(DECODE_MEMORY_REPEATS),) if point.point == "decode" else ()


def decode_values(answer: Generated) -> dict[str, float]:
    """`tok_s`: tokens after the first, by the time since it; the first one's own time is that of the prompt.

    A single token has no rate.
    """
    later = len(answer.tokens) - 1
    return {"tok_s": later / ((answer.token_ns[-1] - answer.token_ns[0]) * NS)} if later else {}


def batch_values(answer: Batched) -> dict[str, float]:
    """`decode_aggregate_tok_s` counts what came after every row had its first token, and the time since then."""
    total = sum(map(len, answer.tokens))
    end = max(row[-1] for row in answer.token_ns)
    all_begun = max(row[0] for row in answer.token_ns)
    later = sum(stamp > all_begun for row in answer.token_ns for stamp in row)
    wall = (end - answer.started_ns) * NS
    values = {"wall_s": wall, "aggregate_tok_s": total / wall}
    return values | ({"decode_aggregate_tok_s": later / ((end - all_begun) * NS)} if later else {})


def _decode(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    (prompt,) = prompts

    def take(pair: Pair, who: Who) -> Reading:
        answer = pair.ask(who, lambda side: _generate(side, prompt, section.settings.max_tokens))
        return Reading(values=decode_values(answer), tokens=(answer.tokens,))

    return take


def _ttft(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    (prompt,) = prompts

    def take(pair: Pair, who: Who) -> Reading:
        answer = pair.ask(who, lambda side: _generate(side, prompt, FIRST_TOKENS))
        ttft_s = (answer.token_ns[0] - answer.started_ns) * NS
        return Reading(values={"ttft_s": ttft_s, "prefill_tok_s": len(prompt) / ttft_s}, tokens=(answer.tokens,))

    return take


def _concurrency(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    def take(pair: Pair, who: Who) -> Reading:
        answer = pair.ask(who, lambda side: _batch(side, prompts, section.settings.concurrency.max_tokens))
        return Reading(values=batch_values(answer), tokens=answer.tokens)

    return take


def _memory(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    tokens = section.settings.max_tokens if point.point == "decode" else 1

    def take(pair: Pair, who: Who) -> Reading:
        pair.fresh(who)
        return pair.ask(who, lambda side: _memory_of(side, pair, prompts, tokens))

    return take


def _load(section: PlannedSection, point: PlannedPoint, prompts: tuple[Ids, ...]) -> Sampler:
    (prompt,) = prompts

    def take(pair: Pair, who: Who) -> Reading:
        side = pair.fresh(who)
        if point.point == "cold":
            file_cache.drop(pair.checkpoint)
        return pair.ask(who, lambda _: _load_of(side, pair, prompt))

    return take


def _generate(side: SideProcess, prompt: Ids, tokens: int) -> Generated:
    side.reset()
    return side.generate(prompt, tokens)


def _batch(side: SideProcess, prompts: tuple[Ids, ...], tokens: int) -> Batched:
    side.reset()
    return side.batch(prompts, tokens)


def _memory_of(side: SideProcess, pair: Pair, prompts: tuple[Ids, ...], tokens: int) -> Reading:
    side.load(pair.checkpoint)
    for prompt in prompts:
        side.generate(prompt, tokens)
    used = side.memory()
    counters = {"peak_bytes": used.peak_bytes, "os_peak_rss_bytes": used.os_peak_rss_bytes}
    return Reading(values={name: float(value) for name, value in counters.items() if value is not None}, raw=_raw(used))


def _raw(used: MemoryUse) -> dict[str, float]:
    counters = {"active_bytes": used.active_bytes, "os_peak_footprint_bytes": used.os_peak_footprint_bytes}
    return {name: float(value) for name, value in counters.items() if value is not None}


def _load_of(side: SideProcess, pair: Pair, prompt: Ids) -> Reading:
    loaded = side.load(pair.checkpoint, prompt)
    assert loaded.first_token_ns is not None  # checked where the answer came in
    return Reading(
        values={
            "model_ready_s": (loaded.ready_ns - loaded.started_ns) * NS,
            "first_token_s": (loaded.first_token_ns - loaded.started_ns) * NS,
            "spawn_to_first_token_s": (loaded.first_token_ns - side.spawned_ns) * NS,
        }
    )


_SAMPLERS = {"decode": _decode, "ttft": _ttft, "memory": _memory, "load": _load, "concurrency": _concurrency}
