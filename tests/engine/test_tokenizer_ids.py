"""Ids, text and chats are those of transformers for the same folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizer_folders import HARD_TEXTS, KINDS, VARIANTS, make
from transformers_oracle import Oracle, running

from llmbench_engine.tokenizer import Tokenizer

NAMES = ("tiny-random", *KINDS, *VARIANTS)
MARKUP = [
    "<|bos|>",
    "<|eot|>",
    "<think>",
    "</think>",
    "<s>",
    "</s>",
    "<bos>",
    "<late>",
    "<later>",
    "<tool>",
    "[X]",
    "<image>",
    "<0xE6>",
]
FRAGMENTS = st.one_of(
    st.text(max_size=8),
    st.text(alphabet=" \n\r\t\0aé\u0301中🙂\u200d\u2028'’▁Ġ1.", max_size=12),
    st.sampled_from(MARKUP),
    st.sampled_from(HARD_TEXTS),
)
TEXTS = st.lists(FRAGMENTS, max_size=8).map("".join)
QUIET = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
USER: dict[str, Any] = {"role": "user", "content": " Hi <think> é 日本 "}
CHATS: list[dict[str, Any]] = [
    {"conversation": [USER]},
    {"conversation": [{"role": "system", "content": "x", "name": None}, USER], "add_generation_prompt": False},
    {"conversation": [USER, {"role": "assistant", "content": None, "thinking": "hm"}, USER, USER, USER]},
    {
        "conversation": [USER, {"role": "assistant", "content": "", "reasoning_content": "a", "thinking": "b"}],
        "style": "s",
    },
    {"conversation": [USER], "tools": [{"type": "function", "function": {"name": "f<é>", "parameters": {}}}]},
    {"conversation": [USER], "enable_thinking": True, "bos_token": "<think>"},
    {"conversation": [USER], "enable_thinking": False},
]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running(tmp_path_factory.mktemp("oracle") / "transformers.log") as child:
        yield child


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    if name == "tiny-random":
        return tiny_checkpoints / name
    return make(name, tmp_path_factory.mktemp("tokenizer") / name)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def test_hard_texts_give_the_same_ids_and_come_back_the_same(folder: Path, ours: Tokenizer, oracle: Oracle) -> None:
    texts = [*HARD_TEXTS, "".join(HARD_TEXTS)]
    for special in (True, False):
        theirs = [oracle.ask(folder, "encode", text, add_special_tokens=special) for text in texts]
        assert [ours.encode(text, add_special_tokens=special) for text in texts] == theirs
        back = [oracle.ask(folder, "decode", ids, skip_special_tokens=special) for ids in theirs]
        assert [ours.decode(ids, skip_special_tokens=special) for ids in theirs] == back


@QUIET
@given(text=TEXTS, special=st.booleans())
def test_any_text_gives_the_same_ids(folder: Path, ours: Tokenizer, oracle: Oracle, text: str, special: bool) -> None:
    assert ours.encode(text, add_special_tokens=special) == oracle.ask(
        folder, "encode", text, add_special_tokens=special
    )


@QUIET
@given(ids=st.lists(st.integers(0, 700), max_size=24), skip=st.booleans())
def test_any_ids_give_the_same_text(folder: Path, ours: Tokenizer, oracle: Oracle, ids: list[int], skip: bool) -> None:
    assert ours.decode(ids, skip_special_tokens=skip) == oracle.ask(folder, "decode", ids, skip_special_tokens=skip)


def test_special_ids_and_size_are_the_same(folder: Path, ours: Tokenizer, oracle: Oracle) -> None:
    assert ours.bos_id == oracle.ask(folder, "bos_token_id")
    assert oracle.ask(folder, "eos_token_id") in ours.eos_ids
    assert ours.vocabulary_size == oracle.ask(folder, "__len__")


@pytest.mark.parametrize("chat", CHATS)
def test_chats_give_the_same_ids(folder: Path, ours: Tokenizer, oracle: Oracle, chat: dict[str, Any]) -> None:
    theirs = {"add_generation_prompt": True, **chat, "tokenize": True, "return_dict": False}
    arguments = {key: value for key, value in chat.items() if key != "conversation"}
    assert ours.apply_chat_template(chat["conversation"], **arguments) == oracle.ask(
        folder, "apply_chat_template", **theirs
    )
