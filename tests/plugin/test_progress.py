"""The line that says what is being done, and how long it may take."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import FEW_PLUGINS, Lab

from pytest_llmbench.progress import PLAIN_EVERY_S, Progress, clock, eta_s

EVERY_S = 0.02


class Pipe:
    """Where a `Progress` writes, and what came there."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.text = ""

    def read(self) -> str:
        """Everything so far."""
        try:
            while data := os.read(self.source, 65536):
                self.text += data.decode()
        except BlockingIOError:
            pass
        return self.text

    def wait(self, until: Callable[[str], bool]) -> str:
        """Everything so far, when `until` says that it is enough."""
        deadline = time.monotonic() + 20
        while not until(self.read()):
            assert time.monotonic() < deadline, self.text
            time.sleep(EVERY_S / 4)
        return self.text


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.source)
    os.close(made.sink)


@contextmanager
def running(pipe: Pipe, *, live: bool, total: int = 2) -> Iterator[Progress]:
    with Progress(pipe.sink, live=live, every_s=EVERY_S) as progress:
        progress.total = total
        yield progress


def test_a_plain_line_comes_again_and_again_each_on_its_own(pipe: Pipe) -> None:
    with running(pipe, live=False) as progress:
        progress.say("a: run 1")
        text = pipe.wait(lambda text: text.count("\n\n") >= 2)
    assert set(filter(None, text.splitlines())) == {"llmbench: test 1/2, a: run 1"}
    assert "\x1b" not in pipe.read()


def test_a_plain_line_comes_every_30_seconds() -> None:
    assert PLAIN_EVERY_S == 30.0


def test_a_live_line_replaces_itself_and_is_gone_at_the_end(pipe: Pipe) -> None:
    with running(pipe, live=True) as progress:
        progress.say("a: run 1")
        pipe.wait(lambda text: "run 1" in text)
        progress.say("a: run 2", fraction=0.5)
        text = pipe.wait(lambda text: "run 2" in text)
        assert "\n" not in text
        assert all(part.startswith("\x1b[2K") for part in text.split("\r")[1:])
    assert pipe.read().endswith("\r\x1b[2K")


def test_the_end_of_a_test_clears_its_line_and_counts_it(pipe: Pipe) -> None:
    with running(pipe, live=True) as progress:
        progress.say("a: run 1")
        pipe.wait(lambda text: "test 1/2" in text)
        progress.finish_test()
        assert pipe.wait(lambda text: text.endswith("\r\x1b[2K"))
        progress.say("b: run 1")
        text = pipe.wait(lambda text: "test 2/2, b: run 1" in text)
    assert re.search(r"test 2/2, b: run 1, about \d+:\d\d to go", text)


def test_nothing_is_said_before_there_is_something_to_say(pipe: Pipe) -> None:
    with running(pipe, live=False):
        time.sleep(EVERY_S * 5)
    assert pipe.read() == ""


def test_a_terminal_that_is_gone_disturbs_nothing() -> None:
    source, sink = os.pipe()
    os.close(source)
    with Progress(sink, live=True, every_s=EVERY_S) as progress:
        progress.say("a: run 1")
        time.sleep(EVERY_S * 5)
    os.close(sink)


positive = st.floats(0.001, 1e6)


@given(elapsed=positive, done=st.integers(0, 1000), more=st.integers(1, 1000), fraction=st.floats(0, 1))
def test_the_rest_takes_as_long_per_test_as_what_is_done(elapsed: float, done: int, more: int, fraction: float) -> None:
    total = done + more
    left = eta_s(elapsed, done, total, fraction)
    if done + fraction == 0:
        assert left is None
        return
    assert left is not None
    assert left >= 0
    assert (elapsed + left) * (done + fraction) == pytest.approx(elapsed * total, rel=1e-6)


@given(elapsed=positive, total=st.integers(1, 1000))
def test_nothing_is_left_when_all_is_done(elapsed: float, total: int) -> None:
    assert eta_s(elapsed, total, total, 0.0) == 0
    assert eta_s(elapsed, total, total, 0.7) == 0


def test_of_no_tests_nothing_is_expected() -> None:
    assert eta_s(5.0, 1, 0, 0.5) is None


@given(seconds=st.integers(0, 10**7))
def test_a_clock_can_be_read_back(seconds: int) -> None:
    parts = [int(part) for part in clock(seconds).split(":")]
    hours, minutes, rest = parts if len(parts) == 3 else [0, *parts]
    assert hours * 3600 + minutes * 60 + rest == seconds
    assert minutes < 60 > rest
    assert len(parts) == 3 or seconds < 3600


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3700, "1:01:40")])
def test_a_clock_is_written_as_people_write_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def on_a_terminal(lab: Lab, *args: str) -> str:
    """What a session writes on a pseudo terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", *FEW_PLUGINS, *args]
    process = subprocess.Popen(command, cwd=lab.path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while data := os.read(ours, 65536):
            text += data
    except OSError:
        pass  # Linux says so when the other side is closed.
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == 0
    return text.decode()


def test_a_session_on_a_terminal_shows_a_live_line_with_the_entry(lab: Lab) -> None:
    lab.matrix({"id": "first", "extra_args": ["--sleep", "0.4"]})
    text = on_a_terminal(lab, "matrix.yaml")
    assert "\r\x1b[2Kllmbench: test 1/1, first: short: " in text
    assert "\x1b[2K" not in on_a_terminal(lab, "matrix.yaml", "-q")
