"""Measurements on real servers: what the scripted checkpoint makes certain is asserted to the token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_kit import Flavour, entry, open_target, prompt_for, settings

from pytest_llmbench.backends.base import Target
from pytest_llmbench.measure import Meter
from pytest_llmbench.prompts import Prompt, PromptMaker, builtin
from pytest_llmbench.sample import Sample

RANDOM_TOKENS = 96


@pytest.fixture(scope="module")
def babble(flavour: Flavour, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """A long answer of tiny-random, which never ends by itself."""
    wanted = entry(flavour, tiny_checkpoints / "tiny-random")
    with open_target(wanted, tmp_path_factory.mktemp("random"), max_tokens=RANDOM_TOKENS) as target:
        yield target.stream(prompt_for(target), max_tokens=RANDOM_TOKENS, temperature=0.0, fixed_length=True)


@pytest.fixture(scope="module")
def maker(scripted: Target) -> PromptMaker:
    """One for all tests of a server: a prompt that another maker had made could be in its cache."""
    return PromptMaker(scripted.tokenizer, think=None)


def stream(target: Target, prompt: Prompt, *, max_tokens: int = 64, cached: bool = False) -> Sample:
    return target.stream(prompt, max_tokens=max_tokens, temperature=0.0, fixed_length=False, cached=cached)


@pytest.mark.parametrize(("name", "tokens"), [("short", 64), ("long", 128), ("code", 2048), ("context-4k", 4096)])
def test_prompts_are_exactly_as_long_as_they_say_and_no_cache_answers_them(
    scripted: Target, maker: PromptMaker, flavour: Flavour, name: str, tokens: int
) -> None:
    prompt = maker.make(builtin(name))
    sample = stream(scripted, prompt)
    assert prompt.exact
    assert prompt.tokens == sample.prompt_tokens == tokens
    assert sample.invalid is None
    assert (sample.cached_tokens is None) == (flavour.uncached is None)
    assert (sample.cached_tokens or 0) <= maker.template_tokens < 10
    assert (sample.completion_tokens, sample.finish_reason) == (flavour.counted(21), "stop")


def test_a_new_prompt_is_kept_from_the_cache_or_invalid(scripted: Target, maker: PromptMaker, flavour: Flavour) -> None:
    prompt = maker.make(builtin("long"))
    stream(scripted, prompt)
    again = stream(scripted, prompt)
    expected = 0 if flavour.backend == "llama-server" else flavour.cached(128)
    assert again.cached_tokens == expected
    said = f"a prefix cache answered {expected} tokens of a prompt that was new"
    assert again.invalid == (said if expected else None)


def test_a_servers_own_figures_stand_beside_ours(scripted: Target, maker: PromptMaker, flavour: Flavour) -> None:
    sample = stream(scripted, maker.make(builtin("short")))
    own = sample.timings
    if not flavour.timed:
        assert (own.prompt_s, own.decode_tok_s, sample.prefill_source) == (None, None, "client")
        return
    assert own.prompt_tokens == 64
    # A draft may go on behind the end token.
    assert own.decode_tokens == flavour.counted(21) or (own.accepted_tokens and own.decode_tokens in (22, 23, 24))
    assert own.prompt_s is not None
    assert own.decode_s is not None
    assert sample.prefill_source == "server"
    assert sample.prefill_tok_s == pytest.approx(64 / own.prompt_s)
    assert own.prefill_tok_s == pytest.approx(64 / own.prompt_s, rel=0.01)
    assert sample.server_decode_tok_s is not None


def test_stamps_are_in_order_and_the_answer_comes_behind_the_thinking(scripted: Target, maker: PromptMaker) -> None:
    sample = stream(scripted, maker.make(builtin("short")))
    stamps = [d.at_ns for d in sample.deltas]
    assert stamps == sorted(stamps)
    assert 0 < stamps[0] < stamps[-1] <= sample.end_ns
    assert sample.ttft_s is not None
    assert sample.ttfv_s is not None
    assert sample.ttft_s < sample.ttfv_s < sample.total_s
    assert sample.first_delta_source == "tokenizer"
    assert sample.first_delta_tokens == 1
    assert len(sample.gaps_s) == len(stamps) - 1


@pytest.mark.parametrize(("asked", "early"), [(64, True), (24, False), (21, False)])
def test_an_answer_shorter_than_asked_is_marked(scripted: Target, maker: PromptMaker, asked: int, early: bool) -> None:
    assert stream(scripted, maker.make(builtin("short")), max_tokens=asked).stopped_early is early


def test_an_endless_answer_is_as_long_as_was_asked(babble: Sample) -> None:
    assert babble.completion_tokens == RANDOM_TOKENS
    assert babble.finish_reason == "length"
    assert babble.stopped_early is False
    assert babble.invalid is None


def test_chunks_are_no_tokens(babble: Sample) -> None:
    assert 2 < len(babble.deltas) < RANDOM_TOKENS
    assert babble.completion_tokens == RANDOM_TOKENS
    assert babble.token_source == "usage"
    assert babble.itl_unit == "per_chunk"
    assert babble.decode_tok_s is not None
    window_s = (babble.deltas[-1].at_ns - babble.deltas[0].at_ns) / 1e9
    assert babble.decode_tok_s == pytest.approx((RANDOM_TOKENS - babble.first_delta_tokens) / window_s)


def test_a_whole_measurement_has_every_figure_that_the_server_allows(
    scripted: Target, maker: PromptMaker, flavour: Flavour
) -> None:
    chosen = settings(runs=2, warmup=1)
    said: list[str] = []
    meter = Meter(
        target=scripted,
        maker=maker,
        settings=chosen,
        progress=lambda _done, _total, what: said.append(what),
        conditions=dict,
    )
    measured = meter.measure("scripted", builtin("short"))
    metrics = measured.metrics()
    assert (len(measured.warmups), len(measured.samples), len(measured.valid)) == (1, 2, 2)
    assert measured.prompt_exact
    assert measured.cached is not None
    assert measured.cached.cached_tokens == flavour.cached(64)
    assert (metrics["prompt_tokens"], metrics["completion_tokens"]) == (64, flavour.counted(21))
    named = ("load_s", "ttft_s", "ttfv_s", "ttft_cached_s", "prefill_tok_s", "decode_tok_s", "itl_p50_s")
    assert [name for name in named if metrics[name] is None] == []
    # 17 gaps are too few for a 95th percentile.
    assert (metrics["itl_p95_s"], metrics["itl_p99_s"]) == (None, None)
    assert measured.memory is not None
    assert measured.memory.peak_bytes is not None
    assert measured.memory.peak_bytes > 5_000_000
    assert said == ["short: warm-up 1", "short: run 1", "short: run 2", "short: cached run"]


def test_with_thinking_off_the_first_token_is_visible(scripted: Target) -> None:
    # The last one of this file: a prompt of another maker may begin as one of `maker` does.
    prompt = prompt_for(scripted, think=False)
    sample = stream(scripted, prompt)
    assert (sample.thinking_tokens, sample.visible_tokens) == (0, 12)
    assert sample.prompt_tokens == prompt.tokens == 64
    assert sample.ttfv_s == sample.ttft_s
