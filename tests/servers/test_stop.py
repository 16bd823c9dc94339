"""Nothing that we start outlives its use, however that use ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from server_kit import (
    Fake,
    Flavour,
    Recorder,
    entry,
    flavours,
    group_members,
    open_target,
    pinned,
    port_of,
    prompt_for,
    recorded_entry,
    wait_until,
)

from processes import is_running
from pytest_llmbench.backends import server as server_module
from pytest_llmbench.backends.base import Target
from pytest_llmbench.errors import RequestError, ServerCrashed
from pytest_llmbench.ports import port_owner

MakeFake = Callable[..., Fake]
KEY = "sk-osprey-8814-feldspar"


def group_of(target: Target) -> int:
    assert target.info.pid is not None
    assert os.getpgid(target.info.pid) == target.info.pid != os.getpgid(0)
    return target.info.pid


def test_a_failing_block_ends_the_server(flavour: Flavour, tiny_checkpoints: Path, tmp_path: Path) -> None:
    wanted = entry(flavour, tiny_checkpoints / "tiny-scripted")
    groups: list[int] = []

    def interrupted() -> None:
        with open_target(wanted, tmp_path) as target:
            groups.append(group_of(target))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [group_members(group) for group in groups] == [[]]


def test_an_open_stream_doesnt_hold_a_real_server_up(flavour: Flavour, tiny_checkpoints: Path, tmp_path: Path) -> None:
    wanted = entry(flavour, tiny_checkpoints / "tiny-random")
    ended: list[Exception] = []

    def read(target: Target) -> None:
        try:
            for _ in range(1000):
                target.stream(prompt, max_tokens=2000, temperature=0.0, fixed_length=True, cached=True)
        except (RequestError, ServerCrashed) as error:
            ended.append(error)

    with open_target(wanted, tmp_path, max_tokens=2000) as target:
        group, prompt = group_of(target), prompt_for(target)
        reader = threading.Thread(target=read, args=(target,))
        reader.start()
        busy = psutil.Process(group)
        before = sum(busy.cpu_times()[:2])
        wait_until(lambda: sum(busy.cpu_times()[:2]) > before + 0.1, "the server works on the request")
    assert group_members(group) == []
    reader.join(30)
    assert len(ended) == 1


@pytest.mark.parametrize("plan", [{"faults": ["endless"]}, {"faults": ["endless"], "ignore_term": True}])
def test_a_server_in_an_endless_stream_is_gone_after_the_grace_time(
    fake: MakeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object]
) -> None:
    monkeypatch.setattr(server_module, "GRACE_S", 0.4)
    served = fake(**plan)
    ended: list[Exception] = []
    with open_target(served.entry, tmp_path) as target:
        group, port, prompt = group_of(target), port_of(target), prompt_for(target)
        # The client reads nothing, so the server's writes pile up.
        client = socket.create_connection(("127.0.0.1", port))
        body = json.dumps({"model": target.info.model, "messages": [{"role": "user", "content": "Go"}]}).encode()
        client.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: len(served.events("midway")) == 3, "the raw stream runs")

        def read() -> None:
            try:
                target.stream(prompt, max_tokens=64, temperature=0.0)
            except (RequestError, ServerCrashed) as error:
                ended.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: len(served.events("midway")) == 4, "our stream runs")
    assert group_members(group) == []
    assert port_owner(port) is None
    reader.join(30)
    client.close()
    assert len(ended) == 1


# --- pytest itself ends ---


def write_matrix(bench: pytest.Pytester, *entries: dict[str, object], **settings: object) -> Path:
    """JSON is YAML."""
    head = {"runs": 1, "warmup": 0, "max_tokens": 24, "server_timeout": 120, **settings}
    path = bench.path / "bench.yaml"
    path.write_text(json.dumps({"settings": head, "prompts": ["short"], "tests": list(entries)}), encoding="utf-8")
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_no_server_is_left_when_a_signal_ends_pytest(
    bench: pytest.Pytester, tiny_checkpoints: Path, number: signal.Signals
) -> None:
    flavour = flavours()[0]
    if flavour.missing:
        pytest.skip(flavour.missing)
    recorder = Recorder(bench.path, flavour)
    write_matrix(bench, recorded_entry(recorder, flavour, tiny_checkpoints / "tiny-random"), runs=1000)
    out = bench.path / "out"
    arguments = ("bench.yaml", f"--llmbench-out={out}", "-p", "no:cacheprovider")
    with (bench.path / "output").open("w") as output:
        run = bench.popen([*bench._getpytestargs(), *arguments], stdout=output, stderr=output)
    log = out / "logs" / "bench.tiny-random-mlx-lm.log"
    # Two requests make it ready: more are measurements.
    wait_until(lambda: log.exists() and log.read_text().count("POST /v1/chat/completions") > 3, "pytest measures")
    (start,) = recorder.events("start")
    run.send_signal(number)
    run.wait(60)
    # Nobody waits for a server whose pytest was killed.
    wait_until(lambda: not group_members(start["recorder"]), "the server's group is gone")
    assert not is_running(start["pid"])
    expected = pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number
    assert run.returncode == expected


def test_a_failing_test_ends_its_server_and_no_file_holds_the_key(
    bench: pytest.Pytester, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flavour = pinned(flavours()[1], tmp_path_factory.mktemp("flavour"))
    if flavour.missing:
        pytest.skip(flavour.missing)
    recorder = Recorder(bench.path, flavour)
    fields = {"gates": {"decode_tok_s": {"at_least": 1e12}}, "api_key": KEY}
    wanted = recorded_entry(recorder, flavour, tiny_checkpoints / "tiny-scripted", **fields)
    wanted["extra_args"] += ["--api-key", KEY]
    write_matrix(bench, wanted, fixed_length=False)
    result = bench.runpytest_subprocess(
        "bench.yaml", "--llmbench-out=out", "--junitxml=out/junit.xml", "-p", "no:cacheprovider", timeout=120
    )
    result.assert_outcomes(failed=1)
    (stop,) = recorder.events("stop")
    assert not is_running(stop["recorder"])
    written = [path for path in (bench.path / "out").rglob("*") if path.is_file()]
    assert {"run.json", "journal.jsonl", "junit.xml", "bench.tiny-scripted-xllamacpp.log"} <= {p.name for p in written}
    assert [path.name for path in written if KEY in path.read_text(errors="replace")] == []
    assert KEY not in result.stdout.str() + result.stderr.str()
    assert "--api-key '***'" in (bench.path / "out" / "run.json").read_text()


def test_the_wrong_key_is_an_error_that_shows_neither_key(
    bench: pytest.Pytester, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flavour = pinned(flavours()[1], tmp_path_factory.mktemp("flavour"))
    if flavour.missing:
        pytest.skip(flavour.missing)
    recorder = Recorder(bench.path, flavour)
    wanted = recorded_entry(recorder, flavour, tiny_checkpoints / "tiny-scripted", api_key=f"other-{KEY}")
    wanted["extra_args"] += ["--api-key", KEY]
    write_matrix(bench, wanted)
    result = bench.runpytest_subprocess("bench.yaml", "-p", "no:cacheprovider", timeout=120)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*HTTP 401: Invalid API Key*"])
    assert KEY not in result.stdout.str()
    assert len(recorder.events("stop")) == 1
