"""Unsloth Studio as its source has the protocol: a server that listens without a model, and may load another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_kit import Fake, open_target, prompt_for

from pytest_llmbench.backends.server import ServerTarget
from pytest_llmbench.backends.unsloth_studio import UnslothStudio, split_variant
from pytest_llmbench.errors import ServerStartError, ServerTimeout, Unavailable

MakeFake = Callable[..., Fake]
REPO, VARIANT = "heron/Basalt-1B-GGUF", "UD-Q4_K_XL"
STATUS = "/api/inference/status"
KEY = "sk-unsloth-heron2718basalt"
EMPTY: dict[str, Any] = {"active_model": None, "loading": []}
BUSY = {"active_model": None, "loading": [REPO]}
LOADED = {"active_model": REPO, "is_gguf": True, "gguf_variant": VARIANT, "context_length": 8192, "loading": []}


@pytest.fixture
def studio(fake: MakeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """A server on a model in the Hugging Face cache; `status` is what it says of itself, one after another."""
    snapshot = tmp_path / "hub" / f"models--{REPO.replace('/', '--')}" / "snapshots" / "abc123" / VARIANT
    snapshot.mkdir(parents=True)
    for part in (1, 2):
        (snapshot / f"Basalt-1B-{VARIANT}-{part:05d}-of-00002.gguf").write_bytes(b"GGUF\3" + bytes(19))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("STUDIO_TEST_KEY", KEY)

    def make(*status: dict[str, Any], **plan: Any) -> Fake:
        server = fake(backend="unsloth-studio", answers={STATUS: list(status or (LOADED,))}, answer_as=REPO, **plan)
        server.entry = replace(server.entry, model_id=f"{REPO}:{VARIANT}", api_key_env="STUDIO_TEST_KEY")
        return server

    return make


def test_it_is_started_on_loopback_without_tools_and_asked_by_its_public_name(
    studio: Callable[..., Fake], tmp_path: Path
) -> None:
    server = studio()
    with open_target(server.entry, tmp_path) as target:
        assert target.info.model == REPO
        assert KEY not in repr(target.info)
    argv = server.events("start")[0]["argv"]
    assert argv[:4] == ["studio", "run", "--model", f"{REPO}:{VARIANT}"]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert {"--api-only", "--disable-tools"} < set(argv)
    assert argv[argv.index("--parallel") + 1] == "1"
    chats = server.events("chat")
    assert {chat["body"]["model"] for chat in chats} == {REPO}
    assert {event["authorization"] for event in chats + server.events("get")} == {f"Bearer {KEY}"}


def test_nothing_is_asked_before_the_model_is_there(studio: Callable[..., Fake], tmp_path: Path) -> None:
    server = studio(EMPTY, BUSY, BUSY, LOADED)
    with open_target(server.entry, tmp_path):
        pass
    asked = [event["ns"] for event in server.events("get")]
    assert len(asked) >= 4
    assert min(chat["ns"] for chat in server.events("chat")) > asked[3]


def test_a_model_that_never_comes_ends_in_a_timeout_that_says_so(studio: Callable[..., Fake], tmp_path: Path) -> None:
    server = studio(BUSY)
    with (
        pytest.raises(ServerTimeout, match="the server says that it has no model yet"),
        open_target(server.entry, tmp_path, server_timeout=0.8),
    ):
        pass
    assert server.events("chat") == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"gguf_variant": "Q2_K"}, f"asked for the quantization {VARIANT}, but the server says that it has Q2_K"),
        ({"gguf_variant": None}, "says that it has None"),
        ({"context_length": 4096}, "asked for a context of 8192 tokens, but the server made one of 4096"),
    ],
)
def test_another_quantization_or_a_shorter_context_is_an_error(
    studio: Callable[..., Fake], tmp_path: Path, status: dict[str, Any], words: str
) -> None:
    server = studio(LOADED | status, output=f"API Key:      {KEY}x\n")
    wanted = replace(server.entry, extra_args=("--max-seq-length", "8192"))
    with pytest.raises(ServerStartError) as caught, open_target(wanted, tmp_path):
        pass
    assert words in str(caught.value)
    # A key that the server made itself is in its output.
    assert "API Key:      ***" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_seed_keeps_the_cache_out_and_thinking_is_a_field_of_its_own(
    studio: Callable[..., Fake], tmp_path: Path
) -> None:
    server = studio()
    with open_target(server.entry, tmp_path) as target:
        assert isinstance(target, ServerTarget)
        for think, cached in ((True, False), (False, True), (None, True)):
            target.stream(prompt_for(target, think=think), max_tokens=4, temperature=0.0, cached=cached)
    bodies = [chat["body"] for chat in server.events("chat")][2:]
    assert ["seed" in body for body in bodies] == [True, False, False]
    assert [body.get("enable_thinking") for body in bodies] == [True, False, None]
    assert not any({"cache_prompt", "ignore_eos", "chat_template_kwargs"} & set(body) for body in bodies)


def test_a_file_is_named_as_its_answers_name_it(fake: MakeFake) -> None:
    given = fake(backend="unsloth-studio").entry
    backend = UnslothStudio()
    assert backend.model_name(given, backend.model(given)) == "tiny-scripted"


def test_what_is_not_here_comes_with_the_command_that_fetches_it(studio: Callable[..., Fake]) -> None:
    given = replace(studio().entry, model_id=f"{REPO}:Q8_0")
    with pytest.raises(Unavailable) as caught:
        UnslothStudio().check(given)
    assert caught.value.reason == f"{REPO}:Q8_0 is not in the Hugging Face cache"
    assert caught.value.fix == f"hf download {REPO} --include '*Q8_0*.gguf'"


@pytest.mark.parametrize(
    ("model_id", "parts"),
    [
        (f"{REPO}:{VARIANT}", (REPO, VARIANT)),
        (f"hf:{REPO}:{VARIANT}", (REPO, VARIANT)),
        (REPO, (REPO, "")),
        ("~/models/a:b.gguf", ("~/models/a:b.gguf", "")),
        ("./x.gguf", ("./x.gguf", "")),
    ],
)
def test_a_variant_belongs_to_a_name_of_the_hub(model_id: str, parts: tuple[str, str]) -> None:
    assert split_variant(model_id) == parts
