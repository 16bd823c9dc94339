"""An inconclusive verdict reaches the record, junit and the terminal; an undecided one is no result."""

from __future__ import annotations

import pytest
from lab import Lab, properties

TESTS = """
import pytest
from pytest_llmbench.verdict import interval

def judge(gate, rates, limit=5):
    found = interval(rates, [100.0] * len(rates), "tok_s", 0.98, limit=limit)
    gate.check_verdicts([found], candidate="ours", baseline="mlx-lm", detail="samples: …")

@pytest.mark.parametrize("middle", [98.5, 97.5])
def test_open(llmbench_measurement, llmbench_gate, middle):
    judge(llmbench_gate, [97.0, 97.2, middle, 99.0, 99.5])

def test_clear(llmbench_measurement, llmbench_gate):
    judge(llmbench_gate, [99.0] * 5)

def test_few(llmbench_measurement, llmbench_gate):
    judge(llmbench_gate, [99.0], limit=1)
"""


@pytest.fixture
def judged(lab: Lab) -> tuple[Lab, pytest.RunResult]:
    lab.matrix({"id": "a"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    (lab.path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    return lab, lab.run("test_mine.py", "--llmbench-out=out", "--junitxml=junit.xml")


def test_the_ratio_decides_the_test_and_the_message_says_both(judged: tuple[Lab, pytest.RunResult]) -> None:
    _, result = judged
    result.assert_outcomes(passed=3, failed=1)
    assert (
        "tok_s inconclusive: ours 97.5 tok/s, mlx-lm 100.0 tok/s, ratio 0.9750 (interval 0.9700 to 0.9950), gate 0.98, "
        "n = 5, out of rounds with the gate inside of the interval: failed by the ratio"
    ) in result.outlines
    assert "samples: …" in result.outlines


def test_the_terminal_counts_and_names_them(judged: tuple[Lab, pytest.RunResult]) -> None:
    _, result = judged
    start = next(i for i, line in enumerate(result.outlines) if "llmbench: inconclusive" in line)
    head, *lines = result.outlines[start + 1 : start + 5]
    assert head == "3 decided by the ratio: no interval lay on one side of the gate"
    assert [line.partition(": ")[2] for line in sorted(lines)] == [
        "tok_s ratio 0.9900, gate 0.98, n = 1: passed",
        "tok_s ratio 0.9750 (interval 0.9700 to 0.9950), gate 0.98, n = 5: failed",
        "tok_s ratio 0.9850 (interval 0.9700 to 0.9950), gate 0.98, n = 5: passed",
    ]
    assert "test_clear" not in "".join(lines)


def test_record_journal_and_junit_hold_it(judged: tuple[Lab, pytest.RunResult]) -> None:
    lab, _ = judged
    for results in (lab.run_json()["results"], lab.journal()):
        verdicts = [(r["outcome"], v["outcome"], v["interval"]) for r in results for v in r["verdicts"]]
        assert verdicts == [
            ("passed", "inconclusive", [0.97, 0.995]),
            ("failed", "inconclusive", [0.97, 0.995]),
            ("passed", "passed", [0.99, 0.99]),
            ("passed", "inconclusive", None),
        ]
    for name in ("a-short-98.5", "a-short-97.5"):
        assert properties(lab.junit()[name])["llmbench.tok_s.outcome"] == "inconclusive"


def test_a_session_without_any_says_nothing_of_them(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    assert "inconclusive" not in lab.run("matrix.yaml").stdout.str()


def test_an_undecided_verdict_is_an_error_not_a_failure(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    text = TESTS.partition("@pytest")[0] + (
        "def test_it(llmbench_measurement, llmbench_gate):\n    judge(llmbench_gate, [90.0] * 4, limit=9)\n"
    )
    (lab.path / "test_mine.py").write_text(text, encoding="utf-8")
    result = lab.run("test_mine.py", "--llmbench-out=out")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*tok_s undecided: *undecided after 4 of at most 9 rounds"])
    assert [r["verdicts"] for r in lab.run_json()["results"]] == [[]]
