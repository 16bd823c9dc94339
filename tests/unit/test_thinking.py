"""Tokens of an answer are thought, said, or markers that show no text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.backends.thinking import Thinking

TAG = re.compile(r"<[^>]*>|\w+|\s+")


class Vocabulary:
    """Words and spaces are tokens; so are `tags`, while others are spelled."""

    def __init__(self, *tags: str) -> None:
        self._tags = tags
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        found: list[int] = []
        for piece in TAG.findall(text):
            spelled = [piece] if not piece.startswith("<") or piece in self._tags else list(piece)
            found += [self._ids.setdefault(part, len(self._ids)) for part in spelled]
        return found


HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>")
FAMILIES = {
    "qwen": ("<think>", "</think>"),
    "gemma": ("<|channel>", "<channel|>"),
    "harmony": HARMONY,
    "none": (),
}


def kinds(family: str, answer: str, *, prompt: str = "ask", silent: str = "") -> str:
    """The answer's tokens as letters: t thought, s said, - silent."""
    words = Vocabulary(*FAMILIES[family])
    thinking = Thinking(words, silent=words(silent))
    letters = {"reasoning": "t", "content": "s", None: "-"}
    return "".join(letters[kind] for kind in thinking.kinds(words(prompt), words(answer)))


@pytest.mark.parametrize(
    ("family", "answer", "expected"),
    [
        ("qwen", "<think>let me</think>it is", "-ttt-sss"),
        ("qwen", "it is", "sss"),
        ("qwen", "<think>never ending", "-ttt"),
        ("qwen", "<think>a</think>b<think>c</think>d", "-t-s-t-s"),
        ("gemma", "<|channel>thought\nlet me<channel|>it is", "--tttt-sss"),
        ("gemma", "<|channel>final", "ss"),
        (
            "harmony",
            "<|channel|>analysis<|message|>let me<|end|><|start|>assistant<|channel|>final<|message|>it is",
            "---ttt" + "------" + "sss",
        ),
        ("harmony", "<|channel|>final<|message|>it is", "---sss"),
        ("none", "no <think>x", "ss" + "s" * len("<think>") + "s"),
    ],
)
def test_markers_part_thought_from_answer_and_show_nothing(family: str, answer: str, expected: str) -> None:
    assert kinds(family, answer) == expected


@pytest.mark.parametrize(
    ("family", "prompt", "answer", "expected"),
    [
        ("qwen", "ask<think>", "let me</think>yes", "ttt-s"),
        ("qwen", "ask<think></think>", "yes", "s"),
        ("harmony", "ask<|end|><|start|>assistant", "<|channel|>final<|message|>yes", "---s"),
        ("gemma", "ask<|channel>thought<channel|>", "yes", "s"),
    ],
)
def test_a_prompt_may_leave_a_thought_open_or_closed(family: str, prompt: str, answer: str, expected: str) -> None:
    assert kinds(family, answer, prompt=prompt) == expected


def test_an_end_token_shows_nothing_and_changes_nothing() -> None:
    assert kinds("qwen", "<think>a end b</think>c end", silent="end") == "-tt-tt-ss-"


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "b", "stop"])), st.integers(min_value=0))
def test_every_token_of_the_answer_has_a_kind_wherever_the_prompt_ends(pieces: list[str], cut: int) -> None:
    words = Vocabulary("<think>", "</think>")
    ids = words("".join(f"{piece} " for piece in pieces))
    thinking = Thinking(words, silent=words("stop"))
    whole, cut = thinking.kinds([], ids), cut % (len(ids) + 1)
    assert len(whole) == len(ids)
    assert thinking.kinds(ids[:cut], ids[cut:]) == whole[cut:]
    silent = {*words("<think></think>stop")}
    assert [kind is None for kind in whole] == [token in silent for token in ids]
