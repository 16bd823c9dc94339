"""A server that fails while it is in use."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from server_kit import Fake, Flavour, entry, open_target, prompt_for, wait_until

from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.backends.base import Target
from pytest_llmbench.backends.programs import find_program
from pytest_llmbench.errors import RequestError, ServerCrashed, ServerStartError, ServerTimeout, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.sample import Sample

MakeFake = Callable[..., Fake]
KEY = "sk-wren-5150-quartz"


def ask(target: Target, max_tokens: int = 64) -> Sample:
    return target.stream(prompt_for(target), max_tokens=max_tokens, temperature=0.0, fixed_length=True)


def with_key(wanted: MatrixEntry) -> MatrixEntry:
    return replace(wanted, api_key=KEY)


def kill(target: Target) -> None:
    assert target.info.pid is not None
    os.kill(target.info.pid, signal.SIGKILL)


def test_a_server_killed_during_a_request_is_a_crash(flavour: Flavour, tiny_checkpoints: Path, tmp_path: Path) -> None:
    wanted = entry(flavour, tiny_checkpoints / "tiny-random")
    with open_target(wanted, tmp_path) as target:
        assert target.info.pid is not None
        prompt = prompt_for(target)
        # A stopped server takes the connection and never answers.
        os.kill(target.info.pid, signal.SIGSTOP)
        killer = threading.Timer(0.5, kill, [target])
        killer.start()
        with pytest.raises(ServerCrashed, match="killed by SIGKILL") as caught:
            target.stream(prompt, max_tokens=64, temperature=0.0)
        killer.join()
        # The next use says the same at once, whichever part of the server it needs.
        with pytest.raises(ServerCrashed, match="killed by SIGKILL"):
            target.stream(prompt, max_tokens=64, temperature=0.0)
    message = str(caught.value)
    assert f"command: {target.info.command}" in message
    assert f"log: {target.info.log_path}" in message
    assert "lines:\n" in message


def test_a_server_killed_while_it_counts_a_prompts_tokens_is_a_crash(fake: MakeFake, tmp_path: Path) -> None:
    server = fake(backend="llama-server")
    with open_target(server.entry, tmp_path) as target:
        kill(target)
        with pytest.raises(ServerCrashed, match="killed by SIGKILL"):
            prompt_for(target)


def test_a_server_killed_in_the_middle_of_a_stream_is_a_crash_with_its_last_output(
    fake: MakeFake, tmp_path: Path
) -> None:
    server = fake(faults=["endless"], output=f"the key is {KEY}\nlast words\n")
    with open_target(with_key(server.entry), tmp_path) as target:
        killer = threading.Thread(target=kill_midway, args=(server, target, 3))
        killer.start()
        with pytest.raises(ServerCrashed, match="killed by SIGKILL") as caught:
            ask(target)
        killer.join()
    assert "the key is ***\nlast words" in str(caught.value)
    assert KEY not in str(caught.value)


def kill_midway(server: Fake, target: Target, requests: int) -> None:
    wait_until(lambda: len(server.events("midway")) == requests, "the server streams")
    kill(target)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("stall", "nothing came for 1 s"), ("stall_midway", "nothing came for 1 s"), ("keepalive", "but keep-alives")],
)
def test_silence_is_a_timeout_with_command_and_output_and_the_server_goes_on(
    fake: MakeFake, tmp_path: Path, fault: str, words: str
) -> None:
    server = fake(faults=[fault, ""])
    with open_target(server.entry, tmp_path, server_timeout=1.0) as target:
        with pytest.raises(ServerTimeout, match=words) as caught:
            ask(target)
        assert ask(target).text == "One two"
    assert f"command: {target.info.command}" in str(caught.value)
    assert "server_timeout" in str(caught.value)
    assert "fake server" in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("cut", "ended without a finish reason"),
        ("not_json", "not JSON: '<html>'"),
        ("error_event", "out of memory"),
        ("echo_key", r"HTTP 500: no idea what Bearer \*\*\* and \*\*\* mean"),
    ],
)
def test_a_broken_answer_is_an_error_with_the_logs_path_and_no_secret(
    fake: MakeFake, tmp_path: Path, fault: str, words: str
) -> None:
    server = fake(faults=[fault, ""])
    with open_target(with_key(server.entry), tmp_path) as target:
        with pytest.raises(RequestError, match=words) as caught:
            ask(target)
        assert ask(target).finish_reason == "stop"
    assert f"server log: {target.info.log_path}" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_crash_at_the_start_shows_the_output_without_the_key(fake: MakeFake, tmp_path: Path) -> None:
    server = fake(exit=3, output=f"bad key {KEY}\n")
    with (
        pytest.raises(ServerStartError, match="ended before it was ready: exit 3") as caught,
        open_target(with_key(server.entry), tmp_path),
    ):
        pass
    assert "bad key ***" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_program_of_this_folder_is_not_looked_for_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in (tmp_path / "here", tmp_path / "on-path"):
        folder.mkdir()
        (folder / "chatd").touch(mode=0o755)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", str(tmp_path / "on-path"))
    assert find_program("x", "./chatd", fix="") == "./chatd"
    (tmp_path / "here" / "chatd").unlink()
    with pytest.raises(Unavailable, match=r"server_binary \./chatd is no program"):
        find_program("x", "./chatd", fix="")


@pytest.mark.parametrize("word", ["--host", "--port=9", "-H"])
def test_an_address_in_extra_args_is_refused(word: str, tmp_path: Path) -> None:
    entry = MatrixEntry(
        id="a", backend="mlx-lm", model_id="m", path=tmp_path / "m.yaml", line=1, extra_args=(word, "0.0.0.0")
    )
    with pytest.raises(Unavailable, match="bench_port"):
        builtin_backends()["mlx-lm"].check(entry)
