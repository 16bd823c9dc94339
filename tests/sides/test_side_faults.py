"""Whatever a side does wrong is a SideError with one line for the record; the side is gone then, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from side_kit import ROOT, broken_side, by_rule, rule_side

from processes import is_running, wait_until
from pytest_llmbench.errors import SideError
from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import SideSpec, builtin_sides

Start = Callable[..., SideProcess]

FAULTS = {
    "exit": ("crash", r"^ended in generate: exit 3$"),
    "exit-in-peace": ("crash", r"^ended in generate: exit 0$"),
    "segfault": ("crash", r"^ended in generate: killed by SIGSEGV$"),
    "kill-itself": ("crash", r"^ended in generate: killed by SIGKILL: out of memory\?$"),
    "half-a-line": ("crash", r"^ended in generate: exit 3, after '\{\"ok\":\{\"started_ns\":'$"),
    "child-keeps-the-pipe": ("crash", r"^ended in generate: exit 3$"),
    "sleep": ("hang", r"^no answer to generate within 1 s$"),
    "ignore-term": ("hang", r"^no answer to generate within 1 s$"),
    "sleep-with-child": ("hang", r"^no answer to generate within 1 s$"),
    "drip": ("hang", r"^no answer to generate within 1 s$"),
    "garbage": ("garbage", r"^broke the protocol: not a line of JSON: 'Loading model: 100%\|#{99}…'$"),
    "flood": ("garbage", r"^broke the protocol: an endless line: '\.{119}…'$"),
    "close-stdout": ("garbage", r"^broke the protocol: closed its pipes in generate, and still runs$"),
    "token-too-few": ("tokens", r"^wrong number of tokens: 7, asked were 8$"),
    "token-too-many": ("tokens", r"^wrong number of tokens: 9, asked were 8$"),
    "stamp-too-few": ("tokens", r"^wrong number of tokens: 7 stamps for 8$"),
    "stamps-of-the-future": ("stamps", r"^stamps outside of the request: the last is (59|60)\.\d+ s after the answer$"),
    "stamps-of-the-past": ("stamps", r"^stamps outside of the request: the first is (59|60)\.\d+ s before it$"),
    "wall-clock": ("stamps", r"^stamps outside of the request: the last is \d+\.\d+ s after the answer$"),
    "stamps-fall": ("stamps", r"^stamps don't rise: one is earlier than the one before it$"),
    "stamps-all-the-same": ("stamps", r"^stamps don't rise: all 8 tokens have the same one$"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line_and_ends_the_side(fault: str, start: Start) -> None:
    kind, reason = FAULTS[fault]
    side = start(broken_side(fault), timeout_s=1 if kind == "hang" else 10)
    with pytest.raises(SideError, match=r"\nside: broken, process \d+\ncommand: .*\nlog: ") as caught:
        side.generate([1, 2], 8)
    assert caught.value.kind == kind
    assert re.search(reason, caught.value.reason), caught.value.reason
    assert not is_running(side.pid)
    with pytest.raises(SideError) as again:
        side.memory()
    assert again.value is caught.value


def test_the_last_output_of_a_crashed_side_is_in_the_message(start: Start) -> None:
    with pytest.raises(SideError, match="the last words"):
        start(broken_side("kill-itself")).generate([1], 2)


def test_a_hung_sides_own_children_are_killed_and_nobody_else(start: Start) -> None:
    other = start(rule_side())
    side = start(broken_side("sleep-with-child"), timeout_s=1)
    with pytest.raises(SideError, match="no answer"):
        side.generate([1], 2)
    child = int(re.findall(r"child (\d+)", side.log_path.read_text())[0])
    wait_until(lambda: not is_running(child), "the side's child is gone")
    assert other.generate([1, 2], 4).tokens == tuple(by_rule([1, 2], 4))


def test_a_side_that_takes_no_request_hangs(start: Start) -> None:
    side = start(broken_side("reads-no-more"), timeout_s=1)
    with pytest.raises(SideError) as caught:
        side.generate([1] * 100_000, 2)
    assert (caught.value.kind, caught.value.reason) == ("hang", "no answer to generate within 1 s")


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ("protocol-2", "version", "wrong version: speaks protocol 2, this is 1"),
        ("no-engine", "refused", "refused hello: unsupported: libengine.so isn't here"),
        ("exit-at-start", "crash", "ended in hello: exit 3"),
        ("no-version", "garbage", "broke the protocol: version isn't one line of 1 to 120 printable characters"),
    ],
)
def test_a_side_that_cant_begin_is_no_side(fault: str, kind: str, reason: str, tmp_path: Path) -> None:
    side = SideProcess(broken_side(fault), tmp_path / "side.log")
    with pytest.raises(SideError) as caught, side:
        pytest.fail("entered")
    assert caught.value.kind == kind
    assert caught.value.reason.startswith(reason)
    assert not is_running(side.pid)


def test_another_version_than_the_wanted_one_is_refused(tmp_path: Path) -> None:
    side = SideProcess(rule_side(version="0.9"), tmp_path / "side.log")
    with pytest.raises(SideError) as caught, side:
        pytest.fail("entered")
    assert (caught.value.kind, caught.value.reason) == ("version", "wrong version of rule: 1.0, wanted is 0.9")
    assert not is_running(side.pid)
    with SideProcess(rule_side(version="1.0"), tmp_path / "side.log") as right:
        assert right.hello.version == "1.0"


@pytest.mark.parametrize("command", [("no-such-program-here",), (str(ROOT / "pyproject.toml"),)])
def test_a_command_that_cant_be_executed_is_named(command: tuple[str, ...], tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    side = SideProcess(SideSpec(name="x", command=command), tmp_path / "side.log")
    with pytest.raises(SideError, match=command[0]) as caught, side:
        pytest.fail("entered")
    assert caught.value.kind == "start"
    assert caught.value.reason.startswith("couldn't be started: ")
    assert psutil.Process().num_fds() == before


def test_a_second_answer_isnt_taken_for_that_to_the_next_request(start: Start) -> None:
    side = start(broken_side("answers-twice"))
    assert side.generate([1, 2], 3).tokens == tuple(by_rule([1, 2], 3))
    with pytest.raises(SideError, match=r"^broke the protocol: wrote what nobody asked for: .*token_ns") as caught:
        side.generate([1, 2], 3)
    assert caught.value.kind == "garbage"


def test_a_refusal_is_told_and_the_side_goes_on(start: Start) -> None:
    side = start(broken_side("out-of-memory-once"))
    with pytest.raises(SideError) as caught:
        side.generate([1, 2], 8)
    assert (caught.value.kind, caught.value.refusal) == ("refused", "memory")
    assert caught.value.reason == "refused generate: memory: 17 GiB wanted"
    assert side.generate([1, 2], 8).tokens == tuple(by_rule([1, 2], 8))


def test_a_refusal_of_many_lines_is_one_in_the_record(start: Start) -> None:
    with pytest.raises(SideError) as caught:
        start(broken_side("out-of-memory")).generate([1], 8)
    assert caught.value.reason == "refused generate: memory: 17 GiB wanted, 16 GiB there"


def test_a_checkpoint_that_isnt_there_is_refused(start: Start, tmp_path: Path) -> None:
    side = start(rule_side())
    with pytest.raises(SideError) as caught:
        side.load(tmp_path / "nowhere")
    assert (caught.value.kind, caught.value.refusal) == ("refused", "checkpoint")
    assert "nowhere" in caught.value.reason
    assert side.load(tmp_path).first_token_ns is None


def test_what_isnt_among_its_capabilities_isnt_asked_of_a_side(start: Start) -> None:
    side = start(broken_side("no-batch"))
    for ask in (lambda: side.batch([[1]], 2), lambda: side.margins([1])):
        with pytest.raises(SideError) as caught:
            ask()
        assert (caught.value.kind, caught.value.refusal) == ("refused", "unsupported")
    assert len(side.generate([1], 2).tokens) == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("row-too-few", "wrong number of tokens: 1 rows, asked were 2"),
        ("short-row", "wrong number of tokens: 3, asked were 4"),
    ],
)
def test_each_row_of_a_batch_is_checked(fault: str, reason: str, start: Start) -> None:
    with pytest.raises(SideError) as caught:
        start(broken_side(fault)).batch([[1], [2, 3]], 4)
    assert (caught.value.kind, caught.value.reason) == ("tokens", reason)


def test_a_load_without_the_stamp_of_its_first_token_is_noticed(start: Start, tmp_path: Path) -> None:
    with pytest.raises(SideError) as caught:
        start(broken_side("no-first-token")).load(tmp_path, [1, 2])
    assert caught.value.kind == "tokens"


def test_a_megabyte_on_stderr_goes_to_the_log(start: Start) -> None:
    side = start(broken_side("much-on-stderr"))
    assert side.generate([1, 2], 3).tokens == tuple(by_rule([1, 2], 3))
    assert side.log_path.stat().st_size == 2**20


def test_a_side_that_outlives_its_stdin_is_ended(tmp_path: Path) -> None:
    with SideProcess(broken_side("outlives-its-stdin"), tmp_path / "side.log") as side:
        side.generate([1], 2)
    assert not is_running(side.pid)
    with pytest.raises(SideError, match="ended already"):
        side.memory()


def test_an_error_in_the_block_ends_the_side_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), SideProcess(rule_side(), tmp_path / "side.log") as side:
        raise KeyboardInterrupt
    assert not is_running(side.pid)


PARENT = """
import sys
from pathlib import Path
from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import SideSpec
with SideProcess(SideSpec(name="x", command=tuple(sys.argv[2:])), Path(sys.argv[1])) as side:
    print(side.pid, flush=True)
    side.generate([1], 2)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("fault", ["sleep", "ignore-term", "outlives-its-stdin"])
def test_no_side_outlives_pytest_however_it_ends(fault: str, number: signal.Signals, tmp_path: Path) -> None:
    env = {**os.environ, **builtin_sides()["engine"].env}
    command = [sys.executable, "-P", "-c", PARENT, str(tmp_path / "side.log"), *broken_side(fault).command]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.send_signal(number)
    wait_until(lambda: not is_running(pid), "the side is gone")
