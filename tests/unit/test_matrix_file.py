"""Facts about reading a matrix file: what is accepted, and what an absent value means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.errors import MatrixError
from pytest_llmbench.matrix import (
    CustomPrompt,
    Gate,
    Hardware,
    Matrix,
    MatrixEntry,
    Settings,
)
from pytest_llmbench.matrix_file import load

BACKENDS = ("mlx-lm", "ollama", "llama-server", "openai")
ONE = "tests:\n- id: a\n  backend: mlx-lm\n  model_id: m\n"
Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "m.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def first(path: Path) -> MatrixEntry:
    return load(path, backends=BACKENDS).entries[0]


def with_fields(text: str) -> str:
    """The smallest matrix, with more lines (from line 5 on) in its only entry."""
    return ONE + "".join(f"  {line}\n" for line in text.split("\n"))


def test_the_smallest_matrix_has_documented_defaults(write: Write) -> None:
    path = write(ONE)
    assert load(path, backends=BACKENDS) == Matrix(
        path=path,
        hardware=Hardware(),
        settings=Settings(),
        prompts=("short", "long", "code"),
        entries=(MatrixEntry(id="a", backend="mlx-lm", model_id="m", path=path, line=2),),
    )


def test_every_field_is_read(write: Write) -> None:
    path = write(
        """\
hardware: {name: Apple M4 Pro, memory_gb: 48, platform: darwin-arm64, chip: M4 Pro, os: "26"}
settings:
  runs: 5
  warmup: 0
  max_tokens: 64
  temperature: 0
  server_timeout: 30
  cooldown: 1.5
  bench_port: 8090
  fixed_length: false
  concurrency: [2]
prompts: [poem, context-4k]
custom_prompts:
  poem: Write a poem.
  story: {text: Tell a story., system: You are old., max_tokens: 9}
tests:
  - id: a
    model: Qwen3
    name: a name
    group: G
    backend: openai
    model_id: org/model
    fmt: MLX
    quant: 4bit
    kv_cache: kv4
    enabled: false
    reason: broken
    known_issue: slow
    prereq: start it
    extra_args: [-c, "8192"]
    no_think: true
    prompts: [story]
    server_binary: ~/bin/server
    server_url: http://127.0.0.1:8000/v1/
    api_key: sk-1
    api_key_env: MY_KEY
    server_timeout: 60
    temperature: 0.7
    max_tokens: 32
    env: {A: 1, B: "on", C: off}
    gates: {decode_tok_s: {at_least: 40}, ttft_s: {at_least: 0, at_most: 0.5}, wall_s@4: {at_most: 9}}
    concurrency: [1, 4, 8]
    requires: [platform:darwin, "memory_gb:48", "file:~/my models/a.gguf"]
    fixed_length: true
"""
    )
    assert load(path, backends=BACKENDS) == Matrix(
        path=path,
        hardware=Hardware(name="Apple M4 Pro", memory_gb=48.0, platform="darwin-arm64", chip="M4 Pro", os="26"),
        settings=Settings(
            runs=5,
            warmup=0,
            max_tokens=64,
            temperature=0.0,
            server_timeout=30.0,
            cooldown=1.5,
            bench_port=8090,
            fixed_length=False,
            concurrency=(2,),
        ),
        prompts=("poem", "context-4k"),
        custom_prompts=(
            CustomPrompt(name="poem", text="Write a poem."),
            CustomPrompt(name="story", text="Tell a story.", system="You are old.", max_tokens=9),
        ),
        entries=(
            MatrixEntry(
                id="a",
                model="Qwen3",
                name="a name",
                group="G",
                backend="openai",
                model_id="org/model",
                fmt="MLX",
                quant="4bit",
                kv_cache="kv4",
                enabled=False,
                reason="broken",
                known_issue="slow",
                prereq="start it",
                extra_args=("-c", "8192"),
                no_think=True,
                prompts=("story",),
                server_binary="~/bin/server",
                server_url="http://127.0.0.1:8000/v1",
                api_key="sk-1",
                api_key_env="MY_KEY",
                server_timeout=60.0,
                temperature=0.7,
                max_tokens=32,
                env=(("A", "1"), ("B", "on"), ("C", "off")),
                gates=(
                    Gate(metric="decode_tok_s", at_least=40.0),
                    Gate(metric="ttft_s", at_least=0.0, at_most=0.5),
                    Gate(metric="wall_s", at_most=9.0, level=4),
                ),
                concurrency=(1, 4, 8),
                requires=("platform:darwin", "memory_gb:48", "file:~/my models/a.gguf"),
                fixed_length=True,
                path=path,
                line=17,
            ),
        ),
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('["--kv-bits", "4"]', ("--kv-bits", "4")),
        ("[-fa, on, -c, 08192, --tq-bits, 3.50]", ("-fa", "on", "-c", "08192", "--tq-bits", "3.50")),
        ("-fa on --name 'two words'", ("-fa", "on", "--name", "two words")),
        ("[]", ()),
        ("", ()),
    ],
)
def test_arguments_are_taken_as_they_are_written(write: Write, written: str, expected: tuple[str, ...]) -> None:
    assert first(write(with_fields(f"extra_args: {written}"))).extra_args == expected


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("enabled: false  # out of memory", "out of memory"),
        ("enabled: false # it's  # broken ", "it's  # broken"),
        ("enabled: false  # why\nreason: written out", "written out"),
        ('enabled: false\nreason: ""', "disabled in m.yaml:5"),
        ("model: x\nenabled: false", "disabled in m.yaml:6"),
        ("enabled: false\n# the next line is about something else", "disabled in m.yaml:5"),
        ("enabled: false # ", "disabled in m.yaml:5"),
        ("enabled: true  # works again", ""),
    ],
)
def test_a_disabled_entry_has_a_reason(write: Write, written: str, reason: str) -> None:
    assert first(write(with_fields(written))).reason == reason


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ('model: "a # b"}', "disabled in m.yaml:2"),
        ("model: 'it''s # b'}", "disabled in m.yaml:2"),
        ("model: it's#b, name: c}  # why", "why"),
        ('model: "a \\" # b"} # why', "why"),
        ('model: "a # b\n   c # d"}', "disabled in m.yaml:2"),
        ("\n  model: a}  # too late", "disabled in m.yaml:2"),
    ],
)
def test_a_hash_in_quotes_is_no_comment(write: Write, rest: str, reason: str) -> None:
    text = f"tests:\n- {{id: a, backend: mlx-lm, model_id: m, enabled: false, {rest}\n"
    assert first(write(text)).reason == reason


def test_defaults_lie_under_each_entry_and_give_way_whole(write: Write) -> None:
    path = write(
        """\
defaults: {backend: ollama, model: M, env: {A: 1}, temperature: 0.5, enabled: false}  # all off
tests:
- {id: a, model_id: m}
- {id: b, model_id: n, enabled: true, backend: mlx-lm, env: {B: 2}, temperature: null}
"""
    )
    a, b = load(path, backends=BACKENDS).entries
    assert (a.backend, a.model, a.env, a.temperature) == ("ollama", "M", (("A", "1"),), 0.5)
    assert (a.enabled, a.reason) == (False, "all off")
    assert (b.backend, b.model, b.env, b.temperature) == ("mlx-lm", "M", (("B", "2"),), None)
    assert (b.enabled, b.reason) == (True, "")


def test_anchors_aliases_and_merge_keys_work(write: Write) -> None:
    path = write(
        """\
tests:
- &one {id: a, backend: mlx-lm, model_id: m, quant: 4bit, extra_args: &args [-c, "1"]}
- {<<: *one, id: b, quant: 8bit}
- {<<: [{kv_cache: kv8}, {kv_cache: kv2, fmt: GGUF}, *one], id: c, extra_args: *args}
"""
    )
    a, b, c = load(path, backends=BACKENDS).entries
    assert (b.id, b.backend, b.quant, b.extra_args) == ("b", "mlx-lm", "8bit", a.extra_args)
    assert (c.kv_cache, c.fmt, c.model_id, c.extra_args) == ("kv8", "GGUF", "m", ("-c", "1"))
    assert (a.line, b.line, c.line) == (2, 3, 4)


def test_keys_with_nothing_behind_them_count_as_left_out(write: Write) -> None:
    text = "hardware:\nsettings: {bench_port: }\nprompts:\ncustom_prompts:\ndefaults:\n" + with_fields(
        "prompts:\ngates:\nno_think: ~\ngroup:\napi_key: null"
    )
    found = load(write(text), backends=BACKENDS)
    assert found.settings == Settings()
    assert found.entries[0] == MatrixEntry(id="a", backend="mlx-lm", model_id="m", path=found.path, line=7)


def test_windows_line_ends_and_a_byte_order_mark_keep_lines_right(write: Write) -> None:
    path = write(b"\xef\xbb\xbf" + with_fields("enabled: false  # no").replace("\n", "\r\n").encode())
    assert (first(path).line, first(path).reason) == (2, "no")


def test_line_separators_inside_text_do_not_shift_lines(write: Write) -> None:
    text = 'custom_prompts: {p: "one\u2028two\x85three"}\n' + with_fields("runs: 3")
    with pytest.raises(MatrixError) as caught:
        load(write(text), backends=BACKENDS)
    assert caught.value.line == 6
