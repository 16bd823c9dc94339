"""`--llmbench-list` shows what could run, and runs nothing."""

from __future__ import annotations

import pytest
from lab import Lab

MIXED = (
    {"id": "here", "quant": "4bit", "kv_cache": "kv8"},
    {"id": "gone", "extra_args": ["--absent", "brew install fakectl"], "prereq": "an account"},
    {"id": "off", "enabled": False, "reason": "loops for ever"},
)


def test_the_table_has_each_entry_once_and_the_fix(lab: Lab) -> None:
    lab.matrix(*MIXED, prompts=["short", "long"])
    result = lab.run("matrix.yaml", "--llmbench-list")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*llmbench: readiness*",
            "id * backend * model * quant * kv * ready *",
            "here * fake * fake/here * 4bit * kv8 * yes",
            "gone * fake * no * fakectl is not installed; fix: brew install fakectl (needs: an account)",
            "off * fake * off * disabled: loops for ever; to try it: enabled: true in matrix.yaml:*",
            "1/3 ready",
        ]
    )
    assert [event["what"] for event in lab.events()] == ["check", "check"]


def test_the_list_follows_the_selection(lab: Lab) -> None:
    lab.matrix(*MIXED)
    lab.run("matrix.yaml", "--llmbench-list", "-k", "gone").stdout.fnmatch_lines(["0/1 ready"])


def test_a_missing_requirement_is_listed(lab: Lab) -> None:
    lab.matrix({"id": "a", "requires": ["binary:no-such-program"]})
    lab.run("matrix.yaml", "--llmbench-list").stdout.fnmatch_lines(
        ["a *no-such-program is not on PATH; fix: install no-such-program", "0/1 ready"]
    )


def test_a_matrix_that_cannot_be_read_is_not_listed_as_if_it_were_empty(lab: Lab) -> None:
    (lab.path / "bad.yaml").write_text("tests: 3\n")
    result = lab.run("bad.yaml", "--llmbench-list")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "ready" not in result.stdout.str()


def test_the_list_is_the_same_with_workers(lab: Lab) -> None:
    lab.matrix(*MIXED)
    result = lab.spawn("matrix.yaml", "--llmbench-list", "-n2")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["1/3 ready"])


def test_users_tests_are_listed_by_their_entries(lab: Lab) -> None:
    lab.matrix(*MIXED)
    lab.ini("llmbench_matrix = matrix.yaml\n")
    lab.pytester.makepyfile("def test_it(llmbench_measurement): raise SystemExit\ndef test_other(): raise SystemExit")
    lab.run("--llmbench-list", "-k", "test_it").stdout.fnmatch_lines(["1/3 ready"])
