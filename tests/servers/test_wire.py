"""What a matrix file says, as it reaches the server's socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_kit import Fake

from pytest_llmbench import matrix_file
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.errors import ServerTimeout
from pytest_llmbench.matrix import MatrixEntry, Overrides, RunSettings, resolve
from pytest_llmbench.measure import CACHED_TOKENS, Measurement, Meter
from pytest_llmbench.prompts import PromptMaker, specs

MakeFake = Callable[..., Fake]
KEY = "sk-heron-2718-basalt"
BOTH = pytest.mark.parametrize("backend", ["mlx-lm", "llama-server"])
HEAD = """
settings: {runs: 2, warmup: 1, max_tokens: 30, temperature: 0.9, server_timeout: 50, fixed_length: false}
prompts: [short]
"""


class Wire:
    """A matrix file with one entry on the fake server, measured."""

    def __init__(self, server: Fake, folder: Path, lines: str, *, head: str = HEAD) -> None:
        self.server = server
        self.folder = folder
        path = folder / "wire.yaml"
        program, model = server.entry.server_binary, server.entry.model_id
        path.write_text(
            f"{head}tests:\n  - id: wired\n    backend: {server.entry.backend}\n    model_id: {model}\n"
            f"    server_binary: {program}\n{lines}",
            encoding="utf-8",
        )
        self.matrix = matrix_file.load(path, backends=builtin_backends())

    @property
    def entry(self) -> MatrixEntry:
        return self.matrix.entries[0]

    def settings(self, overrides: Overrides) -> RunSettings:
        return resolve(self.matrix, self.entry, overrides)

    def measure(self, overrides: Overrides = Overrides()) -> Measurement:  # noqa: B008
        settings = self.settings(overrides)
        backend = builtin_backends()[self.entry.backend]
        with backend.open(self.entry, settings, log_dir=self.folder, report=lambda _line: None) as target:
            meter = Meter(
                target=target,
                maker=PromptMaker(target.tokenizer, think=settings.think),
                settings=settings,
                progress=lambda _done, _total, _what: None,
                conditions=dict,
            )
            return meter.measure(self.entry.id, next(iter(specs(settings).values())))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every chat request: two of the readiness check, a warm-up, two runs, two cached ones."""
        return self.server.events("chat")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.requests]


@BOTH
def test_every_request_streams_asks_for_usage_and_names_the_model(fake: MakeFake, tmp_path: Path, backend: str) -> None:
    wire = Wire(fake(backend=backend), tmp_path, "")
    measured = wire.measure()
    assert len(wire.bodies) == 7
    for request in wire.requests:
        assert request["path"] == "/v1/chat/completions"
        assert request["authorization"] is None
        assert request["body"]["stream"] is True
        assert request["body"]["stream_options"] == {"include_usage": True}
        assert request["body"]["model"] == measured.target.model
    assert [s.completion_tokens for s in measured.samples] == [3, 3]
    assert {s.token_source for s in measured.samples} == {"usage"}


@BOTH
def test_an_entrys_values_beat_the_settings(fake: MakeFake, tmp_path: Path, backend: str) -> None:
    wire = Wire(fake(backend=backend), tmp_path, "    temperature: 0.25\n    max_tokens: 9\n    no_think: true\n")
    wire.measure()
    ready, timed, cached = wire.bodies[:2], wire.bodies[2:5], wire.bodies[5:]
    assert [b["max_tokens"] for b in ready] == [1, 1]
    assert [b["max_tokens"] for b in timed] == [9, 9, 9]
    assert [b["max_tokens"] for b in cached] == [CACHED_TOKENS] * 2
    assert {b["temperature"] for b in timed + cached} == {0.25}
    assert all(b["chat_template_kwargs"] == {"enable_thinking": False} for b in timed + cached)


@BOTH
def test_without_values_of_its_own_an_entry_has_the_settings(fake: MakeFake, tmp_path: Path, backend: str) -> None:
    wire = Wire(fake(backend=backend), tmp_path, "")
    wire.measure()
    timed = wire.bodies[2:5]
    assert [(b["max_tokens"], b["temperature"]) for b in timed] == [(30, 0.9)] * 3
    assert not any("chat_template_kwargs" in b for b in wire.bodies)


def test_the_command_line_beats_the_entry(fake: MakeFake, tmp_path: Path) -> None:
    wire = Wire(fake(), tmp_path, "    max_tokens: 9\n    no_think: true\n")
    wire.measure(Overrides(runs=1, warmup=0, max_tokens=4, think=True))
    assert len(wire.bodies) == 5
    assert wire.bodies[2]["max_tokens"] == 4
    assert wire.bodies[2]["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_temperature_of_0_is_sent(fake: MakeFake, tmp_path: Path) -> None:
    wire = Wire(fake(), tmp_path, "    temperature: 0\n")
    wire.measure()
    assert [b["temperature"] for b in wire.bodies] == [0.0] * 7


@BOTH
def test_each_prompt_is_new_from_its_first_word_and_the_cached_one_is_the_last_again(
    fake: MakeFake, tmp_path: Path, backend: str
) -> None:
    wire = Wire(fake(backend=backend), tmp_path, "")
    wire.measure()
    texts = [b["messages"][0]["content"] for b in wire.bodies]
    first_words = [text.split()[0] for text in texts[2:5]]
    assert len(set(first_words)) == 3
    assert texts[4:] == [texts[4]] * 3


def test_a_system_message_comes_behind_the_new_first_word(fake: MakeFake, tmp_path: Path) -> None:
    lines = "    prompts: [own]\n"
    head = HEAD + "custom_prompts: {own: {text: Say hi., system: Be brief., max_tokens: 5}}\n"
    wire = Wire(fake(), tmp_path, lines, head=head)
    wire.measure()
    messages = wire.bodies[2]["messages"]
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"].endswith(" Be brief.")
    assert len({b["messages"][0]["content"] for b in wire.bodies[2:5]}) == 3
    assert [b["max_tokens"] for b in wire.bodies[2:5]] == [5, 5, 5]


@pytest.mark.parametrize("fixed", [True, False])
def test_llama_server_is_told_when_to_cache_and_whether_to_go_on_after_the_end(
    fake: MakeFake, tmp_path: Path, fixed: bool
) -> None:
    wire = Wire(fake(backend="llama-server"), tmp_path, f"    fixed_length: {str(fixed).lower()}\n")
    wire.measure()
    assert [b["cache_prompt"] for b in wire.bodies[2:]] == [False, False, False, True, True]
    assert [b["ignore_eos"] for b in wire.bodies[2:]] == [fixed] * 5


def test_mlx_lm_gets_no_field_that_it_does_not_know(fake: MakeFake, tmp_path: Path) -> None:
    wire = Wire(fake(), tmp_path, "    fixed_length: true\n")
    wire.measure()
    known = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
    assert {key for b in wire.bodies for key in b} == known


@pytest.mark.parametrize("source", [f"    api_key: {KEY}\n", "    api_key_env: WIRE_TEST_KEY\n"])
def test_the_key_is_in_the_header_and_nowhere_else(
    fake: MakeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("WIRE_TEST_KEY", KEY)
    wire = Wire(fake(), tmp_path, source)
    measured = wire.measure()
    assert {r["authorization"] for r in wire.requests} == {f"Bearer {KEY}"}
    assert KEY not in repr(measured)
    assert KEY not in repr(wire.entry)
    assert KEY not in str(wire.bodies)


def test_extra_arguments_and_variables_reach_the_server(fake: MakeFake, tmp_path: Path) -> None:
    wire = Wire(fake(), tmp_path, "    extra_args: [--prompt-cache-size, 4]\n")
    wire.measure()
    (start,) = wire.server.events("start")
    assert start["argv"][-2:] == ["--prompt-cache-size", "4"]
    assert start["argv"][:2] == ["--model", wire.entry.model_id]


@pytest.mark.parametrize(
    ("plan", "words"),
    [({"loading_s": 300}, "not ready after 0.7 s"), ({"faults": ["stall"]}, "nothing came for 0.7 s")],
)
def test_an_entrys_server_timeout_bounds_the_start_and_each_silence(
    fake: MakeFake, tmp_path: Path, plan: dict[str, Any], words: str
) -> None:
    wire = Wire(fake(**plan), tmp_path, "    server_timeout: 0.7\n")
    with pytest.raises(ServerTimeout) as caught:
        wire.measure()
    assert words in str(caught.value)
