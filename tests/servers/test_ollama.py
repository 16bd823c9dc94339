"""Ollama: a server of our own where none runs, its context, its cache, its counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_kit import Running, measure, ollama_program, opened
from server_kit import read_record, settings, wait_until

from processes import is_running
from pytest_llmbench.backends.ollama import Ollama
from pytest_llmbench.backends.room import context_tokens
from pytest_llmbench.errors import ServerCrashed, ServerStartError, ServerTimeout, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.ports import free_port, port_owner

MakeRunning = Callable[..., Running]
NAME = "qwen3:0.6b"
CACHE = (("OLLAMA_KV_CACHE_TYPE", "q8_0"), ("OLLAMA_FLASH_ATTENTION", "1"))


def entry(**changes: Any) -> MatrixEntry:
    given: dict[str, Any] = {"id": "own", "backend": "ollama", "model_id": NAME, "path": Path("m.yaml"), "line": 1}
    return MatrixEntry(**{**given, **changes})


@pytest.fixture(autouse=True)
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models with `qwen3:0.6b` in it, and no Ollama anywhere; returns the file of its weights."""
    root = tmp_path / "models"
    manifest = root / "manifests/registry.ollama.ai/library/qwen3/0.6b"
    manifest.parent.mkdir(parents=True)
    blob = root / "blobs" / "sha256-1"
    blob.parent.mkdir()
    blob.write_bytes(b"weights")
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:1", "size": 7}]
    manifest.write_text(json.dumps({"layers": layers}))
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return blob


@pytest.fixture
def ollama(running: MakeRunning) -> Running:
    return running("ollama")


def test_without_ollama_the_fix_installs_it_and_fetches_the_model() -> None:
    with pytest.raises(Unavailable, match="ollama is not installed") as caught:
        Ollama().check(entry())
    assert caught.value.fix.endswith("then ollama pull qwen3:0.6b")


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_model_that_is_not_whole_is_to_be_pulled(tmp_path: Path, pulled: Path, damage: str) -> None:
    wanted = entry(server_binary=str(ollama_program(tmp_path)))
    Ollama().check(wanted)
    if damage == "missing":
        pulled.unlink()
    else:
        pulled.write_bytes(b"weig")
    with pytest.raises(Unavailable, match=r"ollama's copy of qwen3:0\.6b is incomplete; fix: ollama pull qwen3:0.6b"):
        Ollama().check(wanted)


def test_where_none_runs_one_of_our_own_is_started_and_stopped(tmp_path: Path) -> None:
    wanted = entry(server_binary=str(ollama_program(tmp_path, load_s=0.2)), env=(("OLLAMA_DEBUG", "1"),))
    with opened(wanted, tmp_path / "logs") as target:
        info = target.info
        sample = measure(target).samples[0]
        assert target.peak_memory().peak_bytes > 1_000_000
        owner = port_owner(int(info.base_url.rpartition(":")[2]))
        assert owner is not None
        assert owner.pid == info.pid
    assert sample.text == "Paris it is"
    assert info.load_s >= 0.2
    assert info.version == "0.40.12"
    assert info.command.endswith("ollama serve")
    assert info.log_path.is_file()
    assert not is_running(info.pid)
    start = read_record(tmp_path / "asked.jsonl")[0]["body"]
    assert start["argv"] == ["serve"]
    environment = start["env"]
    assert environment["OLLAMA_HOST"] == info.base_url.removeprefix("http://")
    assert environment["OLLAMA_NOPRUNE"] == "1"
    assert environment["OLLAMA_NUM_PARALLEL"] == "1"
    assert environment["OLLAMA_DEBUG"] == "1"


def test_the_one_that_ollama_host_names_is_used(
    ollama: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", ollama.url.removeprefix("http://"))
    with opened(entry(), tmp_path) as target:
        assert target.info.base_url == ollama.url
        assert target.info.pid is None
    assert ollama.process.poll() is None


def test_variables_of_an_entry_need_a_server_of_its_own(
    ollama: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", ollama.url.removeprefix("http://"))
    folder = tmp_path / "own"
    folder.mkdir()
    program = ollama_program(folder, log='msg=load request="{KvSize:512 KvCacheType:q8_0 NumThreads:8}"')
    with opened(entry(env=CACHE, kv_cache="q8_0", server_binary=str(program)), tmp_path) as target:
        assert target.info.base_url != ollama.url
    assert not ollama.chats


@pytest.mark.parametrize(
    ("line", "proof"),
    [
        ('cmd="/usr/bin/ollama runner --model x --kv-cache-type q8_0 --port 1"', True),
        ('cmd="llama-server --cache-type-k q8_0 --cache-type-v q8_0"', True),
        ('msg="quantized kv cache requested but flash attention disabled" type=q8_0', False),
        ('msg="kv cache type not supported by model" type=q8_0', False),
        ("env=map[OLLAMA_KV_CACHE_TYPE:q8_0]", False),
        ("KvCacheType:q8_01", False),
        ("KvCacheType:q4_0", False),
    ],
)
def test_a_cache_of_another_kind_must_be_proved_by_the_servers_log(tmp_path: Path, line: str, proof: bool) -> None:
    wanted = entry(env=CACHE, kv_cache="q8_0", server_binary=str(ollama_program(tmp_path, log=line)))
    if proof:
        with opened(wanted, tmp_path / "logs"):
            pass
    else:
        with pytest.raises(ServerStartError, match="says that its cache is q8_0"), opened(wanted, tmp_path / "logs"):
            pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache": "q8_0"}, "kv_cache is q8_0, but nothing tells Ollama; fix: env: {OLLAMA_KV_CACHE_TYPE: q8_0"),
        ({"env": (("OLLAMA_HOST", "0.0.0.0"),)}, "env sets OLLAMA_HOST; fix: use server_url"),
        ({"env": CACHE, "server_url": "http://127.0.0.1:1"}, "server_url names a server that runs; fix: take out"),
    ],
)
def test_values_that_contradict_each_other_are_said(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Unavailable) as caught:
        Ollama().check(entry(**changes))
    assert words in str(caught.value)


def test_each_request_has_the_context_of_the_load_and_lets_nothing_be_cut(ollama: Running, tmp_path: Path) -> None:
    with opened(ollama.entry(), tmp_path) as target:
        measure(target)
    _, load, _ = ollama.asked("/api/generate")
    contexts = {body["options"]["num_ctx"] for body in [load, *ollama.chats]}
    assert len(contexts) == 1
    assert all((body["truncate"], body["shift"]) == (False, False) for body in ollama.chats)
    assert all(body["stream"] is True for body in ollama.chats)
    assert ollama.chats[2]["options"]["num_predict"] == 64
    assert ollama.chats[2]["options"]["temperature"] == 0.0


def test_counts_durations_and_the_cache_are_read_from_the_last_line(ollama: Running, tmp_path: Path) -> None:
    with opened(ollama.entry(), tmp_path) as target:
        measured = measure(target)
    sample, cached = measured.samples[0], measured.cached
    assert cached is not None
    assert sample.finish_reason == "stop"
    assert sample.cached_tokens == 0
    assert sample.timings.prompt_tokens == sample.prompt_tokens
    assert (sample.timings.prompt_s, sample.timings.decode_s) == (0.5, 0.25)
    assert sample.prefill_tok_s == sample.prompt_tokens * 2
    assert sample.timings.decode_tok_s == sample.completion_tokens * 4
    assert sample.timings.peak_memory_bytes == 1000
    assert cached.cached_tokens == cached.prompt_tokens - 1
    # All of the duration belongs to the one token that no cache answered.
    assert cached.timings.prefill_tok_s == 2.0


def test_a_model_that_is_partly_on_the_cpu_is_reported(ollama: Running, tmp_path: Path) -> None:
    said: list[str] = []
    with opened(ollama.entry(), tmp_path, said=said):
        pass
    assert "ollama: 900 of the model's 1000 bytes are on the GPU" in said


def test_a_server_of_our_own_that_ends_while_in_use_has_crashed(tmp_path: Path) -> None:
    wanted = entry(server_binary=str(ollama_program(tmp_path, fault="hang_up", faultless=2)))
    said: list[str] = []
    with pytest.raises(ServerCrashed, match="exit 3"), opened(wanted, tmp_path / "logs", said=said) as target:
        measure(target)
    assert any(line.startswith("ollama didn't unload qwen3:0.6b") for line in said)


def test_a_stranger_on_the_port_of_our_own_is_not_talked_to(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "stranger"
    folder.mkdir()
    wanted = entry(server_binary=str(ollama_program(tmp_path, listen=False)))
    started: list[Running] = []

    def take() -> None:
        wait_until(lambda: bool(read_record(tmp_path / "asked.jsonl")), "our own has started")
        started.append(Running(folder, "ollama", port=port))

    thread = threading.Thread(target=take)
    thread.start()
    try:
        with (
            pytest.raises(ServerTimeout, match="not ready after 2 s"),
            opened(wanted, tmp_path / "logs", bench_port=port, server_timeout=2.0),
        ):
            pass
    finally:
        thread.join()
        started[0].stop()
    assert not started[0].asked("/api/generate")


def test_a_model_that_does_not_go_away_ends_in_a_timeout(running: MakeRunning, tmp_path: Path) -> None:
    server = running("ollama", keeps=True)
    with opened(server.entry(), tmp_path):
        pass
    with (
        pytest.raises(ServerTimeout, match=r"ollama still holds qwen3:0\.6b, 0\.4 s later"),
        opened(server.entry(), tmp_path, server_timeout=0.4),
    ):
        pass


def test_the_context_leaves_room_for_a_badly_guessed_length(ollama: Running, tmp_path: Path) -> None:
    with opened(ollama.entry(), tmp_path):
        pass
    _, load, _ = ollama.asked("/api/generate")
    assert load["options"]["num_ctx"] == context_tokens(settings()) * 1.5
