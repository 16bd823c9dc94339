"""The record of a live run: written as it goes, whole after a resume, by the controller alone, replayed as it was."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
from parity_kit import ParityLab, parity_name

from pytest_llmbench.parity_writer import record_name

WAVERING = {"token_ms": [1.0, 1.1, 0.9]}
ALL = ("decode", "ttft", "memory", "load", "concurrency")


def killed_in(lab: ParityLab, op: str, *args: str) -> None:
    """Run until a side is asked `op`, then SIGKILL pytest."""
    process = lab.start("--llmbench-out=out", *args)
    try:
        deadline = time.monotonic() + 120
        while not lab.events(op):
            assert process.poll() is None, (lab.path / "log.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def killed(lab: ParityLab) -> ParityLab:
    """A run of decode and concurrency that was killed in the second, whose batches take for ever."""
    lab.sides(steady={"fault": "hang", "faulty_op": "batch"})
    lab.plan("decode", "concurrency")
    killed_in(lab, "batch")
    lab.sides(steady={})
    lab.forget()
    return lab


def test_after_a_kill_the_sections_that_were_measured_are_in_a_valid_record(killed: ParityLab) -> None:
    assert killed.record()["sections"] == ["decode"]
    model = killed.model()
    assert (model["status"], model["reason"]) == ("partial", "not measured: concurrency")
    assert [point["tok_s"]["ratio"] for point in model["decode"]] == [1, 1]


def test_a_resumed_run_measures_the_rest_and_its_record_has_both(killed: ParityLab) -> None:
    result = killed.run("--llmbench-resume=out")
    assert killed.record()["sections"] == ["decode", "concurrency"]
    assert killed.model()["status"] == "ok"
    assert set(killed.outcomes().values()) == {"passed"}
    assert result.parseoutcomes() == {"skipped": 3, "passed": 8}
    assert {event["prompt"] for event in killed.events("generate")} == {16}, "only streams of the batch, by themselves"


def test_a_section_is_measured_again_as_a_whole_if_one_of_its_tests_is_still_to_do(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "exit", "from_prompt_tokens": 90})
    lab.plan("decode", "load", candidate="bad")
    lab.run()
    assert lab.outcomes()["test_parity[m-decode-r4-tok_s]"] == "error"
    lab.sides(steady={}, bad={})
    lab.run("--llmbench-resume=out").assert_outcomes(passed=3, skipped=2)
    assert set(lab.outcomes().values()) == {"passed"}
    assert lab.model()["status"] == "ok"


def test_what_could_not_be_measured_is_not_tried_again(lab: ParityLab) -> None:
    lab.sides(steady={}, bad={"fault": "exit", "from_prompt_tokens": 90})
    lab.plan("decode", "load", baseline="bad")
    lab.run()
    before = lab.outcomes()
    assert before["test_parity[m-decode-r4-tok_s]"] == "skipped"
    lab.forget()
    result = lab.run("--llmbench-resume=out")
    assert lab.outcomes() == before
    assert not lab.events()
    result.stdout.fnmatch_lines(["*already done in the resumed run: baseline: ended in generate: exit 3"])
    assert lab.model()["decode"][1]["tok_s"]["reason"] == "baseline: ended in generate: exit 3"


@pytest.mark.parametrize(
    "changed",
    [
        {"max_tokens": 9},
        {"gates": {"gate": 0.5}},
        {"candidate": "other"},
        {"models": [{"id": "org/m", "sections": ["decode"], "path": "weights2"}]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_plan_that_changed_is_measured_again(lab: ParityLab, changed: dict[str, object]) -> None:
    lab.checkpoint("weights2")
    lab.sides(steady={}, other={})
    lab.plan("decode")
    lab.run().assert_outcomes(passed=3)
    lab.run("--llmbench-resume=out").assert_outcomes(skipped=3)
    lab.plan("decode", **changed)  # type: ignore[arg-type]
    lab.forget()
    lab.run("--llmbench-resume=out").assert_outcomes(passed=3)
    assert len(lab.events("start")) == 2


def test_a_checkpoint_that_was_replaced_in_its_place_is_measured_again(lab: ParityLab) -> None:
    lab.plan("decode")
    lab.run().assert_outcomes(passed=3)
    lab.forget()
    lab.run("--llmbench-resume=out").assert_outcomes(skipped=3)
    (lab.path / "weights" / "model.safetensors").write_bytes(b"retrain" * 1000)
    lab.run("--llmbench-resume=out").assert_outcomes(passed=3)
    assert len(lab.events("start")) == 2
    shutil.rmtree(lab.path / "weights")
    lab.run("--llmbench-resume=out").assert_outcomes(skipped=3)


NEW: dict[str, dict[str, object]] = {"version": {"version": "1.1"}, "library": {"facts": {"library": "2.2"}}}


@pytest.mark.parametrize("who", ["candidate", "baseline"])
@pytest.mark.parametrize("name", NEW)
def test_readings_of_two_versions_of_a_side_are_never_in_one_record(lab: ParityLab, name: str, who: str) -> None:
    lab.sides(steady={}, mine={})
    lab.plan("decode", "load", **{who: "mine"})
    lab.run("-k", "section:decode").assert_outcomes(passed=3)
    lab.sides(steady={}, mine=NEW[name])
    result = lab.run("--llmbench-resume=out")
    result.assert_outcomes(skipped=3, errors=2)
    then, now = ("1.0", "1.1") if name == "version" else ("2.1", "2.2")
    result.stdout.fnmatch_lines(
        [f"{who}: not the side that *: {name} {now} (was {then}); have the same one again, or *"]
    )
    assert lab.record()["sections"] == ["decode"]
    lab.sides(steady={}, mine={})
    lab.run("--llmbench-resume=out").assert_outcomes(skipped=3, passed=2)


def test_another_version_may_be_measured_where_nothing_of_the_old_one_stays(lab: ParityLab) -> None:
    lab.sides(steady={}, mine={"fault": "exit"})
    lab.plan("decode", candidate="mine")
    lab.run().assert_outcomes(errors=3)
    lab.sides(steady={}, mine={"version": "1.1", "facts": {"free": 7}})
    lab.run("--llmbench-resume=out").assert_outcomes(passed=3)
    assert lab.record()["candidate"]["version"] == "1.1"


def damaged(lab: ParityLab, damage: Callable[[dict[str, Any]], object]) -> pytest.RunResult:
    """A finished run, continued after somebody changed the section in its journal."""
    lab.plan("decode")
    lab.run().assert_outcomes(passed=3)
    path = lab.out / "journal.jsonl"
    head, first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    data = json.loads(first)
    damage(data["parity"])
    path.write_text("".join([head, json.dumps(data) + "\n", *rest]), encoding="utf-8")
    return lab.run("--llmbench-resume=out")


@pytest.mark.parametrize("part", ["plan", "settings", "asked", "model", "sides", "points"])
def test_a_section_that_lost_a_part_in_the_journal_is_told_by_name(lab: ParityLab, part: str) -> None:
    result = damaged(lab, lambda section: section.pop(part))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*journal.jsonl: parity of plan.yaml::*: missing key '{part}'*"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"section": "speed"}, "sections: is an empty array"),
        ({"points": [{"repeats": "many"}]}, "models[[]0].decode[[]0].repeats: expected a whole number"),
        ({"points": 3}, "models[[]0].decode: expected an array"),
        ({"settings": {"gates": {"gate": "high"}}}, "settings.gates.gate: expected a number"),
        ({"complete": "yes"}, "complete: expected true or false"),
        ({"model": {"id": 7, "sections": []}}, "model.id: expected a string"),
        ({"model": {"id": "a", "sections": 7}}, "model.sections: expected an array"),
    ],
)
def test_a_section_that_makes_no_record_is_told_by_name(lab: ParityLab, change: dict[str, Any], said: str) -> None:
    result = damaged(lab, lambda section: section.update(change))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*journal.jsonl: parity of plan.yaml::*.{said}*"])


def test_a_section_that_a_resumed_run_leaves_out_stays_in_its_record_wherever_that_is(lab: ParityLab) -> None:
    lab.plan("decode", "load")
    lab.run("-k", "section:decode", "--llmbench-out=first").assert_outcomes(passed=3)
    lab.run("-k", "section:load", "--llmbench-resume=first", "--llmbench-out=out").assert_outcomes(passed=2)
    assert lab.record()["sections"] == ["decode", "load"]
    assert lab.model()["status"] == "ok"


def test_a_record_is_replayed_to_the_outcomes_of_its_run(lab: ParityLab) -> None:
    lab.sides(
        steady={},
        mixed=WAVERING | {"load_ms": 5.5, "fault": "exit", "faulty_op": "batch", "from_prompt_tokens": 16},
        blind={"fault": "memory", "from_prompt_tokens": 60},
    )
    lab.plan(
        *ALL, candidate="mixed", baseline="blind", verdict="interval", runs_per_pass=5, max_rounds=6,
        gates={"gate": 0.97}, memory={"prompt_tokens": [], "gated": ["peak_bytes"]},
    )  # fmt: skip
    lab.run("-k", "test_parity")
    live = {parity_name(test): (r["outcome"], r["verdicts"]) for test, r in lab.results().items()}
    assert {outcome for outcome, _ in live.values()} == {"passed", "failed", "error", "skipped"}
    assert "inconclusive" in {v["outcome"] for _, verdicts in live.values() for v in verdicts}
    lab.run("out/parity.json", "--llmbench-out=again")
    lab.out = lab.path / "again"
    assert {parity_name(test): (r["outcome"], r["verdicts"]) for test, r in lab.results().items()} == live


def test_another_gate_is_given_to_a_replay_by_its_option(lab: ParityLab) -> None:
    lab.sides(steady={}, slower={"token_ms": [1.05]})
    lab.plan("decode", candidate="slower", gates={"gate": 0.9})
    lab.run("-k", "tok_s").assert_outcomes(passed=2)
    lab.run("out/parity.json", "--llmbench-out=again").assert_outcomes(passed=2)
    lab.run("out/parity.json", "--llmbench-out=again", "--llmbench-gate=0.98").assert_outcomes(failed=2)


def test_with_workers_the_controller_writes_the_record_once(lab: ParityLab) -> None:
    lab.plan("decode", "load")
    result = lab.run("-n2")
    result.assert_outcomes(passed=5)
    assert len(lab.events("start")) == 2 + 4, "each section is measured by one worker"
    assert lab.record()["sections"] == ["decode", "load"]
    assert lab.model()["status"] == "ok"
    result.stdout.fnmatch_lines(["*llmbench: parity.json*", "4 gated results, 0 below gate 0.98, 0 not measured"])
    assert sorted(path.name for path in lab.out.glob("parity*")) == ["parity.json"]


def test_each_of_two_plans_has_a_record(lab: ParityLab) -> None:
    lab.plan("decode", models=[{"id": "one", "sections": ["decode"]}])
    lab.plan("decode", models=[{"id": "two", "sections": ["decode"]}], name="second.yaml")
    lab.run("plan.yaml", "second.yaml", "-k", "tok_s").assert_outcomes(passed=4)
    assert [lab.record(name)["models"][0]["id"] for name in ("parity.json", "parity_second.json")] == ["one", "two"]


def test_plans_of_one_name_in_several_folders_have_a_record_each(lab: ParityLab) -> None:
    for name in ("a", "b", "c"):
        (lab.path / name).mkdir()
        lab.plan(
            models=[{"id": name, "sections": ["decode"], "path": str(lab.path / "weights")}], name=f"{name}/p.yaml"
        )
    lab.run("a/p.yaml", "b/p.yaml", "c/p.yaml", "-k", "decode-r1").assert_outcomes(passed=3)
    names = ("parity.json", "parity_p.json", "parity_p_2.json")
    assert [lab.record(name)["models"][0]["id"] for name in names] == ["a", "b", "c"]


def test_no_two_plans_have_a_record_of_one_name() -> None:
    plans = ["x.yaml", "1/a.yaml", "2/a.yaml", "a_2.yaml", "3/a.yaml"]
    wanted = ["parity.json", "parity_a.json", "parity_a_2.json", "parity_a_2_2.json", "parity_a_3.json"]
    assert [record_name(plan, plans) for plan in plans] == wanted


def test_the_head_says_who_was_measured(lab: ParityLab) -> None:
    lab.plan("decode", models=[{"id": "org/m", "sections": ["decode"], "synthetic": True}])
    lab.run("-k", "tok_s")
    record = lab.record()
    facts = {"library": "2.1", "fast": True}
    assert record["candidate"] == record["baseline"] == {"name": "steady", "version": "1.0", "facts": facts}
    assert record["models"][0]["synthetic"] is True
    assert record["settings"]["gates"] == {"gate": 0.98, "goal": 1.0}
