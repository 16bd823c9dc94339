"""Text comes token by token, settled as early as it can be, and is what decoding all ids gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import HARD_TEXTS, KINDS, make
from tokenizers import decoders

from llmbench_engine.detokenizer import Detokenizer, detokenizer_factory
from llmbench_engine.errors import CheckpointError
from llmbench_engine.tokenizer import Tokenizer

BYTE_LEVEL = ("llama3", "qwen3")
FALLBACK = ("gemma", "llama2")
QUIET = settings(deadline=None, max_examples=50)
TEXTS = st.text() | st.lists(st.sampled_from([*HARD_TEXTS, "日", "🙂", " ", "a"]), max_size=6).map("".join)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {kind: Tokenizer.load(make(kind, folder / kind)) for kind in KINDS}


def added(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    """What each id settles, and at last what finishing does."""
    return [*(detokenizer.add(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("kind", KINDS)
@QUIET
@given(ids=st.lists(st.integers(0, 620), max_size=40) | st.lists(st.integers(5, 300), max_size=12))
def test_any_ids_give_the_text_of_decoding_them_all(
    tokenizers: dict[str, Tokenizer], kind: str, ids: list[int]
) -> None:
    tokenizer = tokenizers[kind]
    assert "".join(added(tokenizer.detokenizer(), ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@QUIET
@given(text=TEXTS)
def test_what_came_is_never_taken_back(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    whole, so_far = tokenizer.decode(ids), ""
    for part in added(tokenizer.detokenizer(), ids):
        so_far += part
        assert whole.startswith(so_far)
    assert so_far == whole


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@QUIET
@given(text=TEXTS.filter(lambda text: "\ufffd" not in text))
def test_byte_level_text_waits_for_nothing_but_the_rest_of_a_character(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    parts = added(tokenizer.detokenizer(), ids)
    for stop in range(len(ids) + 1):
        assert "".join(parts[:stop]) == tokenizer.decode(ids[:stop]).rstrip("\ufffd")


@pytest.mark.parametrize("kind", FALLBACK)
def test_bytes_of_a_fallback_wait_for_the_end_of_their_run(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    emoji = [tokenizer.encode(f"<0x{byte:02X}>", add_special_tokens=False) for byte in "🦥".encode()]
    ids = [tokenizer.encode("🦥", add_special_tokens=False)[-4 + n] for n in range(4)]
    assert len(emoji) == len(ids), "the sloth is in no training text, so its bytes are tokens"
    letter = tokenizer.encode("a", add_special_tokens=False)[-1]
    assert added(tokenizer.detokenizer(), [letter, *ids, letter])[1:] == [
        "",
        "",
        "",
        "",
        tokenizer.decode([*ids, letter]),
        "",
    ]
    whole, broken = [letter, *ids, letter], [letter, *ids, ids[0], letter]
    assert "".join(added(tokenizer.detokenizer(), whole)).count("🦥") == 1
    assert "".join(added(tokenizer.detokenizer(), broken)).count("\ufffd") == 5, "as tokenizers decodes such a run"


@pytest.mark.parametrize("kind", KINDS)
def test_an_incomplete_character_shows_only_at_the_end(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode("🦥", add_special_tokens=False)[:-1]
    *parts, last = added(tokenizer.detokenizer(), ids)
    assert "\ufffd" not in "".join(parts)
    assert "\ufffd" in last


def test_bytes_that_are_no_text_are_not_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama3"]
    first = tokenizer.encode("🦥", add_special_tokens=False)[0]
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.add(first) for _ in range(500)] == ["", *["\ufffd"] * 499]


def test_a_real_replacement_character_comes_at_once(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["llama3"]
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.add, tokenizer.encode("\ufffd", add_special_tokens=False))) == "\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_do_not_disturb_each_other(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    texts = ("🦥 日本 abc", "ñ🙂 xyz 日")
    sequences = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    detokenizers = [tokenizer.detokenizer() for _ in texts]
    found = ["", ""]
    for step in range(max(map(len, sequences))):
        for row, ids in enumerate(sequences):
            found[row] += detokenizers[row].add(ids[step]) if step < len(ids) else ""
    assert [text + d.finish() for text, d in zip(found, detokenizers, strict=True)] == [
        tokenizer.decode(ids) for ids in sequences
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_without_a_token_adds_nothing(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    first, *rest = tokenizer.encode("🦥", add_special_tokens=False)
    with_gap = [first, tokenizer.vocabulary_size + 9, *rest]
    assert "".join(added(tokenizer.detokenizer(), with_gap)) == tokenizer.decode([first, *rest])


@pytest.mark.parametrize(
    "decoder",
    [decoders.ByteLevel(), decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])],
    ids=["byte-level", "byte-fallback"],
)
def test_each_token_is_looked_up_once(decoder: decoders.Decoder) -> None:
    asked: list[int] = []

    def piece(token: int) -> str:
        asked.append(token)
        return "ab"[token]

    factory = detokenizer_factory(json.loads(decoder.__getstate__()), piece)
    assert factory is not None
    assert ["".join(added(factory(), [0, 1, 0, 0])) for _ in range(2)] == ["abaa"] * 2
    assert asked == [0, 1]


def unsupported(*steps: dict[str, object]) -> dict[str, object]:
    return {"type": "Sequence", "decoders": list(steps)}


FALLBACK_STEPS: tuple[dict[str, object], ...] = ({"type": "ByteFallback"}, {"type": "Fuse"})


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        unsupported({"type": "Fuse"}, {"type": "ByteFallback"}),
        unsupported({"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "}, *FALLBACK_STEPS),
        unsupported(*FALLBACK_STEPS, {"type": "Strip", "content": " ", "start": 0, "stop": 1}),
    ],
    ids=["none", "metaspace", "wordpiece", "order", "pattern", "strip-at-the-end"],
)
def test_another_decoder_is_refused_by_file_and_name(decoder: dict[str, object] | None, tmp_path: Path) -> None:
    path = make("gemma", tmp_path / "gemma") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": decoder}))
    with pytest.raises(CheckpointError, match="supported: ByteLevel; a Sequence") as caught:
        Tokenizer.load(path.parent)
    assert (caught.value.path, caught.value.key) == (path, "decoder")
