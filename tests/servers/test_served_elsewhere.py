"""LM Studio, Docker Model Runner and OpenAI-compatible servers: what is one server's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_kit import MODELS, Running, measure, opened

from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.errors import MeasurementError, RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry

MakeRunning = Callable[..., Running]


def why(entry: MatrixEntry) -> str:
    with pytest.raises(Unavailable) as caught:
        builtin_backends()[entry.backend].check(entry)
    return str(caught.value)


def absent(dialect: str, **changes: Any) -> MatrixEntry:
    """An entry whose server is at its usual address, where nobody listens on a test machine."""
    given = {"id": "a", "path": Path("m.yaml"), "line": 1, "backend": dialect, "model_id": MODELS[dialect], **changes}
    return MatrixEntry(**given)


# LM Studio


def test_lm_studio_needs_a_mac_for_mlx_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("pytest_llmbench.backends.reach.get", lambda *_args, **_named: None)
    assert why(absent("lm-studio", fmt="MLX")).startswith("LM Studio runs MLX models on macOS only")


@pytest.mark.parametrize("installed", [False, True])
def test_lm_studio_that_does_not_run_is_to_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pytest_llmbench.backends.reach.get", lambda *_args, **_named: None)
    if installed:
        program = tmp_path / ".lmstudio" / "bin" / "lms"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    said = why(absent("lm-studio"))
    assert said.endswith("lms server start, then lms get qwen3-0.6b")
    assert ("LM Studio's server doesn't run" in said) == installed
    assert ("LM Studio is not installed; fix: install LM Studio, then " in said) != installed


def test_lm_studio_says_which_token_it_wants(running: MakeRunning, monkeypatch: pytest.MonkeyPatch) -> None:
    server = running("lm-studio", token="sk-lm-1234")
    monkeypatch.delenv("LM_API_TOKEN", raising=False)
    assert why(server.entry()) == "LM Studio wants a token; fix: export LM_API_TOKEN=…"
    monkeypatch.setenv("LM_API_TOKEN", "sk-lm-1234")
    builtin_backends()["lm-studio"].check(server.entry())


def test_an_lm_studio_without_its_new_interface_is_to_be_updated(running: MakeRunning) -> None:
    server = running("openai")
    entry = absent("lm-studio", server_url=server.url)
    assert why(entry) == "LM Studio answers /api/v1/models with HTTP 404; fix: update it to 0.4 or later"


@pytest.mark.parametrize(("fmt", "other"), [("MLX", "gguf"), ("GGUF", "mlx")])
def test_a_model_of_another_format_is_not_the_entrys(running: MakeRunning, fmt: str, other: str) -> None:
    server = running("lm-studio", format=other)
    said = why(server.entry(fmt=fmt))
    assert said == f"LM Studio has qwen3-0.6b as {other}, not as {fmt.lower()}; fix: lms get qwen3-0.6b --{fmt.lower()}"
    builtin_backends()["lm-studio"].check(server.entry(fmt=other.upper()))


def test_a_key_may_be_named_without_its_publisher_if_that_is_clear(running: MakeRunning, tmp_path: Path) -> None:
    server = running("lm-studio", models=["qwen/qwen3-0.6b", "qwen/other"])
    with opened(server.entry(), tmp_path) as target:
        assert target.info.model == "qwen/qwen3-0.6b"


def test_a_key_of_two_publishers_is_not_clear(running: MakeRunning) -> None:
    assert "no model qwen3-0.6b" in why(running("lm-studio", models=["a/qwen3-0.6b", "b/qwen3-0.6b"]).entry())


def test_lm_studio_gets_system_and_user_text_and_keeps_nothing(running: MakeRunning, tmp_path: Path) -> None:
    server = running("lm-studio")
    with opened(server.entry(), tmp_path, prompts=("code",)) as target:
        measure(target, name="code", prompts=("code",))
    body = server.chats[2]
    assert body["system_prompt"].endswith(" You are a careful Python engineer.")
    assert "strategy object" in body["input"]
    assert body["store"] is False
    assert body["max_output_tokens"] == 64
    assert set(body) == {"model", "input", "system_prompt", "store", "temperature", "max_output_tokens", "stream"}


def test_thinking_that_cannot_be_turned_off_is_an_error_where_it_is_to_be_off(
    running: MakeRunning, tmp_path: Path
) -> None:
    server = running("lm-studio", reasoning=["low", "high"])
    with (
        pytest.raises(ServerStartError, match="can't be turned off: LM Studio offers low, high"),
        opened(server.entry(), tmp_path, think=False),
    ):
        pass
    with opened(server.entry(), tmp_path, think=True) as target:
        measure(target, think=True)
    assert "reasoning" not in server.chats[-1]


def test_lm_studios_counts_are_its_stats(running: MakeRunning, tmp_path: Path) -> None:
    with opened(running("lm-studio").entry(), tmp_path) as target:
        sample = measure(target).samples[0]
    assert (sample.completion_tokens, sample.thinking_tokens) == (5, 2)
    assert sample.server_decode_tok_s == 43.5
    assert sample.cached_tokens is None


# Docker Model Runner


def test_docker_is_to_be_installed_and_the_runner_to_be_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MODEL_RUNNER_HOST", "http://127.0.0.1:1")
    entry = absent("docker-model-runner")
    assert why(entry).startswith("Docker is not installed; fix: ")
    (tmp_path / "docker").touch(mode=0o755)
    assert why(entry).startswith("no Docker Model Runner answers at http://127.0.0.1:1; fix: docker ")
    assert why(entry).endswith("then docker model pull ai/qwen3:0.6B-Q4_K_M")


@pytest.mark.parametrize("name", ["docker.io/ai/qwen3:0.6B-Q4_K_M", "ai/qwen3:0.6B-Q4_K_M", "qwen3:0.6b-q4_k_m"])
def test_names_that_docker_resolves_to_one_model_are_one(running: MakeRunning, tmp_path: Path, name: str) -> None:
    server = running("docker-model-runner", models=["ai/qwen3:0.6B-Q4_K_M", name])
    with opened(server.entry(model_id=name), tmp_path) as target:
        measure(target)


def test_docker_is_told_context_and_flags_and_must_have_taken_them(running: MakeRunning, tmp_path: Path) -> None:
    server = running("docker-model-runner")
    with opened(server.entry(extra_args=("-ctk", "q8_0")), tmp_path) as target:
        assert target.info.version == "1.2.3 (llama.cpp)"
    (told,) = server.asked("/engines/_configure")[:1]
    assert told == {"model": server.model, "context-size": 1536, "runtime-flags": ["-ctk", "q8_0"]}
    assert server.asked("/engines/unload") == [{"models": [server.model], "backend": "llama.cpp"}]


def test_docker_that_passes_over_the_flags_is_found_out(running: MakeRunning, tmp_path: Path) -> None:
    server = running("docker-model-runner", flags=False)
    with (
        pytest.raises(ServerStartError, match=r"extra_args were not taken: Docker Model Runner has the flags \[None\]"),
        opened(server.entry(extra_args=("-ctk", "q8_0")), tmp_path),
    ):
        pass


@pytest.mark.parametrize("fixed", [True, False])
def test_docker_is_told_what_llama_cpp_is_told(running: MakeRunning, tmp_path: Path, fixed: bool) -> None:
    server = running("docker-model-runner")
    with opened(server.entry(), tmp_path) as target:
        sample = measure(target, fixed_length=fixed).samples[0]
    assert [body["cache_prompt"] for body in server.chats[2:]] == [False, True, True]
    assert [body["ignore_eos"] for body in server.chats[2:]] == [fixed] * 3
    assert (sample.cached_tokens, sample.timings.prompt_tokens) == (0, 27)


# OpenAI


def test_without_an_address_there_is_no_server() -> None:
    assert why(absent("openai")) == "the entry has no server_url; fix: server_url: http://127.0.0.1:8000/v1"


@pytest.mark.parametrize("path", ["", "/v1"])
def test_an_address_without_a_path_means_v1(running: MakeRunning, tmp_path: Path, path: str) -> None:
    server = running("openai")
    with opened(server.entry(server_url=server.url + path), tmp_path) as target:
        measure(target)
    assert len(server.chats) == 5


def test_a_server_that_lists_no_models_is_taken_at_its_word(running: MakeRunning, tmp_path: Path) -> None:
    with opened(running("openai", lists=False).entry(), tmp_path) as target:
        measure(target)


def test_a_dated_version_of_the_model_may_answer(running: MakeRunning, tmp_path: Path) -> None:
    with opened(running("openai", answers_as="some-model-2026-01-31").entry(), tmp_path) as target:
        assert measure(target).samples[0].answered_by == "some-model-2026-01-31"


def test_only_openais_own_words_are_sent_until_the_entry_asks_for_more(running: MakeRunning, tmp_path: Path) -> None:
    server = running("openai")
    own = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
    with opened(server.entry(), tmp_path) as target:
        measure(target, fixed_length=True)
    assert {key for body in server.chats for key in body} == own
    with opened(server.entry(fixed_length=True), tmp_path) as target:
        measure(target, fixed_length=True)
    assert {key for body in server.chats for key in body} == own | {"ignore_eos"}


def test_a_prompt_that_the_server_cut_is_no_sample(running: MakeRunning, tmp_path: Path) -> None:
    with (
        opened(running("openai").entry(), tmp_path, prompts=("code",)) as target,
        pytest.raises(MeasurementError, match=r"the server saw 27 prompt tokens of .* characters: it cut the prompt"),
    ):
        measure(target, name="code", prompts=("code",))


def test_a_wrong_key_is_an_error_with_the_servers_words(running: MakeRunning, tmp_path: Path) -> None:
    server = running("openai", token="sk-right-key")
    with (
        pytest.raises(ServerStartError, match="HTTP 401: Malformed LM Studio API token") as caught,
        opened(server.entry(api_key="sk-wrong-key"), tmp_path),
    ):
        pass
    assert "sk-wrong-key" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RequestError)
