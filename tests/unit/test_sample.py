"""A sample's figures from hand-made stamps; None is not measured, 0 is a value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.record import dumps
from pytest_llmbench.sample import SAMPLE_METRICS, Delta, Kind, Sample, ServerTimings

MS = 1_000_000


def deltas(*stamps_ms: int, kind: Kind = "content") -> tuple[Delta, ...]:
    return tuple(Delta(at_ns=ms * MS, kind=kind, text="x") for ms in stamps_ms)


def sample(**given_fields: Any) -> Sample:
    fields: dict[str, Any] = {"prompt": "short", "deltas": (), "end_ns": 1000 * MS, "requested_tokens": 10}
    return Sample(**fields | given_fields)


def test_times_to_first_text_and_first_visible_text_are_apart() -> None:
    taken = sample(deltas=deltas(200, 300, kind="reasoning") + deltas(500))
    assert taken.ttft_s == 0.2
    assert taken.ttfv_s == 0.5
    assert taken.total_s == 1.0
    assert (taken.reasoning, taken.text) == ("xx", "x")


def test_only_thinking_has_no_first_visible_text() -> None:
    assert sample(deltas=deltas(200, kind="reasoning")).ttfv_s is None


def test_without_text_nothing_is_made_up() -> None:
    measured = {name for name, value in sample().metrics().items() if value is not None}
    assert measured == {"total_s"}


def test_decode_leaves_out_the_first_deltas_tokens_and_the_time_before_and_after_the_text() -> None:
    taken = sample(deltas=deltas(500, 600, 700), completion_tokens=9, first_delta_tokens=3)
    assert taken.decode_tok_s == pytest.approx(6 / 0.2)


@pytest.mark.parametrize(
    "changes",
    [{"completion_tokens": None}, {"deltas": deltas(500)}, {"deltas": deltas(500, 500)}, {"first_delta_tokens": 9}],
    ids=["no count", "one delta", "one read", "all in the first delta"],
)
def test_decode_is_unknown_where_a_part_is(changes: dict[str, Any]) -> None:
    taken = sample(deltas=deltas(500, 600, 700), completion_tokens=9)
    assert replace(taken, **changes).decode_tok_s is None


def test_prefill_takes_the_servers_prompt_time_where_there_is_one() -> None:
    taken = sample(deltas=deltas(500), prompt_tokens=100, cached_tokens=20)
    assert taken.prefill_source == "client"
    assert taken.prefill_tok_s == pytest.approx(160)
    timed = replace(taken, timings=ServerTimings(prompt_s=0.4))
    assert timed.prefill_source == "server"
    assert timed.prefill_tok_s == pytest.approx(200)


def test_a_prompt_answered_whole_by_a_cache_has_a_prefill_of_zero_not_none() -> None:
    assert sample(deltas=deltas(500), prompt_tokens=20, cached_tokens=20).prefill_tok_s == 0


def test_an_unknown_prompt_length_gives_no_prefill() -> None:
    assert sample(deltas=deltas(500)).prefill_tok_s is None


def test_gaps_need_enough_of_them_for_their_tail() -> None:
    def percentiles(gaps: int) -> list[bool]:
        taken = sample(deltas=deltas(*range(0, 10 * (gaps + 1), 10)))
        return [p is not None for p in (taken.itl_p50_s, taken.itl_p95_s, taken.itl_p99_s)]

    assert percentiles(0) == [False, False, False]
    assert percentiles(1) == percentiles(19) == [True, False, False]
    assert percentiles(20) == percentiles(99) == [True, True, False]
    assert percentiles(100) == [True, True, True]


def test_a_gap_is_a_tokens_only_where_deltas_are_tokens() -> None:
    taken = sample(deltas=deltas(1, 2, 3), thinking_tokens=1, visible_tokens=2)
    assert taken.itl_unit == "per_token"
    assert replace(taken, visible_tokens=5).itl_unit == "per_chunk"
    assert replace(taken, thinking_tokens=None, visible_tokens=None).itl_unit == "per_chunk"


@pytest.mark.parametrize(("tokens", "early"), [(None, None), (0, True), (7, True), (8, False), (10, False)])
def test_less_than_four_fifths_of_what_was_asked_is_an_early_stop(tokens: int | None, early: bool | None) -> None:
    assert sample(completion_tokens=tokens).stopped_early is early


@pytest.mark.parametrize(("tokens", "over"), [(None, None), (0, False), (12, False), (13, True), (100, True)])
def test_more_than_five_quarters_of_what_was_asked_is_an_overrun(tokens: int | None, over: bool | None) -> None:
    assert sample(completion_tokens=tokens).ran_over is over
    assert sample(completion_tokens=tokens).to_json()["ran_over"] is over


def test_the_servers_own_figures_stand_beside_ours() -> None:
    metrics = sample(timings=ServerTimings(prefill_tok_s=5.0, decode_tok_s=0.0)).metrics()
    assert metrics["server_prefill_tok_s"] == 5.0
    assert metrics["server_decode_tok_s"] == 0.0
    assert tuple(metrics) == SAMPLE_METRICS


counts = st.none() | st.integers(0, 10**6)
seconds = st.none() | st.just(0.0) | st.floats(1e-9, 1e6)
some_deltas = st.builds(
    Delta, at_ns=st.integers(0, 10**12), kind=st.sampled_from(["content", "reasoning"]), text=st.text(min_size=1)
)
some_samples = st.builds(
    Sample,
    prompt=st.text(),
    deltas=st.lists(some_deltas, max_size=4).map(lambda d: tuple(sorted(d, key=lambda x: x.at_ns))),
    end_ns=st.integers(0, 10**12),
    requested_tokens=st.integers(0, 10**6),
    finish_reason=st.none() | st.text(),
    prompt_tokens=counts,
    cached_tokens=counts,
    completion_tokens=counts,
    token_source=st.sampled_from([None, "usage", "tokenizer", "engine"]),
    thinking_tokens=counts,
    visible_tokens=counts,
    first_delta_tokens=st.integers(1, 9),
    first_delta_source=st.sampled_from(["tokenizer", "engine", "assumed"]),
    timings=st.builds(ServerTimings, prompt_s=seconds, decode_tok_s=seconds, peak_memory_bytes=counts),
    answered_by=st.none() | st.text(),
    invalid=st.none() | st.text(),
)


@given(some_samples)
def test_a_sample_comes_back_from_its_json(taken: Sample) -> None:
    assert Sample.from_json(json.loads(dumps(taken.to_json()))) == taken


def test_deltas_that_came_in_one_read_are_noticed() -> None:
    def sample(stamps: list[int]) -> Sample:
        deltas = tuple(Delta(at_ns=ns, kind="content", text="a") for ns in stamps)
        return Sample(prompt="p", deltas=deltas, end_ns=stamps[-1], requested_tokens=8)

    assert sample([1_000, 2_000, 3_000, 4_000, 9_000_000, 9_000_500]).bunched
    assert not sample([i * 1_000_000 for i in range(1, 8)]).bunched
    assert not sample([1_000, 2_000]).bunched
