"""Whatever one side does, the run goes on: its tests say what happened, and so does the record."""

from __future__ import annotations

from typing import Any

import pytest
from parity_kit import FEW_PLUGINS, ParityLab

BAD: dict[str, Any] = {"faulty_op": "generate", "from_prompt_tokens": 90}
"""A side whose fault shows at the second point of decode: its prompt has 97 tokens, the first one's 25."""
FAULTS = {
    "memory": ({"fault": "memory"}, "refused generate: memory: 17 GiB wanted"),
    "exit": ({"fault": "exit"}, "ended in generate: exit 3"),
    "kill": ({"fault": "kill"}, "ended in generate: killed by SIGKILL: out of memory?"),
    "hang": ({"fault": "hang"}, "no answer to generate within 1 s"),
    "garbage": ({"fault": "garbage"}, "broke the protocol: not a line of JSON: 'Loading: 100%'"),
}
FIRST, SECOND, SAME = "test_parity[m-decode-r1-tok_s]", "test_parity[m-decode-r4-tok_s]", "test_same_tokens[m]"
LOADED = "test_measured[m-memory-load]"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_candidate_that_fails_at_a_long_prompt_is_an_error_there_and_only_there(lab: ParityLab, fault: str) -> None:
    script, reason = FAULTS[fault]
    lab.sides(steady={}, bad=BAD | script)
    lab.plan("decode", "memory", candidate="bad", legacy_repeats=[1, 4], timeout_s=1 if fault == "hang" else 30)
    result = lab.run("-k", "decode-r or load or same_tokens")
    assert lab.outcomes() == {FIRST: "passed", SECOND: "error", SAME: "error", LOADED: "passed"}
    assert f"candidate: {reason}" in (lab.results()[SECOND]["reason"] or "")
    assert reason in result.stdout.str()
    first, second = lab.model()["decode"]
    assert first["tok_s"]["ratio"] == 1
    assert second["tok_s"] == {
        "candidate": None,
        "baseline": second["tok_s"]["baseline"],
        "ratio": None,
        "gated": True,
        "reason": f"candidate: {reason}",
    }
    assert second["tok_s"]["baseline"]["samples"]
    assert second["prompt_tokens"] == {"candidate": None, "baseline": 97}
    assert (lab.model()["status"], lab.model()["reason"][: len(reason) + 11]) == ("partial", f"candidate: {reason}")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_baseline_that_fails_skips_its_point_or_with_require_is_an_error(lab: ParityLab, fault: str) -> None:
    script, reason = FAULTS[fault]
    lab.sides(steady={}, bad=BAD | script)
    lab.plan("decode", baseline="bad", legacy_repeats=[1, 4], timeout_s=1 if fault == "hang" else 30)
    result = lab.run()
    assert lab.outcomes() == {FIRST: "passed", SECOND: "skipped", SAME: "skipped"}
    assert lab.results()[SECOND]["reason"] == f"baseline: {reason}"
    assert f"baseline: {reason}" in result.stdout.str()
    point = lab.model()["decode"][1]["tok_s"]
    assert (point["baseline"], point["ratio"], point["reason"]) == (None, None, f"baseline: {reason}")
    assert point["candidate"]["samples"]
    assert lab.model()["status"] == "partial"
    if fault == "exit":
        lab.run("--llmbench-require")
        assert lab.outcomes() == {FIRST: "passed", SECOND: "error", SAME: "error"}


def test_a_candidate_that_fails_where_the_baseline_does_too_is_an_error_live_and_replayed(lab: ParityLab) -> None:
    lab.sides(bad={"fault": "kill", "faulty_op": "generate"}, worse={"fault": "exit", "faulty_op": "generate"})
    lab.plan("decode", candidate="bad", baseline="worse", legacy_repeats=[1])
    lab.run().assert_outcomes(errors=2)
    assert lab.results()[FIRST]["reason"] == (
        "candidate: ended in generate: killed by SIGKILL: out of memory?; baseline: ended in generate: exit 3"
    )
    replay = lab.pytester.runpytest_subprocess("out/parity.json", "-k", "tok_s", *FEW_PLUGINS)
    replay.assert_outcomes(errors=1)


def test_a_side_that_fails_in_one_section_is_started_anew_for_the_next(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "kill", "faulty_op": "batch"})
    lab.plan("concurrency", "load", candidate="bad", concurrency={"levels": [1]})
    lab.run()
    outcomes = lab.outcomes()
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == {
        "test_parity[m-load-warm-model_ready_s]",
        "test_parity[m-load-warm-first_token_s]",
    }
    assert set(outcomes.values()) == {"passed", "error"}
    assert outcomes["test_batch_matches_solo[m-1]"] == "error"
    assert lab.model()["concurrency"][0]["matches_solo"] is None


def test_a_batch_without_anything_to_compare_it_with_is_an_error_and_no_other_output(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "exit", "faulty_op": "generate"})
    lab.plan("concurrency", candidate="bad", concurrency={"levels": [2]})
    lab.run()
    outcomes = lab.outcomes()
    assert outcomes.pop("test_batch_matches_solo[m-2]") == "error"
    assert set(outcomes.values()) == {"passed"}
    level = lab.model()["concurrency"][0]
    assert (level["matches_solo"], level["note"]) == (None, "candidate: stream 0 by itself: ended in generate: exit 3")
    assert lab.record()["summary"]["correctness_flags"] == []


@pytest.mark.parametrize("section", ["decode", "ttft", "memory", "load", "concurrency"])
@pytest.mark.parametrize("who", ["candidate", "baseline"])
def test_a_side_of_another_version_is_measured_in_no_section(lab: ParityLab, section: str, who: str) -> None:
    lab.sides(steady={}, other={"version": "2.0", "wanted": "3.0"})
    lab.plan(section, **{who: "other"})
    lab.run()
    reason = f"{who}: wrong version of scripted: 2.0, wanted is 3.0"
    expected = "error" if who == "candidate" else "skipped"
    outcomes = {name: outcome for name, outcome in lab.outcomes().items() if "solo" not in name}
    assert set(outcomes.values()) == {expected}
    assert all(reason in (lab.results()[name]["reason"] or "") for name in outcomes)
    assert lab.record()[who]["version"] == "unknown"
    assert lab.model()["status"] == "partial"
    assert reason in lab.model()["reason"]


def test_the_plan_s_version_of_the_baseline_is_the_only_one(lab: ParityLab) -> None:
    lab.plan("decode", head={"baseline_version": "0.9"})
    lab.run()
    assert set(lab.outcomes().values()) == {"skipped"}
    assert lab.results()[FIRST]["reason"] == "baseline: wrong version of scripted: 1.0, wanted is 0.9"
    lab.plan("decode", head={"baseline_version": "1.0"})
    lab.run()
    assert set(lab.outcomes().values()) == {"passed"}


def test_a_side_that_cant_be_started_isn_t_tried_at_every_point(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "exit", "faulty_op": "hello"})
    lab.plan("decode", candidate="bad")
    lab.run()
    assert set(lab.outcomes().values()) == {"error"}
    assert lab.results()[SECOND]["reason"].startswith("candidate: ended in hello: exit 3")
    assert len(lab.events("start")) == 2


def test_a_model_that_is_not_here_is_skipped_with_the_fix_and_the_next_one_is_measured(lab: ParityLab) -> None:
    lab.checkpoint("untold", tokenizer=False)
    models = [{"id": "gone", "path": "checkpoints/gone"}, {"id": "untold", "path": "untold"}, {"id": "here"}]
    lab.plan("decode", models=models, legacy_repeats=[1])
    result = lab.run("-k", "tok_s")
    assert lab.outcomes() == {
        "test_parity[gone-decode-r1-tok_s]": "skipped",
        "test_parity[untold-decode-r1-tok_s]": "error",
        "test_parity[here-decode-r1-tok_s]": "passed",
    }
    result.stdout.fnmatch_lines(["*no file or folder checkpoints/gone; fix: llmbench checkpoint tiny checkpoints"])
    result.stdout.fnmatch_lines(["*untold: no tokenizer that the plugin can read*"])
    assert [model["id"] for model in lab.record()["models"]] == ["here"]
    lab.run("-k", "tok_s", "--llmbench-require")
    assert lab.outcomes()["test_parity[gone-decode-r1-tok_s]"] == "error"


def test_a_metric_of_zero_has_no_ratio_and_costs_nothing_else(lab: ParityLab) -> None:
    lab.sides(steady={}, instant={"load_ms": 0}, silent={"peak_bytes": None})
    lab.plan("load", candidate="instant")
    lab.run()
    assert lab.outcomes() == {
        "test_parity[m-load-warm-model_ready_s]": "error",
        "test_parity[m-load-warm-first_token_s]": "passed",
    }
    assert "candidate: model_ready_s is 0, which gives no ratio" in lab.model()["reason"]
    lab.plan("memory", candidate="silent", memory={"prompt_tokens": [], "gated": ["os_peak_rss_bytes"]})
    lab.run()
    assert set(lab.outcomes().values()) <= {"passed", "failed"}
    assert lab.model()["memory"]["load"]["peak_bytes"]["reason"] == "candidate: can't tell peak_bytes"


def test_one_token_has_no_rate(lab: ParityLab) -> None:
    lab.plan("decode", max_tokens=1, legacy_repeats=[1])
    lab.run("-k", "tok_s")
    assert lab.outcomes() == {FIRST: "skipped"}
    assert lab.results()[FIRST]["reason"] == "both sides: can't tell tok_s"


def test_a_side_that_nobody_knows_is_a_collection_error_that_names_those_there_are(lab: ParityLab) -> None:
    lab.plan("decode", candidate="stedy")
    result = lab.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*plan.yaml: no side is called 'stedy'; did you mean 'steady'? known: engine, mlx-lm, steady*"]
    )
    assert "Traceback" not in result.stdout.str()
