"""What a run left behind: junit's cases, the record's summary, and the outcome that they come to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar
from xml.etree import ElementTree

from pytest_llmbench.errors import UNWRITTEN, BenchError
from pytest_llmbench.parity_record import read_parity_record
from pytest_llmbench.parity_summary import summary_lines

T = TypeVar("T")
JUNIT, RECORD = "junit.xml", "parity.json"
Outcome = Literal["passed", "failed", "error", "skipped"]
State = Literal["passed", "failed", "error", "skipped"]
FINE, BELOW_GATE, WRONG_USE, CANNOT_JUDGE = range(4)
PYTEST_TESTS_FAILED, PYTEST_USAGE, PYTEST_NO_TESTS = 1, 4, 5
# As `Verdict.message` writes them.
_RATIO = re.compile(r"\bratio ([0-9.e+-]+)")
_INTERVAL = re.compile(r"\(interval ([0-9.e+-]+ to [0-9.e+-]+)\)")
_GATE = re.compile(r"\bgate ([0-9.e+-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of junit's file; `message` is the first line of what it said, without the kind of exception."""

    name: str
    state: State
    message: str = ""
    inconclusive: bool = False

    @property
    def ratio(self) -> str:
        """The ratio in the message; "" where it has none."""
        return _first(_RATIO, self.message)

    @property
    def interval(self) -> str:
        """`0.97 to 0.99` from the message; "" where it has none."""
        return _first(_INTERVAL, self.message)

    @property
    def gate(self) -> str:
        """The gate in the message; "" where it has none."""
        return _first(_GATE, self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run. `record` are the lines of its summary, `faults` what keeps it from being judged."""

    cases: tuple[Case, ...]
    record: tuple[str, ...]
    faults: tuple[str, ...]
    code: int

    @property
    def bad(self) -> list[Case]:
        """What isn't green, failures first."""
        return [case for state in ("failed", "error") for case in self.cases if case.state == state]

    def count(self, state: State) -> int:
        """How many tests ended so."""
        return sum(case.state == state for case in self.cases)

    @property
    def outcome(self) -> Outcome:
        """For CI: only `passed` is green."""
        if self.code == BELOW_GATE:
            return "failed"
        return "passed" if self.code == FINE else "error"


def read_run(folder: Path, status: int | None) -> Run:
    """What lies in `folder`; `status` is pytest's, None where it isn't known any more."""
    faults: list[str] = []
    cases = _read(read_junit, folder / JUNIT, faults)
    record = _read(read_record, folder / RECORD, faults)
    code, reason = judge(cases, status)
    if code == FINE and faults:
        code = CANNOT_JUDGE
    return Run(cases=cases, record=record, faults=(*([reason] if reason else []), *faults), code=code)


def judge(cases: Sequence[Case], status: int | None) -> tuple[int, str]:
    """The exit code, and why nothing can be said where that is so. Nothing that failed to run is fine."""
    states = [case.state for case in cases]
    if status == PYTEST_USAGE:
        return WRONG_USE, "pytest refused its arguments or the plan; its message is above"
    if status == PYTEST_NO_TESTS:
        return WRONG_USE, "pytest found no test for these models"
    if status == UNWRITTEN:
        return CANNOT_JUDGE, "pytest couldn't write all of its files; its message is above"
    if status not in (None, 0, PYTEST_TESTS_FAILED):
        return CANNOT_JUDGE, f"pytest ended with status {status} before it was through"
    if "failed" in states:
        return BELOW_GATE, ""
    if "error" in states:
        return CANNOT_JUDGE, f"{states.count('error')} of {len(states)} results could not be measured"
    if status == PYTEST_TESTS_FAILED:
        return CANNOT_JUDGE, "pytest failed, but no test did; its message is above"
    return (FINE, "") if "passed" in states else (CANNOT_JUDGE, "nothing was measured")


def read_junit(path: Path) -> tuple[Case, ...]:
    """The tests in junit's file. Raises OSError, or ElementTree.ParseError for no XML."""
    return tuple(_case(node) for node in ElementTree.parse(path).iter("testcase"))


def read_record(path: Path) -> tuple[str, ...]:
    """The record's summary as lines. Raises BenchError for what is no record."""
    record = read_parity_record(path)
    sides = " against ".join(f"{side.name} {side.version}" for side in (record.candidate, record.baseline))
    return (sides, *summary_lines(record.summary()))


def _read(reader: Callable[[Path], tuple[T, ...]], path: Path, faults: list[str]) -> tuple[T, ...]:
    """What the reader finds in `path`; nothing, and a fault more, where it can't."""
    if not path.is_file():
        faults.append(f"{path.name} wasn't written")
        return ()
    try:
        return reader(path)
    except (OSError, ElementTree.ParseError, BenchError) as error:
        faults.append(f"{path.name} can't be read: {error}")
        return ()


def _case(node: ElementTree.Element) -> Case:
    state, message = next(_ends(node), ("passed", ""))
    return Case(
        name=node.get("name", "?"),
        state=state,
        message=message,
        inconclusive=any(_says_inconclusive(item) for item in node.iter("property")),
    )


def _ends(node: ElementTree.Element) -> Iterator[tuple[State, str]]:
    """How the test ended, the worst first."""
    tags: tuple[tuple[str, State], ...] = (("failure", "failed"), ("error", "error"), ("skipped", "skipped"))
    for tag, state in tags:
        for child in node.iter(tag):
            text = child.get("message") or child.text or ""
            yield state, re.sub(r"^Failed: ", "", text.strip().partition("\n")[0])


def _says_inconclusive(item: ElementTree.Element) -> bool:
    name = item.get("name", "")
    return name.startswith("llmbench.") and name.endswith(".outcome") and item.get("value") == "inconclusive"


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""
