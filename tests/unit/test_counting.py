"""Tokens come from usage or the tokenizer; a sample that measures something else says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_llmbench.counting import TOKEN_SLACK, count_tokens, why_invalid
from pytest_llmbench.prompts import Message, Prompt
from pytest_llmbench.sample import Delta, Sample


class Words:
    """A vocabulary in which a word is a token."""

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        return self.text_ids(" ".join(m.content for m in messages))

    def text_ids(self, text: str) -> Sequence[int]:
        return [len(word) for word in text.split()]


ANSWER = Sample(
    prompt="short",
    deltas=(
        Delta(at_ns=1, kind="reasoning", text="let me"),
        Delta(at_ns=2, kind="reasoning", text=" see"),
        Delta(at_ns=3, kind="content", text="it is Paris"),
    ),
    end_ns=4,
    requested_tokens=8,
    prompt_tokens=64,
    completion_tokens=9,
    token_source="usage",
)
PROMPT = Prompt(name="short", messages=(), tokens=64, exact=True, shared_tokens=3)


def test_usage_wins_and_the_tokenizer_splits_it() -> None:
    counted = count_tokens(ANSWER, Words(), {})
    assert (counted.completion_tokens, counted.token_source) == (9, "usage")
    assert (counted.thinking_tokens, counted.visible_tokens) == (3, 3)
    assert (counted.first_delta_tokens, counted.first_delta_source) == (2, "tokenizer")


def test_a_first_token_whose_text_makes_several_is_still_one() -> None:
    # Three tokens in three deltas: none is left for the first one's second word.
    assert count_tokens(replace(ANSWER, completion_tokens=3), Words(), {}).first_delta_tokens == 1


def test_without_usage_the_tokenizer_counts_the_text_and_not_the_chunks() -> None:
    counted = count_tokens(replace(ANSWER, completion_tokens=None, token_source=None), Words(), {})
    assert (counted.completion_tokens, counted.token_source) == (6, "tokenizer")


def test_without_either_nothing_is_counted() -> None:
    counted = count_tokens(replace(ANSWER, completion_tokens=None, token_source=None), None, {})
    assert counted.completion_tokens is None
    assert counted.token_source is None
    assert counted.thinking_tokens is None
    assert counted.first_delta_source == "assumed"


def test_the_servers_count_of_thinking_wins() -> None:
    usage = {"completion_tokens_details": {"reasoning_tokens": 0}}
    assert count_tokens(ANSWER, Words(), usage).thinking_tokens == 0
    assert count_tokens(ANSWER, None, usage).thinking_tokens == 0


def test_an_answer_without_thinking_has_zero_thinking_tokens() -> None:
    assert count_tokens(replace(ANSWER, deltas=ANSWER.deltas[2:]), Words(), {}).thinking_tokens == 0


def test_a_good_sample_is_valid() -> None:
    assert why_invalid(ANSWER, PROMPT, cached=False) is None


def test_no_text_is_invalid() -> None:
    assert why_invalid(replace(ANSWER, deltas=()), PROMPT, cached=False) == "no text came"


@pytest.mark.parametrize(("cached_tokens", "valid"), [(None, True), (0, True), (3, True), (4, False)])
def test_a_cache_may_answer_the_templates_start_and_no_more(cached_tokens: int | None, valid: bool) -> None:
    taken = replace(ANSWER, cached_tokens=cached_tokens)
    assert (why_invalid(taken, PROMPT, cached=False) is None) is valid
    assert why_invalid(taken, PROMPT, cached=True) is None


@pytest.mark.parametrize(
    ("seen", "valid"), [(None, True), (64 + TOKEN_SLACK, True), (64 - TOKEN_SLACK - 1, False), (0, False)]
)
def test_the_server_must_have_seen_the_prompt_that_was_sent(seen: int | None, valid: bool) -> None:
    assert (why_invalid(replace(ANSWER, prompt_tokens=seen), PROMPT, cached=False) is None) is valid
    assert why_invalid(replace(ANSWER, prompt_tokens=seen), replace(PROMPT, tokens=None), cached=False) is None
