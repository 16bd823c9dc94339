"""A checkpoint's own tokenizer and chat template give what transformers gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench import tokenizer
from pytest_llmbench.errors import UsageError
from pytest_llmbench.prompts import Message
from pytest_llmbench.tokenizer import FolderTokenizer

CONVERSATIONS = [
    [Message(role="user", content="What is the capital of France? é 日本 😀\n\n  two")],
    [Message(role="system", content="Be brief."), Message(role="user", content="def f(x):\n    return x")],
    [Message(role="user", content="a"), Message(role="assistant", content="b"), Message(role="user", content="c")],
]
WITH_TRANSFORMERS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for case in json.load(sys.stdin):
    choice = {} if case["think"] is None else {"enable_thinking": case["think"]}
    print(tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True, tokenize=True,
                                        return_dict=False, **choice))
"""


@pytest.fixture
def folder(tiny_checkpoints: Path, tmp_path: Path) -> Path:
    """A copy of a checkpoint's text files, to be damaged."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        source = tiny_checkpoints / "tiny-random" / name
        if source.is_file():
            shutil.copy(source, tmp_path)
    return tmp_path


def loaded(folder: Path) -> FolderTokenizer:
    found = tokenizer.load(folder)
    assert found is not None
    return found


def with_template(folder: Path, source: str) -> FolderTokenizer:
    (folder / "chat_template.jinja").write_text(source)
    return loaded(folder)


def with_config(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rendered(source: str, folder: Path, **changes: object) -> list[int]:
    with_config(folder, **changes)
    return list(with_template(folder, source).prompt_ids(CONVERSATIONS[0], think=None))


def test_ids_equal_those_of_transformers(tiny_checkpoints: Path) -> None:
    path = tiny_checkpoints / "tiny-scripted"
    cases = [(messages, think) for messages in CONVERSATIONS for think in (None, True, False)]
    asked = [
        {"messages": [{"role": m.role, "content": m.content} for m in messages], "think": t} for messages, t in cases
    ]
    answer = subprocess.run(
        [sys.executable, "-c", WITH_TRANSFORMERS, str(path)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    theirs = [json.loads(line) for line in answer.stdout.splitlines()]
    ours = loaded(path)
    assert [list(ours.prompt_ids(messages, think=think)) for messages, think in cases] == theirs
    assert theirs[0] != theirs[2], "thinking on and off differ, so the switch reaches the template"


def test_special_tokens_in_text_are_one_id_each(tiny_checkpoints: Path) -> None:
    assert len(loaded(tiny_checkpoints / "tiny-random").text_ids("<think></think><|im_end|>")) == 3


def test_a_list_of_templates_gives_the_default_one(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "tool_use", "template": "no"}, "odd", {"name": "default", "template": "abc"}]
    with_config(folder, chat_template=named)
    ours = loaded(folder)
    assert ours.prompt_ids(CONVERSATIONS[0], think=None) == ours.text_ids("abc")


def test_special_tokens_reach_the_template_in_both_spellings(folder: Path) -> None:
    ids = rendered("{{ bos_token }}{{ eos_token }}", folder, bos_token="<think>", eos_token={"content": "</think>"})
    assert ids == loaded(folder).text_ids("<think></think>")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if tools is not none or documents is not none %}tools{% else %}none{% endif %}", "none"),
        ("{%- for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}\n{% endfor %}", "user"),
        ("a  {%- generation -%}  b  {%- endgeneration -%}  c", "abc"),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{{ {'k': 'é', 'a': 1} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":1,"k":"é"}'),
        ("{{ strftime_now('%%') }}", "%"),
    ],
    ids=["no tools", "generation block", "its white space", "loop controls", "tojson", "strftime_now"],
)
def test_templates_find_what_transformers_gives_them(folder: Path, source: str, text: str) -> None:
    ours = with_template(folder, source)
    assert ours.prompt_ids(CONVERSATIONS[0], think=None) == ours.text_ids(text)


def test_a_length_limit_in_the_file_does_not_cut_a_prompt(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    plain = loaded(folder).text_ids("one two three four five six seven")
    path.write_text(json.dumps(data))
    assert loaded(folder).text_ids("one two three four five six seven") == plain
    assert 4 < len(plain) < 64


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_template_that_refuses_a_message_is_a_usage_error(folder: Path, role: str) -> None:
    ours = with_template(folder, "{{ raise_exception('System role not supported') }}")
    with pytest.raises(UsageError, match=f"refuses {role} messages: System role not supported"):
        ours.prompt_ids([Message(role=role, content="x")], think=None)


def test_a_template_can_not_leave_its_sandbox(folder: Path) -> None:
    ours = with_template(folder, "{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UsageError, match="refuses"):
        ours.prompt_ids(CONVERSATIONS[0], think=None)


@pytest.mark.parametrize("missing", ["tokenizer.json", "chat_template.jinja"])
def test_a_folder_without_tokenizer_or_template_gives_none(folder: Path, missing: str) -> None:
    with_config(folder, chat_template=None)
    (folder / missing).unlink()
    assert tokenizer.load(folder) is None


def test_a_folder_that_is_not_there_gives_none(tmp_path: Path) -> None:
    assert tokenizer.load(tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"\xff"),
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"version": "1.0"}'),
        ("chat_template.jinja", b"{% if %}"),
    ],
)
def test_a_damaged_file_is_a_usage_error_with_its_place(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(UsageError, match=str(folder)) as caught:
        tokenizer.load(folder)
    assert "fetch or make it again" in str(caught.value)
