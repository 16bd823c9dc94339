"""Equal tokens: where two outputs part, the test says at which token and by what margin, and excuses only near ties."""

from __future__ import annotations

import re

import pytest
from parity_kit import ParityLab

SAME, SOLO_1, SOLO_2 = "test_same_tokens[m]", "test_batch_matches_solo[m-1]", "test_batch_matches_solo[m-2]"
LIMITS = r"best logits are 10\.0000 \(token \d+\) and (\d\.\d+) \(token \d+\), margin (\d\.\d+)"


def test_other_tokens_than_the_baseline_s_fail_with_their_place_and_both_margins(lab: ParityLab) -> None:
    lab.sides(steady={}, odd={"differs_at": {"generate": 3}, "margin": 2.0})
    lab.plan("decode", candidate="odd")
    result = lab.run()
    assert lab.outcomes()[SAME] == "failed"
    reason = lab.results()[SAME]["reason"]
    assert re.match(r"decode r1: token 3 is candidate \d+ and baseline \d+: no near tie; candidate's best", reason)
    assert re.findall(LIMITS, reason) == [("8.0000", "2.0000"), ("9.0000", "1.0000")]
    assert reason.index("candidate's best") < reason.index("baseline's best")
    assert reason in result.stdout.str()
    first = lab.model()["decode"][0]
    assert (first["same_tokens"], first["note"]) == (False, reason.removeprefix("decode r1: "))


def test_a_near_tie_passes_with_a_note_in_junit_and_record(lab: ParityLab) -> None:
    lab.sides(steady={"margin": 0.1}, odd={"differs_at": {"generate": 0}, "margin": 0.2})
    lab.plan("decode", candidate="odd")
    lab.run()
    assert lab.outcomes()[SAME] == "passed"
    note = lab.properties()[SAME]["llmbench.r1.note"]
    assert re.match(r"token 0 is candidate \d+ and baseline \d+: a near tie, which rounding decides; ", note)
    assert [point["same_tokens"] for point in lab.model()["decode"]] == [False, False]
    assert lab.model()["decode"][0]["note"] == lab.results()[SAME]["extra"]["r1.note"] == note


def test_a_tie_that_only_one_side_sees_is_none_and_neither_is_an_unknown_one(lab: ParityLab) -> None:
    lab.sides(steady={}, odd={"differs_at": {"generate": 1}, "margin": 0.1})
    lab.plan("decode", candidate="odd")
    lab.run("-k", "same_tokens")
    assert lab.outcomes()[SAME] == "failed"
    lab.sides(steady={"capabilities": ["batch"]}, odd={"differs_at": {"generate": 1}, "margin": 0.1})
    lab.run("-k", "same_tokens")
    assert lab.outcomes()[SAME] == "failed"
    assert lab.results()[SAME]["reason"].endswith("baseline can't tell its logits")


@pytest.mark.parametrize(("margin", "outcome"), [(1.0, "failed"), (0.1, "passed")])
def test_a_batch_that_differs_from_solo_fails_unless_by_a_near_tie(lab: ParityLab, margin: float, outcome: str) -> None:
    lab.sides(steady={}, odd={"differs_at": {"batch": 5}, "margin": margin})
    lab.plan("concurrency", candidate="odd")
    result = lab.run("-k", "solo")
    assert lab.outcomes() == {SOLO_1: outcome, SOLO_2: outcome}
    verdict = "no near tie" if outcome == "failed" else "a near tie, which rounding decides"
    noted = rf"stream 0: token 5 is batched \d+ and solo \d+: {verdict}; candidate's {LIMITS}"
    properties = lab.properties()
    assert re.fullmatch(noted, properties[SOLO_1]["llmbench.1.note"])
    assert re.fullmatch(noted, properties[SOLO_2]["llmbench.2.note"])
    levels = lab.model()["concurrency"]
    assert [level["matches_solo"] for level in levels] == [False, False]
    assert re.fullmatch(noted, levels[1]["note"])
    result.stdout.fnmatch_lines(["correctness: org/m concurrency 1: a batch of one differs from solo output"])


def test_equal_batches_match_at_each_level_and_need_no_note(lab: ParityLab) -> None:
    lab.plan("concurrency", "decode")
    lab.run("-k", "solo or same")
    assert lab.outcomes() == {SOLO_1: "passed", SOLO_2: "passed", SAME: "passed"}
    assert [(level["matches_solo"], "note" in level) for level in lab.model()["concurrency"]] == [(True, False)] * 2
    assert [point["same_tokens"] for point in lab.model()["decode"]] == [True, True]


def test_the_baseline_s_failure_doesn_t_hide_the_candidate_s_batches(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "exit", "faulty_op": "batch"})
    lab.plan("concurrency", baseline="bad")
    lab.run()
    assert {lab.outcomes()[name] for name in (SOLO_1, SOLO_2)} == {"passed"}
    assert lab.outcomes()["test_parity[m-concurrency-1-wall_s]"] == "skipped"


def test_a_side_without_batches_is_an_error_of_concurrency_alone(lab: ParityLab) -> None:
    lab.sides(steady={}, solo={"capabilities": ["margins"]})
    lab.plan("concurrency", "load", candidate="solo", concurrency={"levels": [1]})
    lab.run()
    assert lab.outcomes()[SOLO_1] == "error"
    assert "candidate: refused batch: unsupported" in lab.results()[SOLO_1]["reason"]
    assert lab.outcomes()["test_parity[m-load-warm-first_token_s]"] == "passed"
