"""What is made of a side's stamps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.parity_readings import batch_values, decode_values
from pytest_llmbench.sides.messages import Batched, Generated

S = 10**9
counts, nanoseconds = st.integers(2, 200), st.integers(1, 10**12)


def stream(n: int, *, start: int, prompt_ns: int, step_ns: int) -> Generated:
    at = tuple(start + prompt_ns + i * step_ns for i in range(n))
    return Generated(started_ns=start, token_ns=at, tokens=(0,) * n)


@given(counts, st.integers(0, 10**15), nanoseconds, nanoseconds)
def test_a_steady_stream_has_the_rate_of_its_step_whatever_its_prompt_took(
    n: int, start: int, prompt_ns: int, step_ns: int
) -> None:
    answer = stream(n, start=start, prompt_ns=prompt_ns, step_ns=step_ns)
    assert decode_values(answer) == {"tok_s": pytest.approx(S / step_ns)}


@given(counts, nanoseconds)
def test_tokens_are_counted_less_one_not_all_by_the_time_of_those_gaps(n: int, total_ns: int) -> None:
    # mlx-lm's own figure is n tokens by that time: n / (n - 1) too high.
    answer = Generated(started_ns=0, token_ns=(5, *[5 + total_ns] * (n - 1)), tokens=(0,) * n)
    assert decode_values(answer)["tok_s"] * total_ns / S == pytest.approx(n - 1)


def test_one_token_has_no_rate() -> None:
    assert decode_values(stream(1, start=0, prompt_ns=5, step_ns=1)) == {}


@given(st.integers(1, 8), counts, nanoseconds, nanoseconds)
def test_rows_in_step_have_their_sum_as_rate(rows: int, n: int, prompt_ns: int, step_ns: int) -> None:
    one = stream(n, start=7, prompt_ns=prompt_ns, step_ns=step_ns)
    values = batch_values(Batched(started_ns=7, token_ns=(one.token_ns,) * rows, tokens=(one.tokens,) * rows))
    wall = (prompt_ns + (n - 1) * step_ns) / S
    assert values == {
        "wall_s": pytest.approx(wall),
        "aggregate_tok_s": pytest.approx(rows * n / wall),
        "decode_aggregate_tok_s": pytest.approx(rows * S / step_ns),
    }


def test_decode_begins_when_the_last_row_has_its_first_token() -> None:
    early, late = (1 * S, 2 * S, 3 * S, 4 * S), (3 * S, 4 * S, 5 * S, 7 * S)
    values = batch_values(Batched(started_ns=0, token_ns=(early, late), tokens=((0,) * 4,) * 2))
    assert values == {
        "wall_s": pytest.approx(7),
        "aggregate_tok_s": pytest.approx(8 / 7),
        "decode_aggregate_tok_s": pytest.approx(4 / 4),
    }


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=1, max_size=9), min_size=1, max_size=5))
def test_no_row_is_forgotten_however_they_come(steps: list[list[int]]) -> None:
    n = min(map(len, steps))
    stamps = tuple(tuple(sum(row[: i + 1]) for i in range(n)) for row in steps)
    values = batch_values(Batched(started_ns=0, token_ns=stamps, tokens=((0,) * n,) * len(steps)))
    assert values["wall_s"] == pytest.approx(max(row[-1] for row in stamps) / S)
    assert values["aggregate_tok_s"] * values["wall_s"] == pytest.approx(n * len(steps))
    assert all(value > 0 for value in values.values())
