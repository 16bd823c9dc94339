"""Whether a model writes code that works: one function, called in the sandbox with cases whose results are known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pytest_llmbench.measure import Meter
from pytest_llmbench.prompts import PromptSpec
from pytest_llmbench.sample import Sample
from pytest_llmbench.sandbox import Outcome, Returned, run_function

FUNCTION: Final = "merge_ranges"
SPEC: Final = PromptSpec(
    name="quality",
    instruction=(
        f"Write a Python function {FUNCTION}(ranges). It gets a list of [start, end] pairs of integers in any order, "
        "merges those that overlap or touch ([1, 3] and [3, 5] become [1, 5]), and returns the merged pairs as a list "
        "of lists, sorted by start. Answer with one Python code block and nothing else."
    ),
)
CASES: Final[tuple[tuple[list[list[int]], list[list[int]]], ...]] = (
    ([], []),
    ([[4, 9]], [[4, 9]]),
    ([[1, 3], [3, 5]], [[1, 5]]),
    ([[8, 10], [1, 3], [2, 6], [15, 18]], [[1, 6], [8, 10], [15, 18]]),
    ([[1, 10], [2, 3], [4, 5]], [[1, 10]]),
    ([[1, 2], [4, 5]], [[1, 2], [4, 5]]),
    ([[-5, -1], [-3, 0], [0, 0], [7, 7]], [[-5, 0], [7, 7]]),
)
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_THOUGHT = re.compile(r"\A.*</think>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCheck:
    """`passed` of the `CASES`. `problem`: what is wrong, None if all are right. `seconds`: the answer's."""

    problem: str | None
    passed: int
    seconds: float
    guards: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str | float | bool | None]:
        """For the record and junit."""
        return {
            "quality_pass": self.problem is None,
            "quality_passed": self.passed,
            "quality_cases": len(CASES),
            "quality_s": self.seconds,
            "quality_sandbox": "+".join(self.guards),
        }


def check(meter: Meter) -> QualityCheck:
    """Ask once, and run what comes. Errors of the target pass through."""
    tokens, temperature = meter.settings.max_tokens, meter.settings.temperature
    sample = meter.target.stream(meter.maker.make(SPEC), max_tokens=tokens, temperature=temperature, fixed_length=False)
    source = extract(sample.text)
    if source is None:
        return QualityCheck(problem=_no_code(sample), passed=0, seconds=sample.total_s, guards=())
    outcome = run_function(source, FUNCTION, [(ranges,) for ranges, _ in CASES])
    passed, problem = judge(outcome)
    return QualityCheck(problem=problem, passed=passed, seconds=sample.total_s, guards=outcome.guards)


def extract(text: str) -> str | None:
    """The code of an answer: its last block that defines the function, else the whole text if that does."""
    defines = f"def {FUNCTION}("
    said = _THOUGHT.sub("", text)
    found = [block for block in _BLOCK.findall(said) if defines in block]
    return found[-1] if found else said if defines in said else None


def judge(outcome: Outcome) -> tuple[int, str | None]:
    """How many cases are right, and what is wrong with the first that isn't."""
    if outcome.problem is not None:
        return 0, outcome.problem
    wrong = [
        _difference(ranges, expected, got)
        for (ranges, expected), got in zip(CASES, outcome.returned, strict=True)
        if got.error is not None or not _same(got.value, expected)
    ]
    return len(CASES) - len(wrong), wrong[0] if wrong else None


def _same(value: Any, expected: list[list[int]]) -> bool:
    """Equal, and made of integers: True is no 1, nor is 1.0."""
    return value == expected and all(type(n) is int for pair in value for n in pair)


def _difference(ranges: list[list[int]], expected: list[list[int]], got: Returned) -> str:
    shown = got.error if got.error is not None else f"{got.value!r:.200}"
    return f"{FUNCTION}({ranges}) gave {shown}, not {expected}"


def _no_code(sample: Sample) -> str:
    cut = f" (cut at max_tokens {sample.requested_tokens})" if sample.finish_reason == "length" else ""
    return f"the answer holds no function {FUNCTION}{cut}: {sample.text[:200]!r}"
