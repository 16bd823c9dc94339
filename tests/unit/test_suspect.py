"""Figures that contradict each other are said; honest noise is not."""

from __future__ import annotations

import pytest

from pytest_llmbench.suspect import suspicions

GOOD: dict[str, float | None] = {
    "ttft_s": 1.0,
    "ttft_cached_s": 0.2,
    "ttfv_s": 1.5,
    "decode_tok_s": 50.0,
    "server_decode_tok_s": 50.0,
    "completion_tokens": 128,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ttft_cached_s": 1.0},
        {"ttft_cached_s": 1.2},
        {"ttfv_s": 0.9},
        {"decode_tok_s": 60.0},
        {"decode_tok_s": 90.0, "completion_tokens": 7},
        {"decode_tok_s": 90.0, "server_decode_tok_s": 0.0},
        {"decode_tok_s": 90.0, "completion_tokens": None},
        dict.fromkeys(GOOD),
    ],
)
def test_what_can_be_is_no_suspicion(changes: dict[str, float | None]) -> None:
    assert suspicions(GOOD | changes) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ttft_cached_s": 1.3}, "a repeated one's after 1.3 s"),
        ({"ttft_s": 0.0, "ttft_cached_s": 1.0}, "after 0 s"),
        ({"decode_tok_s": 63.0}, "our clock saw 63 tok/s, the server itself says 50 tok/s"),
    ],
)
def test_what_can_not_be_is_said(changes: dict[str, float | None], words: str) -> None:
    (found,) = suspicions(GOOD | changes)
    assert words in found


def test_every_contradiction_is_said() -> None:
    assert len(suspicions(GOOD | {"ttft_cached_s": 5.0, "decode_tok_s": 500.0})) == 2


def test_no_figures_give_no_suspicion() -> None:
    assert suspicions({}) == ()
