"""The line that says what is being done, and how long it may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_helpers import wait_text

from processes import wait_until
from pytest_llmbench.progress import Progress, clock, eta_s

CLEAR = "\r\x1b[2K"


@pytest.fixture
def output(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    yield descriptor, path
    os.close(descriptor)


def shown(path: Path) -> str:
    """What was written, its carriage returns as they are."""
    return path.read_bytes().decode()


@pytest.mark.parametrize(
    ("elapsed", "done", "total", "fraction", "left"),
    [
        (10.0, 0, 4, 0.0, None),
        (10.0, 0, 0, 0.5, None),
        (10.0, 1, 4, 0.0, 30.0),
        (10.0, 0, 4, 0.5, 70.0),
        (10.0, 4, 4, 0.0, 0.0),
        (10.0, 5, 4, 0.0, 0.0),
        (0.0, 1, 4, 0.0, 0.0),
    ],
)
def test_the_rest_takes_as_long_as_what_is_done(
    elapsed: float, done: int, total: int, fraction: float, left: float | None
) -> None:
    assert eta_s(elapsed, done, total, fraction) == left


@given(st.floats(0, 1e6), st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1))
def test_an_estimate_is_never_negative(elapsed: float, done: int, total: int, fraction: float) -> None:
    left = eta_s(elapsed, done, total, fraction)
    assert left is None or left >= 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3599.6, "1:00:00"), (3700, "1:01:40")]
)
def test_seconds_are_said_as_a_clock_says_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_line_names_test_entry_step_and_rest() -> None:
    progress = Progress(None, live=False)
    progress.total = 4
    progress.for_entry("tiny")(1, 2, "short: run 1")
    assert progress.line().startswith("llmbench: test 1/4, tiny: short: run 1, about ")
    progress.finish_test()
    progress.say("starting")
    assert progress.line().startswith("llmbench: test 2/4, starting")


def test_the_line_never_counts_past_the_end() -> None:
    progress = Progress(None, live=False)
    progress.say("x")
    assert progress.line() == "llmbench: test 1/1, x"
    progress.total = progress.done = 3
    assert progress.line().startswith("llmbench: test 3/3, x")


def test_a_terminal_gets_one_line_that_is_written_over_and_taken_away(output: tuple[int, Path]) -> None:
    descriptor, path = output
    with Progress(descriptor, live=True, every_s=0.01) as progress:
        progress.total = 2
        progress.say("measuring é")
        wait_until(lambda: f"{CLEAR}llmbench: test 1/2, measuring é" in shown(path), "the live line is there")
        progress.finish_test()
    assert shown(path).endswith(CLEAR)
    # On a row of its own: what stood on the one before is pytest's, and stays.
    assert shown(path).startswith("\nllmbench: ")
    assert shown(path).count("\n") == 1


def test_elsewhere_each_report_is_a_line_of_its_own(output: tuple[int, Path]) -> None:
    descriptor, path = output
    with Progress(descriptor, live=False, every_s=0.01) as progress:
        progress.say("measuring")
        wait_text(path, "measuring\n")
    assert "\x1b" not in path.read_text()
    assert path.read_text().startswith("\nllmbench: test 1/1, measuring\n")


def test_nothing_to_say_writes_nothing(output: tuple[int, Path]) -> None:
    descriptor, path = output
    with Progress(descriptor, live=True, every_s=0.001) as progress:
        progress.clear()
        progress.finish_test()
    assert path.read_text() == ""


def test_a_terminal_that_is_gone_stops_the_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Progress(writer, live=True, every_s=0.001) as progress:
        progress.say("measuring")
        wait_until(lambda: progress._descriptor is None, "the progress thread gave up its terminal")
    os.close(writer)
