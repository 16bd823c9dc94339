"""What the tokenizer reads of a folder, and what it says of one that it can't use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizer_folders import HARD_TEXTS, make

from llmbench_engine.errors import CheckpointError, InvalidRequest
from llmbench_engine.tokenizer import Tokenizer

USER = [{"role": "user", "content": "a"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make("llama3", tmp_path / "checkpoint")


def change(path: Path, **values: object) -> None:
    """Sets keys of a JSON file, which is made if need be."""
    old = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(old | values))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({}, {}, {1}),
        ({"eos_token_id": 3}, {}, {1, 3}),
        ({"eos_token_id": [3, 4]}, {"eos_token_id": 2}, {1, 3, 4}),
        ({"eos_token_id": None}, {"eos_token_id": 2}, {1, 2}),
        ({"eos_token_id": 0}, {"eos_token_id": 2}, {0, 1}),
        ({}, {"eos_token_id": [1, 2]}, {1, 2}),
    ],
)
def test_generation_config_beats_config_and_the_tokenizers_own_joins(
    folder: Path, generation: dict[str, object], config: dict[str, object], expected: set[int]
) -> None:
    change(folder / "generation_config.json", **generation)
    change(folder / "config.json", **config)
    assert Tokenizer.load(folder).eos_ids == expected


def test_without_any_configuration_there_is_the_vocabulary(folder: Path) -> None:
    for name in ("tokenizer_config.json", "config.json"):
        (folder / name).unlink()
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (None, frozenset())
    assert tokenizer.decode(tokenizer.encode("abc", add_special_tokens=False)) == "abc"


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("tokenizer.json", None, ""),
        ("tokenizer.json", b"{", ""),
        ("tokenizer.json", b'{"version": "1.0"}', ""),
        ("tokenizer_config.json", b"{", ""),
        ("tokenizer_config.json", b"[]", ""),
        ("tokenizer_config.json", b"\xff", ""),
        ("tokenizer_config.json", b'{"bos_token": 3}', "bos_token"),
        ("tokenizer_config.json", b'{"bos_token": {"special": true}}', "bos_token"),
        ("tokenizer_config.json", b'{"extra_special_tokens": 3}', "extra_special_tokens"),
        ("tokenizer_config.json", b'{"extra_special_tokens": [3]}', "extra_special_tokens"),
        ("tokenizer_config.json", b'{"model_specific_special_tokens": [3]}', "model_specific_special_tokens"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": []}', "added_tokens_decoder"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"7": {}}}', "added_tokens_decoder.7"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": 3}]}', "chat_template"),
        ("generation_config.json", b'{"eos_token_id": "2"}', "eos_token_id"),
        ("generation_config.json", b'{"eos_token_id": [true]}', "eos_token_id"),
        ("config.json", b'{"eos_token_id": [-1]}', "eos_token_id"),
        ("chat_template.jinja", b"\xff", ""),
    ],
)
def test_a_wrong_file_is_named_with_its_key(folder: Path, name: str, content: bytes | None, key: str) -> None:
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert (caught.value.path, caught.value.key) == (path, key)


def test_dropping_spaces_is_ignored_with_bpe_and_refused_where_it_counts(folder: Path) -> None:
    key = "clean_up_tokenization_spaces"
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.decode(tokenizer.encode("a , b .", add_special_tokens=False)) == "a , b ."
    change(folder / "tokenizer_config.json", **{f"{key}_for_bpe_even_though_it_will_corrupt_output": True})
    with pytest.raises(CheckpointError, match=f"{key} is true; supported: false") as caught:
        Tokenizer.load(folder)
    assert caught.value.key == key


def test_a_prompt_gets_one_begin_token(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode_prompt("abc") == tokenizer.encode_prompt("<|bos|>abc") == tokenizer.encode("abc")
    assert tokenizer.encode("abc")[0] == tokenizer.bos_id == 0


def test_a_lone_surrogate_is_an_invalid_request(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        Tokenizer.load(folder).encode("a\ud800")


def test_threads_load_and_share_tokenizers(folder: Path) -> None:
    first = Tokenizer.load(folder)
    expected = [first.encode(text) for text in HARD_TEXTS]

    def work(_: int) -> bool:
        own = Tokenizer.load(folder)
        return all([t.encode(text) for text in HARD_TEXTS] == expected for t in (own, first))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(16)))


def test_loading_imports_neither_jinja2_nor_the_baseline(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from llmbench_engine.tokenizer import Tokenizer\n"
        "t = Tokenizer.load(Path(sys.argv[1])); t.encode('a')\n"
        "found = {'jinja2', 'transformers', 'mlx_lm', 'numpy', 'pytest_llmbench'} & set(sys.modules)\n"
        "assert not found, found\n"
        "t.apply_chat_template([{'role': 'user', 'content': 'a'}]); assert 'jinja2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


def template(folder: Path, source: str) -> Tokenizer:
    (folder / "chat_template.jinja").write_text(source)
    return Tokenizer.load(folder)


def test_template_files_beat_the_configuration(folder: Path) -> None:
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("tools")
    tokenizer = template(folder, "plain")
    assert tokenizer.decode(tokenizer.apply_chat_template(USER)) == "plain"
    assert tokenizer.decode(tokenizer.apply_chat_template(USER, tools=[{"type": "function"}])) == "tools"


def test_a_checkpoint_without_template_says_so_at_the_first_chat(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(CheckpointError, match=r"no chat template default \(it has: none\)"):
        Tokenizer.load(folder).apply_chat_template(USER)
    change(folder / "tokenizer_config.json", chat_template=[{"name": "tool_use", "template": "x"}])
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.apply_chat_template(USER, tools=[])
    with pytest.raises(CheckpointError, match=r"default \(it has: tool_use\)"):
        tokenizer.apply_chat_template(USER)


def test_a_template_that_is_no_jinja_is_named_with_its_line(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: chat_template is no Jinja .*line 2"):
        template(folder, "a\n{% if %}").apply_chat_template(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only one role') }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages[9].content }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ strftime_now.__globals__.sys }}",
        "{{ [1] | tojson(indent='x', nonsense=1) }}",
    ],
)
def test_what_a_template_refuses_is_an_invalid_request(folder: Path, source: str) -> None:
    with pytest.raises(InvalidRequest, match="refuses this conversation"):
        template(folder, source).apply_chat_template(USER)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tokenizer: tokenizer.apply_chat_template([]),
        lambda tokenizer: tokenizer.apply_chat_template(["hello"]),
        lambda tokenizer: tokenizer.apply_chat_template([{"role": "user", "content": b"x"}]),
        lambda tokenizer: tokenizer.apply_chat_template(USER, path=Path()),
    ],
    ids=["empty", "text", "bytes", "object"],
)
def test_what_is_no_conversation_is_an_invalid_request(folder: Path, ask: Callable[[Tokenizer], object]) -> None:
    with pytest.raises(InvalidRequest):
        ask(Tokenizer.load(folder))


def test_the_date_is_of_today_and_without_zone(folder: Path) -> None:
    tokenizer = template(folder, "{{ strftime_now('%Y%z') }}")
    year = tokenizer.decode(tokenizer.apply_chat_template(USER))
    assert year.isdecimal()
    assert int(year) >= 2025
