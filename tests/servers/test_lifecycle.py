"""From the start of a server to its first answer, and what can go wrong on the way."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from server_kit import Fake, entry, flavours, open_target

from pytest_llmbench.errors import ServerStartError, ServerTimeout
from pytest_llmbench.ports import free_port

MakeFake = Callable[..., Fake]


@pytest.mark.parametrize("loading", ["503", "hang", "keepalive"])
def test_healthy_is_not_ready_and_loading_is_timed_to_the_first_answer(
    fake: MakeFake, tmp_path: Path, loading: str
) -> None:
    server = fake(loading_s=0.6, loading=loading)
    before = time.monotonic_ns()
    with open_target(server.entry, tmp_path) as target:
        after = time.monotonic_ns()
        load_s = target.info.load_s
    (start,) = server.events("start")
    first, _ = server.events("answered")
    assert first["ns"] >= start["loaded_ns"]
    assert load_s is not None
    # What is taken off for the second request's first token can't be more than passed after the first answer.
    assert load_s >= (start["loaded_ns"] - start["ns"] - (after - first["ns"])) / 1e9
    assert 0 < load_s <= (after - before) / 1e9


def test_the_wrong_model_is_refused_with_both_names(fake: MakeFake, tmp_path: Path) -> None:
    server = fake(answer_as="somebody-else/model")
    with pytest.raises(ServerStartError) as caught, open_target(server.entry, tmp_path):
        pass
    assert "'somebody-else/model' answered" in str(caught.value)
    assert server.entry.model_id in str(caught.value)


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_mlx_lm_that_stays_up_without_a_model_is_noticed(tiny_checkpoints: Path, tmp_path: Path, damage: str) -> None:
    flavour = flavours()[0]
    if flavour.missing:
        pytest.skip(flavour.missing)
    model = tmp_path / "damaged"
    shutil.copytree(tiny_checkpoints / "tiny-scripted", model)
    (model / damage).unlink()
    (model / damage).write_text("{")
    with (
        pytest.raises(ServerStartError, match="generation thread died") as caught,
        open_target(entry(flavour, model), tmp_path, server_timeout=600.0),
    ):
        pass
    assert "server runs but isn't usable" in str(caught.value)
    assert f"--model {model}" in str(caught.value)


def test_a_stranger_that_takes_the_port_during_the_start_is_not_talked_to(fake: MakeFake, tmp_path: Path) -> None:
    server = fake(listen=False)
    port = free_port()
    taken: list[socket.socket] = []

    def take(line: str) -> None:
        if line.startswith("starting"):
            taken.append(socket.create_server(("127.0.0.1", port)))

    with (
        pytest.raises(ServerStartError, match=f"another process took the port.*pid {os.getpid()}") as caught,
        open_target(server.entry, tmp_path, bench_port=port, report=take),
    ):
        pass
    assert "command: " in str(caught.value)
    taken[0].setblocking(False)
    with taken[0], pytest.raises(BlockingIOError):
        taken[0].accept()


@pytest.mark.parametrize(
    ("plan", "last"),
    [
        ({"listen": False}, "didn't listen"),
        ({"loading_s": 300, "loading": "503"}, "HTTP 503: Loading model"),
        ({"loading_s": 300, "loading": "hang"}, "nothing came for"),
        ({"loading_s": 300, "loading": "keepalive"}, "nothing but keep-alives"),
    ],
)
def test_a_server_that_never_gets_ready_ends_in_a_timeout_that_tells_why(
    fake: MakeFake, tmp_path: Path, plan: dict[str, object], last: str
) -> None:
    server = fake(**plan)
    with (
        pytest.raises(ServerTimeout, match=r"not ready after 0\.8 s") as caught,
        open_target(server.entry, tmp_path, server_timeout=0.8),
    ):
        pass
    message, _, attempt = str(caught.value).rpartition("last attempt: ")
    assert last in attempt
    assert "command: " in message
    assert message.endswith("fake server\n")
