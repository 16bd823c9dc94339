"""Where two outputs part, and whether rounding alone can have parted them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.parity_tokens import NEAR_TIE, TokenCheck, compare, first_difference
from pytest_llmbench.sides.messages import Margins

NAMES = ("candidate", "baseline")
ids = st.lists(st.integers(0, 3), max_size=12)


def check(found: list[int], wanted: list[int], *seen: Margins | None) -> TokenCheck:
    margins = [(f"engine {i}", lambda at, margin=margin: margin) for i, margin in enumerate(seen)]
    return compare(found, wanted, names=NAMES, margins=margins)


def tie(*pairs: tuple[int, float]) -> Margins:
    return Margins(top=pairs)


@given(ids, ids)
def test_all_before_the_first_difference_is_equal_and_it_is_one(one: list[int], other: list[int]) -> None:
    at = first_difference(one, other)
    assert at == first_difference(other, one)
    assert (at is None) == (one == other)
    if at is not None:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@given(ids)
def test_equal_outputs_pass_and_ask_for_no_margin(tokens: list[int]) -> None:
    def never(at: int) -> Margins | None:
        raise AssertionError("asked")

    found = compare(tokens, list(tokens), names=NAMES, margins=[("engine", never)])
    assert found == TokenCheck(equal=True)
    assert found.passed


@given(ids, ids, st.floats(0, 20, allow_nan=False), st.floats(-100, 100))
def test_a_difference_passes_only_within_a_near_tie_of_its_own_tokens(
    one: list[int], other: list[int], margin: float, high: float
) -> None:
    at = first_difference(one, other)
    if at is None or at >= min(len(one), len(other)):
        return
    found = check(one, other, tie((one[at], high), (other[at], high - margin)))
    assert found.passed is (high - (high - margin) <= NEAR_TIE * abs(high))
    assert not found.equal
    assert not check(one, other, tie((98, high), (99, high - margin))).passed


def test_a_logit_beyond_all_measure_is_written_short() -> None:
    note = check([1], [2], tie((1, 1e308), (2, -1.5e308))).note
    assert "best logits are 1e+308 (token 1) and -1.5e+308 (token 2), margin inf" in note


def test_margins_are_asked_for_at_the_first_difference() -> None:
    asked: list[int] = []
    compare([1, 2, 3, 4], [1, 2, 9, 9], names=NAMES, margins=[("engine", asked.append)])  # type: ignore[list-item,func-returns-value]
    assert asked == [2]


@pytest.mark.parametrize(
    ("seen", "passed"),
    [
        ((tie((1, 10.0), (2, 9.9)), tie((2, 10.0), (1, 9.8))), True),
        ((tie((1, 10.0), (2, 9.9)), tie((2, 10.0), (1, 9.0))), False),
        ((tie((1, 10.0), (2, 9.9)), None), False),
        ((tie((3, 10.1), (1, 10.0), (2, 9.9)),), True),
        ((tie((3, 20.0), (1, 10.0), (2, 9.9)),), False),
        ((tie((1, 10.0), (3, 9.9)),), False),
        ((), False),
    ],
)
def test_all_engines_that_are_asked_must_see_the_tie(seen: tuple[Margins | None, ...], passed: bool) -> None:
    assert check([1], [2], *seen).passed is passed


def test_an_output_that_ends_early_is_no_tie() -> None:
    found = check([1], [1, 2], tie((2, 1.0), (3, 1.0)))
    assert not found.passed
    assert found.note.startswith(
        "token 1 is candidate nothing and baseline 2: no near tie; engine 0's best logits are 1.0000"
    )


def test_an_engine_that_can_t_tell_is_named() -> None:
    assert check([1], [2], None).note.endswith("engine 0 can't tell its logits")
