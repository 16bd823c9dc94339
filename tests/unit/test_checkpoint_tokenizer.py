"""The tiny checkpoints' tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jinja2
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.checkpoints import bpe, script
from pytest_llmbench.checkpoints.tokenizer import (
    CHAT_TOKENS,
    VOCAB_SIZE,
    Vocabulary,
    chat_template,
    make_vocabulary,
    tokenizer_json,
)

TOKENIZER_SHA256 = "5c21a316696fd4a40e1b959aa24c8e940083e10c6adb803253d6be44b8ef8d48"


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json(vocabulary))


def test_the_tokenizer_is_the_one_that_tests_and_records_were_made_with(vocabulary: Vocabulary) -> None:
    assert hashlib.sha256(tokenizer_json(vocabulary).encode()).hexdigest() == TOKENIZER_SHA256


def test_the_vocabulary_has_2048_different_tokens(vocabulary: Vocabulary) -> None:
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens) == VOCAB_SIZE


@settings(deadline=None)
@given(text=st.text() | st.text(alphabet=" \n\r\t\0aé\u0301中🙂\u2028'’<think>|_im_start0", max_size=60))
def test_any_text_survives_the_tokenizer(tokenizer: tokenizers.Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@settings(deadline=None)
@given(text=st.text())
def test_the_byte_alphabet_spells_one_character_a_byte(text: str) -> None:
    numbers = {char: byte for byte, char in enumerate(bpe.byte_alphabet())}
    assert bytes(numbers[char] for char in bpe.spell(text)) == text.encode()


@pytest.mark.parametrize("answer", [script.WITH_THINKING, script.WITHOUT_THINKING])
def test_the_scripted_answer_is_one_token_a_word(tokenizer: tokenizers.Tokenizer, answer: tuple[str, ...]) -> None:
    ids = tokenizer.encode("".join(answer)).ids
    assert [tokenizer.decode([number], skip_special_tokens=False) for number in ids] == list(answer)


def test_the_scripted_answer_has_21_tokens_with_thinking_and_13_without() -> None:
    assert (len(script.WITH_THINKING), len(script.WITHOUT_THINKING)) == (21, 13)


def test_markup_survives_skipping_special_tokens(tokenizer: tokenizers.Tokenizer) -> None:
    ids = tokenizer.encode("".join(CHAT_TOKENS)).ids
    assert ids == list(range(len(CHAT_TOKENS)))
    assert tokenizer.decode(ids, skip_special_tokens=True) == "".join(script.MARKUP_TOKENS)


def test_a_text_of_two_tokens_has_no_token_id(vocabulary: Vocabulary) -> None:
    with pytest.raises(KeyError, match="not one token"):
        vocabulary.token_id(" the capital")


def test_training_merges_the_most_frequent_pair_first() -> None:
    trained = bpe.train({"abab": 3, "bc": 5, "abc": 4}, 258)
    assert trained.merges == (("a", "b"), ("b", "c"))


def test_training_on_too_little_text_says_so() -> None:
    with pytest.raises(ValueError, match="too few different pairs"):
        bpe.train({"ab": 1}, 300)


USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    """As transformers renders it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["tojson"] = json.dumps
    return environment.from_string(chat_template()).render(messages=messages, **values)


@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": True}, {"enable_thinking": None}])
def test_a_prompt_ends_where_the_model_starts_to_think(thinking: dict[str, Any]) -> None:
    want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render([USER], add_generation_prompt=True, **thinking) == want


def test_with_thinking_off_the_prompt_holds_an_empty_think_block() -> None:
    prompt = render([USER], add_generation_prompt=True, enable_thinking=False)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_conversation_without_generation_prompt_ends_with_its_last_message() -> None:
    assert render([USER]) == "<|im_start|>user\nHi<|im_end|>\n"


def test_parts_of_a_message_are_joined_and_images_are_left_out() -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "image_url"}, {"type": "text", "text": "B"}]
    assert render([{"role": "user", "content": parts}]) == "<|im_start|>user\nAB<|im_end|>\n"


def test_earlier_reasoning_is_rendered_in_a_think_block() -> None:
    answer = {"role": "assistant", "content": "Yes", "reasoning_content": "\nhm\n"}
    assert render([USER, answer]).endswith("assistant\n<think>\nhm\n</think>\n\nYes<|im_end|>\n")


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_tools_are_listed_in_the_one_system_message(system: list[dict[str, Any]]) -> None:
    text = render([*system, USER], tools=[TOOL])
    assert text.count("<|im_start|>system\n") == 1
    assert text.count("Be brief.") == len(system)
    listed = text.split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed) == TOOL


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_calls_and_results_of_tools_are_rendered(arguments: object) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    assert render(messages, tools=[TOOL]).endswith(
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    )
