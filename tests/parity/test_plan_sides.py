"""A plan may say itself how its sides are started: an engine in any language is measured without a line of Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from parity_kit import SIDE, ParityLab

DECODE = "test_parity[m-decode-r1-tok_s]"


def executable(lab: ParityLab, name: str, **script: object) -> Path:
    """A program beside the plan, as a build leaves one."""
    path = lab.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-I", "-S", str(SIDE), json.dumps({"log": str(lab.log), **script})]
    path.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_program_beside_the_plan_is_a_side_wherever_pytest_is_started(
    lab: ParityLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(lab, "target/release/side", token_ms=[2.0], version="1.2")
    own = {"mine": {"command": ["./target/release/side"], "version": "1.2"}}
    plan = lab.plan("decode", candidate="mine", top={"sides": own}, legacy_repeats=[1])
    (lab.path / "elsewhere").mkdir()
    monkeypatch.chdir(lab.path / "elsewhere")
    lab.run("-k", "tok_s", plan, f"--llmbench-out={lab.out}").assert_outcomes(passed=0, failed=1)
    assert lab.model()["decode"][0]["tok_s"]["ratio"] == pytest.approx(0.5)
    assert lab.record()["candidate"] == {"name": "mine", "version": "1.2", "facts": {"library": "2.1", "fast": True}}


def test_its_arguments_and_its_environment_are_the_plan_s(lab: ParityLab) -> None:
    script = {"log": "unused", "token_ms": [4.0]}
    program = (
        "import json, os, runpy, sys\n"
        f"sys.argv = ['side', json.dumps({script!r} | {{'log': os.environ['SIDE_LOG'], 'version': sys.argv[1]}})]\n"
        f"runpy.run_path({str(SIDE)!r}, run_name='__main__')\n"
    )
    (lab.path / "side.py").write_text(program, encoding="utf-8")
    side = {"command": f"{sys.executable} -I -S {lab.path / 'side.py'} 0.7", "env": {"SIDE_LOG": str(lab.log)}}
    lab.plan("decode", candidate="mine", baseline="mine", top={"sides": {"mine": side}}, legacy_repeats=[1])
    lab.run("-k", "tok_s").assert_outcomes(passed=1)
    assert {event["version"] for event in lab.events("start")} == {"0.7"}


def test_the_plan_s_own_side_is_taken_before_a_registered_or_a_built_in_one(lab: ParityLab) -> None:
    own = {name: {"command": lab.command({"token_ms": [ms]})} for name, ms in (("steady", 3.0), ("engine", 6.0))}
    lab.plan("decode", candidate="steady", baseline="engine", top={"sides": own}, legacy_repeats=[1])
    lab.run("-k", "tok_s").assert_outcomes(passed=1)
    assert lab.model()["decode"][0]["tok_s"]["ratio"] == pytest.approx(2)


def test_another_version_than_the_plan_says_is_not_measured(lab: ParityLab) -> None:
    own = {"mine": {"command": lab.command({}), "version": "1.2"}}
    lab.plan("decode", candidate="mine", top={"sides": own}, legacy_repeats=[1])
    lab.run("-k", "tok_s")
    assert lab.outcomes() == {DECODE: "error"}
    assert "wrong version of scripted: 1.0, wanted is 1.2" in lab.results()[DECODE]["reason"]


def test_a_program_that_isn_t_there_is_an_error_with_its_name(lab: ParityLab) -> None:
    lab.plan("decode", candidate="mine", top={"sides": {"mine": {"command": "target/side"}}}, legacy_repeats=[1])
    lab.run("-k", "tok_s")
    assert lab.outcomes() == {DECODE: "error"}
    assert "candidate: couldn't be started: " in lab.results()[DECODE]["reason"]
    assert str(lab.path / "target/side") in lab.results()[DECODE]["reason"]


def test_a_side_that_the_plan_starts_otherwise_is_measured_again_by_a_resumed_run(lab: ParityLab) -> None:
    for script, passed, skipped in (({}, 1, 0), ({}, 0, 1), ({"token_ms": [0.5]}, 1, 0)):
        own = {"mine": {"command": lab.command(script), "env": {"A_TOKEN": "hidden-from-all"}}}
        lab.plan("decode", candidate="mine", top={"sides": own}, legacy_repeats=[1])
        resumed = ["--llmbench-resume=out"] if lab.out.exists() else []
        lab.run("-k", "tok_s", *resumed).assert_outcomes(passed=passed, skipped=skipped)
    written = "".join(path.read_text() for path in lab.out.rglob("*") if path.is_file())
    assert "hidden-from-all" not in written


def test_the_list_of_what_is_ready_names_a_program_that_is_not_there(lab: ParityLab) -> None:
    executable(lab, "here")
    for name, ready in (("here", "1/1 ready"), ("gone", "0/1 ready")):
        lab.plan("decode", candidate="mine", top={"sides": {"mine": {"command": [f"./{name}"]}}})
        lab.run("--llmbench-list").stdout.fnmatch_lines([ready])
    lab.run("--llmbench-list").stdout.fnmatch_lines(
        [f"m*mine vs steady*no*{lab.path}/gone: no program that can be run; correct `sides` in plan.yaml*"]
    )
