"""A live run tells a slower candidate from an equal one, by the clock; what it can't tell, it says."""

from __future__ import annotations

import pytest
from parity_kit import ParityLab

ROUNDS = {"runs_per_pass": 5, "max_rounds": 9, "verdict": "interval"}
STEADY = {"real_clock": True, "token_ms": [10.0]}
SLOWER = {"real_clock": True, "token_ms": [10.5]}
DECODE = "test_parity[m-decode-r1-tok_s]"


def decode(lab: ParityLab, candidate: str, baseline: str) -> pytest.RunResult:
    lab.plan(
        "decode", candidate=candidate, baseline=baseline, max_tokens=32, legacy_repeats=[1], **ROUNDS
    )  # fmt: skip
    return lab.run("-k", "tok_s")


@pytest.mark.parametrize(
    ("candidate", "baseline", "outcome", "ratio"),
    [
        ("slower", "steady", "failed", 10 / 10.5),
        ("steady", "slower", "passed", 10.5 / 10),
        ("steady", "steady", "passed", 1),
        ("slower", "slower", "passed", 1),
    ],
)
def test_a_candidate_that_is_5_percent_slower_fails_and_only_that_one(
    lab: ParityLab, candidate: str, baseline: str, outcome: str, ratio: float
) -> None:
    lab.sides(steady=STEADY, slower=SLOWER)
    result = decode(lab, candidate, baseline)
    assert lab.outcomes() == {DECODE: outcome}, result.stdout.str()
    (verdict,) = lab.results()[DECODE]["verdicts"]
    assert verdict["ratio"] == pytest.approx(ratio, abs=0.015)
    assert lab.model()["decode"][0]["tok_s"]["ratio"] == verdict["ratio"]
    if outcome == "failed":
        result.stdout.fnmatch_lines(
            [f"tok_s failed: {candidate} 9*.* tok/s, {baseline} * tok/s, ratio 0.9*, gate 0.98*"]
        )
        result.stdout.fnmatch_lines([f"samples: {candidate} [[]*] tok/s; {baseline} [[]*] tok/s"])


def test_a_clear_verdict_stops_the_rounds_and_an_open_one_goes_on_to_the_limit(lab: ParityLab) -> None:
    # The first request of a side warms it up.
    lab.sides(steady={}, slower={"token_ms": [1.05]}, wavering={"token_ms": [1.0, 1.1, 0.9]})
    for candidate, rounds in (("slower", 5), ("wavering", 9)):
        decode(lab, candidate, "steady")
        point = lab.model()["decode"][0]["tok_s"]
        assert len(point["candidate"]["samples"]) == len(point["baseline"]["samples"]) == rounds


def test_an_inconclusive_verdict_is_told_everywhere_and_the_ratio_decides(lab: ParityLab) -> None:
    lab.sides(steady={}, wavering={"token_ms": [1.0, 1.1, 0.9]})
    result = decode(lab, "wavering", "steady")
    assert lab.outcomes() == {DECODE: "passed"}
    result.stdout.fnmatch_lines(
        [
            "1 decided by the ratio: no interval lay on one side of the gate",
            "plan.yaml::test_parity* tok_s ratio 1.0000 (interval 0.9091 to 1.1111), gate 0.98, n = 9: passed",
        ]
    )
    assert lab.properties()[DECODE]["llmbench.tok_s.outcome"] == "inconclusive"
    assert lab.results()[DECODE]["verdicts"][0]["outcome"] == "inconclusive"


def test_rounds_go_a_b_b_a_after_a_warm_up_of_each_side(lab: ParityLab) -> None:
    lab.sides(a={"version": "a"}, b={"version": "b"})
    lab.plan("decode", candidate="a", baseline="b", legacy_repeats=[1], runs_per_pass=4, max_rounds=4)
    lab.run("-k", "tok_s").assert_outcomes(passed=1)
    name = {event["pid"]: event["version"] for event in lab.events("start")}
    assert len(name) == 2
    assert "".join(name[event["pid"]] for event in lab.events("generate")) == "aa" + "bb" + "ba" + "ab" + "ba"


def test_passes_measure_in_processes_of_their_own(lab: ParityLab) -> None:
    lab.plan("decode", legacy_repeats=[1], passes=2, runs_per_pass=2, max_rounds=4)
    lab.run("-k", "tok_s").assert_outcomes(passed=1)
    assert len(lab.events("start")) == 4
    assert len(lab.model()["decode"][0]["tok_s"]["candidate"]["samples"]) == 4
