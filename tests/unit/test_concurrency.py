"""Figures of several requests at once, on stamps that are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_examples import sample

from pytest_llmbench.concurrency import Round, check_round, metrics, queued, rounds
from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.matrix import CONCURRENCY_METRICS, ROUND_METRICS
from pytest_llmbench.sample import Delta, Sample

MS = 1_000_000


def stream(*stamps_ms: int, sent_ms: int = 0, end_ms: int | None = None, **changes: object) -> Sample:
    """An answer with a token at each of the stamps, which count from its own start."""
    return sample(
        deltas=tuple(Delta(at_ns=at * MS, kind="content", text="x") for at in stamps_ms),
        end_ns=(stamps_ms[-1] if end_ms is None else end_ms) * MS,
        sent_ns=sent_ms * MS,
        **{"completion_tokens": len(stamps_ms), "prompt_tokens": 512} | changes,
    )


def of(*samples: Sample) -> Round:
    return Round(samples=samples)


STAMPS = st.lists(st.integers(1, 10_000), min_size=1, max_size=12, unique=True).map(sorted)
STREAMS = st.lists(st.tuples(STAMPS, st.integers(0, 500)), min_size=1, max_size=8).map(
    lambda drawn: of(*(stream(*stamps, sent_ms=sent) for stamps, sent in drawn))
)


def test_a_round_lasts_from_its_first_request_to_its_last_end() -> None:
    found = of(stream(100, 200, sent_ms=5), stream(100, 300, sent_ms=1005, end_ms=400))
    assert found.wall_s == pytest.approx(1.4)
    assert found.aggregate_tok_s == pytest.approx(4 / 1.4)


def test_decode_counts_from_when_all_have_begun() -> None:
    # The second one begins at 400 ms: of the first, tokens at 500 and 600 count, of the second one at 600.
    found = of(stream(100, 200, 500, 600), stream(300, 500, sent_ms=100))
    assert found.decode_aggregate_tok_s == pytest.approx(3 / 0.2)


def test_a_delta_of_several_tokens_counts_as_their_mean() -> None:
    # 9 tokens: 2 in the first delta, 1 that shows nothing, 6 in the three others.
    chunked = stream(100, 200, 300, 400, completion_tokens=9, first_delta_tokens=2, silent_tokens=1)
    assert of(chunked).decode_aggregate_tok_s == pytest.approx(6 / 0.3)


def test_alone_it_is_the_samples_own_decode_speed() -> None:
    alone = stream(50, 100, 150, 250, completion_tokens=7, first_delta_tokens=2)
    assert of(alone).decode_aggregate_tok_s == pytest.approx(alone.decode_tok_s)


def test_equal_answers_are_fair_and_one_that_waits_is_not() -> None:
    fair = of(stream(100, 200), stream(100, 200))
    assert (fair.fairness_ratio, fair.ttft_spread_s) == (1.0, 0.0)
    waits = of(stream(100, 200), stream(300, 400))
    assert waits.fairness_ratio == pytest.approx(0.5)
    assert waits.ttft_spread_s == pytest.approx(0.2)


def test_answers_underway_at_one_moment_are_counted() -> None:
    assert of(stream(1, 10), stream(20, 30), stream(40, 50)).streams_at_once == 1
    assert of(stream(1, 10), stream(5, 30), stream(20, 50)).streams_at_once == 2
    assert of(stream(1, 10), stream(1, 10, sent_ms=5), stream(1, 10, sent_ms=9)).streams_at_once == 3


@pytest.mark.parametrize("unknown", [{"completion_tokens": None}, {"unseen": "thinking"}, {"deltas": ()}], ids=str)
def test_what_one_answer_doesnt_tell_the_round_doesnt_know(unknown: dict[str, object]) -> None:
    found = of(stream(100, 200), replace(stream(100, 200), **unknown)).metrics()
    tokens = "completion_tokens" in unknown
    assert found["wall_s"] == pytest.approx(0.2)
    assert found["decode_aggregate_tok_s"] is None
    assert (found["aggregate_tok_s"] is None) == (found["fairness_ratio"] is None) == tokens
    assert (found["ttft_spread_s"] is None) == (found["streams_at_once"] is None) != tokens


@given(STREAMS)
def test_figures_keep_their_bounds(found: Round) -> None:
    level = len(found.samples)
    assert found.wall_s >= max(s.total_s for s in found.samples)
    assert found.fairness_ratio is not None
    assert 0 < found.fairness_ratio <= 1
    assert found.streams_at_once is not None
    assert 1 <= found.streams_at_once <= level
    assert found.aggregate_tok_s is not None
    assert found.aggregate_tok_s * found.wall_s == pytest.approx(sum(s.completion_tokens or 0 for s in found.samples))
    assert found.ttft_spread_s is not None
    assert 0 <= found.ttft_spread_s <= max(s.ttft_s or 0 for s in found.samples)


@given(STREAMS, st.integers(0, 10**15))
def test_where_the_clock_begins_changes_nothing(found: Round, later_ns: int) -> None:
    moved = check_round([replace(s, sent_ns=(s.sent_ns or 0) + later_ns) for s in found.samples])
    assert min(s.sent_ns or 0 for s in moved) == 0
    for name, value in of(*moved).metrics().items():
        assert value == pytest.approx(found.metrics()[name])


def test_one_invalid_request_takes_its_round_with_it() -> None:
    odd = check_round([stream(100), stream(100, invalid="no text came")])
    assert [s.invalid for s in odd] == ["another request of its round is invalid: no text came", "no text came"]
    assert not of(*odd).valid
    assert of(*check_round([stream(100), stream(100)])).valid


def test_a_target_must_say_when_it_sent_each_request() -> None:
    with pytest.raises(MeasurementError, match="when each of its requests went out"):
        check_round([stream(100), replace(stream(100), sent_ns=None)])


def test_samples_are_cut_into_rounds_in_their_order() -> None:
    taken = [stream(number) for number in range(1, 7)]
    assert [r.samples for r in rounds(taken, 2)] == [tuple(taken[:2]), tuple(taken[2:4]), tuple(taken[4:])]


def test_figures_are_medians_over_rounds_and_tails_over_requests() -> None:
    taken = [of(stream(100, 100 * last), stream(100, 100 * last)) for last in (2, 3, 9)]
    found = metrics(taken)
    assert tuple(found) == CONCURRENCY_METRICS
    assert tuple(found)[: len(ROUND_METRICS)] == ROUND_METRICS
    assert found["wall_s"] == pytest.approx(0.3)
    assert found["total_p95_s"] is None  # six requests have no 95th percentile
    assert metrics(taken * 4)["total_p95_s"] == pytest.approx(0.9)
    assert set(metrics([]).values()) == {None}


def test_a_server_that_lets_requests_wait_is_named() -> None:
    one_by_one, together = of(stream(1, 10), stream(20, 30)), of(stream(1, 10), stream(5, 30))
    assert "2 requests were answered one after the other" in (queued([one_by_one] * 2 + [together], 2) or "")
    assert queued([together, together, one_by_one], 2) is None
    assert queued([of(stream(1, 10))], 1) is None
