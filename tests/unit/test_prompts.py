"""Prompts are exactly as long as they say and share no more than the template's start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_examples import settings

from pytest_llmbench import tokenizer
from pytest_llmbench.errors import UsageError
from pytest_llmbench.matrix import BUILTIN_PROMPTS, CustomPrompt
from pytest_llmbench.prompts import (
    CHARACTERS_PER_TOKEN,
    GREETING,
    MOST_PIECES_PER_TOKEN,
    UNKNOWN_PREFIX_TOKENS,
    Message,
    PromptMaker,
    PromptSpec,
    builtin,
    fit_body,
    longest_tokens,
    shared_prefix,
    specs,
)
from pytest_llmbench.tokenizer import FolderTokenizer

LONGEST_HERE = 32 * 1024
FITTING = [name for name in BUILTIN_PROMPTS if (builtin(name).tokens or 0) <= LONGEST_HERE]


@pytest.fixture(scope="module")
def real(tiny_checkpoints: Path) -> FolderTokenizer:
    loaded = tokenizer.load(tiny_checkpoints / "tiny-random")
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.parametrize("think", [None, False])
def test_a_builtin_prompt_is_exact_to_the_token(real: FolderTokenizer, name: str, think: bool | None) -> None:
    prompt = PromptMaker(real, think=think).make(builtin(name))
    assert prompt.exact
    assert prompt.tokens == builtin(name).tokens
    assert len(real.prompt_ids(prompt.messages, think=think)) == prompt.tokens
    assert prompt.think is think


def test_no_two_prompts_share_more_than_the_template(real: FolderTokenizer) -> None:
    maker = PromptMaker(real)
    prompts = [maker.make(builtin(name)) for name in ("short", "long", "code") * 8]
    ids = [real.prompt_ids(p.messages, think=None) for p in prompts]
    for (one, prompt), (other, _) in itertools.combinations(zip(ids, prompts, strict=True), 2):
        assert shared_prefix(one, other) <= prompt.shared_tokens
    assert {p.shared_tokens for p in prompts} == {maker.template_tokens}


class Letters:
    """A vocabulary of single characters, so that every word with a capital H starts as the greeting does."""

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        return self.text_ids("".join(f"<{m.role}>{m.content}" for m in messages))

    def text_ids(self, text: str) -> Sequence[int]:
        return [ord(character) for character in text]


def test_a_prompt_starts_otherwise_than_the_greeting_that_every_server_has_answered() -> None:
    maker = PromptMaker(Letters())
    greeted = Letters().prompt_ids([GREETING], think=None)
    # As many as there are first words.
    for prompt in (maker.make(PromptSpec(name="x", instruction="Hi")) for _ in range(93)):
        assert shared_prefix(greeted, Letters().prompt_ids(prompt.messages, think=None)) <= prompt.shared_tokens


def test_when_first_words_run_out_the_shared_length_is_said_truly(real: FolderTokenizer) -> None:
    maker = PromptMaker(real)
    spec = PromptSpec(name="x", instruction="Hi")
    seen: list[list[int]] = []
    for _ in range(110):
        prompt = maker.make(spec)
        ids = list(real.prompt_ids(prompt.messages, think=None))
        assert max((shared_prefix(ids, old) for old in seen), default=0) <= prompt.shared_tokens
        seen.append(ids)


def test_without_a_tokenizer_the_length_is_an_estimate_and_said_to_be_one() -> None:
    maker = PromptMaker(None)
    prompts = [maker.make(builtin("context-4k")) for _ in range(3)]
    for prompt in prompts:
        characters = sum(len(m.content) for m in prompt.messages)
        assert prompt.tokens is None
        assert prompt.exact is False
        assert prompt.shared_tokens == UNKNOWN_PREFIX_TOKENS
        assert characters == pytest.approx(4096 * CHARACTERS_PER_TOKEN, rel=0.01)
    assert len({p.messages[0].content[:9] for p in prompts}) == 3


def test_a_custom_prompt_is_as_long_as_its_text_and_keeps_its_system_message(real: FolderTokenizer) -> None:
    custom = CustomPrompt(name="mine", text="Say hello.", system="Be kind.", max_tokens=5)
    chosen = specs(settings(prompts=("mine", "short"), custom_prompts=(custom,)))
    assert list(chosen) == ["mine", "short"]
    prompt = PromptMaker(real).make(chosen["mine"])
    assert prompt.exact
    assert prompt.tokens == len(real.prompt_ids(prompt.messages, think=None))
    assert [m.role for m in prompt.messages] == ["system", "user"]
    assert prompt.messages[0].content.endswith(" Be kind.")
    assert prompt.messages[1].content.endswith("Say hello.")
    assert prompt.max_tokens == 5


def test_the_longest_prompt_of_an_entry_is_an_upper_estimate() -> None:
    custom = CustomPrompt(name="mine", text="é" * 5000, system="ab")
    assert longest_tokens(settings(prompts=("short", "long"))) == 128
    assert longest_tokens(settings(prompts=("short", "mine"), custom_prompts=(custom,))) == 10_002


def test_an_unknown_prompt_names_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"'shrot'.*short, long, code, context-4k"):
        builtin("shrot")


def words(n: int) -> str:
    return "".join(f"w{i} " for i in range(n))


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(0, 20), st.integers(1, 300))
def test_a_body_is_never_longer_than_its_target_and_its_length_is_true(
    costs: list[int], base: int, target: int
) -> None:
    """Each character costs what a repeating list says: 0 to 9 tokens, as odd as no vocabulary is."""

    def count(body: str) -> int:
        return base + sum(costs[ord(c) % len(costs)] for c in body)

    body, tokens = fit_body(count, words, target)
    assert tokens == count(body)
    assert tokens <= max(target, base)


@given(st.randoms(use_true_random=False), st.integers(1, 300))
def test_counts_that_go_up_and_down_end_in_a_true_length_too(random: object, target: int) -> None:
    noise: dict[str, int] = {}
    draw: Callable[[int, int], int] = random.randint  # type: ignore[attr-defined]

    def count(body: str) -> int:
        return noise.setdefault(body, max(0, len(body) // 2 + draw(-5, 5)))

    body, tokens = fit_body(count, words, target)
    assert tokens == count(body)
    assert tokens <= max(target, count(""))


def test_a_count_that_stops_growing_ends_the_search() -> None:
    asked: list[int] = []

    def first(n: int) -> str:
        asked.append(n)
        return words(n)

    body, tokens = fit_body(lambda text: min(len(text), 512), first, 4096)
    assert tokens == 512 == min(len(body), 512)
    assert max(asked) <= 2 * MOST_PIECES_PER_TOKEN * 4096


@pytest.mark.parametrize(
    ("one", "other", "shared"), [([], [1], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 2, 4], 2), ([1], [1, 2], 1)]
)
def test_a_shared_prefix_is_counted_in_ids(one: list[int], other: list[int], shared: int) -> None:
    assert shared_prefix(one, other) == shared
