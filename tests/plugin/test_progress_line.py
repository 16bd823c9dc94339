"""A session says what is being done: a live line on a terminal, nothing where it is told to be quiet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import FEW_PLUGINS, Lab

from pytest_llmbench.progress import PLAIN_EVERY_S, clock, eta_s


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


@pytest.mark.parametrize(("args", "shown"), [((), True), (("-q",), False), (("-s",), True)])
def test_a_session_on_a_terminal_shows_a_live_line_unless_it_is_quiet(
    lab: Lab, args: tuple[str, ...], shown: bool
) -> None:
    lab.matrix({"id": "first", "extra_args": ["--sleep", "0.4"]})
    text = on_a_terminal(lab, "matrix.yaml", *args)
    assert ("\r\nllmbench: test 1/1, first: short: " in text) is shown
    assert ("\x1b[2K" in text) is shown


def test_a_session_that_is_no_terminals_writes_no_control_characters(lab: Lab) -> None:
    lab.matrix({"id": "first", "extra_args": ["--sleep", "0.4"]})
    assert "\x1b" not in lab.spawn("matrix.yaml").stdout.str()


def test_a_plain_line_comes_every_30_seconds() -> None:
    assert PLAIN_EVERY_S == 30.0


@given(elapsed=st.floats(0.001, 1e6), total=st.integers(1, 1000), fraction=st.floats(0, 1))
def test_nothing_is_left_when_all_is_done(elapsed: float, total: int, fraction: float) -> None:
    assert eta_s(elapsed, total, total, fraction) == 0


@given(seconds=st.integers(0, 10**7))
def test_a_clock_can_be_read_back(seconds: int) -> None:
    parts = [int(part) for part in clock(seconds).split(":")]
    hours, minutes, rest = parts if len(parts) == 3 else [0, *parts]
    assert hours * 3600 + minutes * 60 + rest == seconds
    assert minutes < 60 > rest
