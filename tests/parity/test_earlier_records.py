"""A run's folder has no record but its own: an earlier run's is kept under another name, and never lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from parity_kit import ParityLab

PREVIOUS = "parity.json.previous"
WORKERS = pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "workers"])


def plan(lab: ParityLab, model: str, name: str = "plan.yaml", **facts: Any) -> Path:
    return lab.plan(models=[{"id": f"org/{model}", "sections": ["decode"], **facts}], name=name)


def models(lab: ParityLab) -> dict[str, str]:
    """Of each file that begins like a record, the model."""
    files = sorted(lab.out.glob("parity*"))
    return {path.name: json.loads(path.read_text(encoding="utf-8"))["models"][0]["id"] for path in files}


@WORKERS
def test_a_run_that_measures_nothing_has_no_record(lab: ParityLab, workers: tuple[str, ...]) -> None:
    plan(lab, "a")
    lab.run("-k", "tok_s").assert_outcomes(passed=2)
    lab.run("-k", "nothing", *workers)
    assert models(lab) == {"parity.json": "org/a"}, "nothing was selected: there was no other run"
    plan(lab, "b", path="gone")
    lab.run("-k", "tok_s", *workers).assert_outcomes(skipped=2)
    assert models(lab) == {PREVIOUS: "org/a"}


@WORKERS
def test_so_it_is_where_tests_outside_the_plan_run_over_it(lab: ParityLab, workers: tuple[str, ...]) -> None:
    plan(lab, "a")
    lab.run("-k", "tok_s")
    plan(lab, "b", path="gone")
    lab.pytester.makepyfile(test_mine="def test_it(llmbench_section): pass")
    lab.run("test_mine.py", "--llmbench-matrix=plan.yaml", *workers)
    assert models(lab) == {PREVIOUS: "org/a"}


@WORKERS
def test_a_plan_of_which_nothing_is_selected_keeps_its_record(lab: ParityLab, workers: tuple[str, ...]) -> None:
    plan(lab, "a")
    plan(lab, "b", "b.yaml")
    lab.run("plan.yaml", "b.yaml", "-k", "tok_s")
    both = {"parity.json": "org/a", "parity_b.json": "org/b"}
    assert models(lab) == both
    lab.run("plan.yaml", "b.yaml", "-k", "tok_s and a-", *workers)
    assert models(lab) == both | {PREVIOUS: "org/a"}


def test_the_record_of_a_plan_is_found_whatever_place_it_had(lab: ParityLab) -> None:
    plan(lab, "a")
    plan(lab, "b", "b.yaml")
    lab.run("plan.yaml", "b.yaml", "-k", "tok_s")
    plan(lab, "c", "b.yaml", path="gone")
    lab.run("b.yaml", "-k", "tok_s")
    assert models(lab) == {PREVIOUS: "org/a", "parity_b.json.previous": "org/b"}


def test_a_test_that_reports_twice_moves_no_record_of_its_own_run(lab: ParityLab) -> None:
    plan(lab, "a")
    lab.run("-k", "decode-r1-tok_s")
    fixture = "\nimport pytest\n@pytest.fixture(autouse=True)\ndef late():\n    yield\n    raise OSError\n"
    (lab.path / "conftest.py").write_text((lab.path / "conftest.py").read_text() + fixture)
    plan(lab, "b")
    lab.run("-k", "decode-r1-tok_s", "-n1").assert_outcomes(passed=1, errors=1)
    assert models(lab) == {"parity.json": "org/b", PREVIOUS: "org/a"}


def test_a_run_that_goes_on_keeps_no_record_of_an_earlier_one_as_its_own(lab: ParityLab) -> None:
    """With workers it may have been killed before the first result, and the earlier record be where it was."""
    plan(lab, "a")
    lab.run("-k", "tok_s")
    earlier = (lab.out / "parity.json").read_bytes()
    plan(lab, "b", path="gone")
    lab.run("-k", "tok_s")
    (lab.out / "parity.json").write_bytes(earlier)
    (lab.out / PREVIOUS).unlink()
    plan(lab, "b")
    lab.run("-k", "tok_s", "--llmbench-resume=out").assert_outcomes(passed=2)
    assert models(lab) == {"parity.json": "org/b", PREVIOUS: "org/a"}


def test_a_run_resumed_into_another_folder_mixes_with_nothing_there(lab: ParityLab) -> None:
    plan(lab, "old")
    lab.run("-k", "tok_s")
    plan(lab, "new")
    lab.run("-k", "tok_s", "--llmbench-out=first")
    lab.run("-k", "tok_s", "--llmbench-resume=first", "--llmbench-out=out")
    assert models(lab) == {"parity.json": "org/new", PREVIOUS: "org/old"}
    lines = (lab.out / "journal.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    assert {json.loads(line)["nodeid"].partition("[")[2][:3] for line in lines} == {"new"}
