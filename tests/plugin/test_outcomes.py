"""Measured and good passes, measured and worse fails, not measured is an error, not available is skipped."""

from __future__ import annotations

import pytest
from lab import Lab, properties

ALL_KINDS = (
    {"id": "good", "gates": {"decode_tok_s": {"at_least": 40}, "ttft_s": {"at_most": 0.3}}},
    {"id": "slow", "gates": {"decode_tok_s": {"at_least": 60}, "ttft_s": {"at_most": 0.1}, "load_s": {"at_most": 9}}},
    {"id": "broken", "extra_args": ["--fail", "open"]},
    {"id": "mute", "extra_args": ["--fail", "stream"]},
    {"id": "odd", "extra_args": ["--fail", "invalid"]},
    {"id": "gone", "extra_args": ["--absent", "brew install fakectl"]},
    {"id": "off", "enabled": False, "reason": "loops for ever"},
    {"id": "known", "known_issue": "bug 42", "gates": {"decode_tok_s": {"at_least": 60}}},
    {"id": "fixed", "known_issue": "bug 43"},
)
OUTCOMES = {
    "good-short": "passed",
    "slow-short": "failed",
    "broken-short": "error",
    "mute-short": "error",
    "odd-short": "error",
    "gone-short": "skipped",
    "off-short": "skipped",
    "known-short": "xfailed",
    "fixed-short": "xpassed",
}


@pytest.fixture
def ran(lab: Lab) -> pytest.RunResult:
    """A run with one test of every outcome, its artefacts written."""
    lab.matrix(*ALL_KINDS, settings={"runs": 3})
    return lab.run("matrix.yaml", "-rA", "--llmbench-out=out", "--junitxml=junit.xml")


def test_every_kind_of_end_has_its_outcome(lab: Lab, ran: pytest.RunResult) -> None:
    ran.assert_outcomes(passed=1, failed=1, errors=3, skipped=2, xfailed=1, xpassed=1)
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    assert lab.outcomes() == OUTCOMES
    assert lab.opened() == ["good", "slow", "mute", "odd", "known", "fixed"]


def test_a_failure_names_metric_value_gate_and_number_of_runs_for_each_gate_that_failed(
    lab: Lab, ran: pytest.RunResult
) -> None:
    reason = next(r["reason"] for r in lab.run_json()["results"] if "slow" in r["nodeid"])
    assert reason.splitlines() == [
        "decode_tok_s failed: 50.0 tok/s, gate at least 60.0 tok/s, n = 3",
        "ttft_s failed: 250 ms, gate at most 100 ms, n = 3",
    ]
    ran.stdout.fnmatch_lines(reason.splitlines())


def test_an_error_says_what_happened_without_our_frames(ran: pytest.RunResult) -> None:
    ran.stdout.fnmatch_lines(["*ERROR at setup of test_throughput[[]broken-short[]]*", "fake: exited with 3 before*"])
    ran.stdout.fnmatch_lines(
        ["*ERROR at setup of test_throughput[[]mute-short[]]*", "fake: the connection was closed*"]
    )
    ran.stdout.fnmatch_lines(["*none of 3 runs is valid: the fake says so*"])
    ran.stdout.fnmatch_lines(["ERROR matrix.yaml::test_throughput[[]mute-short[]] - CouldNotMeasure: *"])
    ran.stdout.no_fnmatch_line("*Traceback*")
    ran.stdout.no_fnmatch_line("*fixtures.py:*Error*")


def test_a_skip_gives_the_reason_and_the_fix(ran: pytest.RunResult) -> None:
    ran.stdout.fnmatch_lines(["SKIPPED *fakectl is not installed; fix: brew install fakectl"])
    ran.stdout.fnmatch_lines(["SKIPPED *disabled: loops for ever"])


def test_require_makes_an_error_of_what_is_not_available_but_not_of_what_is_disabled(lab: Lab) -> None:
    lab.matrix(*(entry for entry in ALL_KINDS if entry["id"] in ("gone", "off")))
    result = lab.run("matrix.yaml", "--llmbench-require")
    result.assert_outcomes(errors=1, skipped=1)
    result.stdout.fnmatch_lines(["*fakectl is not installed; fix: brew install fakectl*"])


def test_junit_tells_failures_errors_and_skips_apart(lab: Lab, ran: pytest.RunResult) -> None:
    kinds = {
        name: next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        for name, case in lab.junit().items()
    }
    as_junit = {"xfailed": "skipped", "xpassed": "passed", "failed": "failure"}
    assert kinds == {name: as_junit.get(outcome, outcome) for name, outcome in OUTCOMES.items()}


def test_junit_carries_flat_properties_of_every_test(lab: Lab, ran: pytest.RunResult) -> None:
    for name, case in lab.junit().items():
        found = properties(case)
        assert found["llmbench.id"] == name.removesuffix("-short")
        assert all(key.startswith("llmbench.") for key in found)
    slow = properties(lab.junit()["slow-short"])
    assert slow["llmbench.backend"] == "fake"
    assert slow["llmbench.prompt"] == "short"
    assert float(slow["llmbench.decode_tok_s"]) == pytest.approx(50)
    assert slow["llmbench.decode_tok_s.gate"] == "60.0"
    assert slow["llmbench.decode_tok_s.outcome"] == "failed"
    assert slow["llmbench.load_s.outcome"] == "passed"
    assert list(slow) == list(dict.fromkeys(slow))


def test_an_error_in_the_middle_of_an_entry_is_raised_again_for_its_other_tests(lab: Lab) -> None:
    lab.matrix({"id": "a", "extra_args": ["--fail", "stream"]})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    lab.pytester.makepyfile("def test_one(llmbench_measurement): pass\ndef test_two(llmbench_measurement): pass")
    lab.run("-k", "one or two").assert_outcomes(errors=2)
    assert len(lab.events("stream")) == 1
    assert lab.opened() == ["a"]


def test_an_entry_that_did_not_open_is_not_tried_again_for_its_other_prompts(lab: Lab) -> None:
    lab.matrix({"id": "a", "extra_args": ["--fail", "open"]}, {"id": "b"}, prompts=["short", "long"])
    lab.run("matrix.yaml").assert_outcomes(errors=2, passed=2)
    assert lab.opened() == ["b"]


def test_a_gate_on_what_was_not_measured_is_an_error(lab: Lab) -> None:
    # One token: no decode rate.
    lab.matrix({"id": "a", "max_tokens": 1, "gates": {"decode_tok_s": {"at_least": 1}}})
    result = lab.run("matrix.yaml", "--llmbench-out=out")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["decode_tok_s wasn't measured (None)*"])
    assert lab.outcomes() == {"a-short": "error"}


def test_a_gate_at_the_very_value_passes(lab: Lab) -> None:
    lab.matrix({"id": "a", "gates": {"ttft_s": {"at_least": 0.25, "at_most": 0.25}}})
    lab.run("matrix.yaml").assert_outcomes(passed=1)


def test_what_was_measured_is_shown_in_a_table_for_each_prompt(lab: Lab) -> None:
    lab.matrix({"id": "a", "quant": "Q4", "kv_cache": "kv8"}, prompts=["short", "long"])
    result = lab.run("matrix.yaml")
    row = "a   fake     Q4     kv8  250 ms  125 ms       50.0          400.0          100/8          2.79 GiB"
    result.stdout.fnmatch_lines(["*llmbench: short*", "id *", row, "*llmbench: long*", "id *", row])


def test_a_figure_that_cannot_be_is_marked_and_explained(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    conftest = lab.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace("CACHED_TTFT_NS = 125_000_000", "CACHED_TTFT_NS = 500_000_000"))
    result = lab.run("matrix.yaml")
    result.stdout.fnmatch_lines(["a (!) *", "*suspect figures*", "*a new prompt's first token came after 0.25 s*"])


def test_quiet_errors_of_a_third_partys_backend_are_errors_too(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"})
    conftest = lab.path / "conftest.py"
    text = conftest.read_text().replace(
        'log("open", entry, runs', 'assert entry.id != "a", "a bug"\n        log("open", entry, runs'
    )
    conftest.write_text(text)
    lab.run("matrix.yaml").assert_outcomes(errors=1, passed=1)
    assert lab.opened() == ["b"]
