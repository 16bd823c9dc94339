"""run.json, journal.jsonl and junit say the same, are valid, and appear only when they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab import Lab

from pytest_llmbench import journal, record


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_without_the_option_no_file_is_written(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    before = files(lab.path)
    lab.spawn("matrix.yaml", "--basetemp", lab.path.parent / "elsewhere").assert_outcomes(passed=1)
    made = files(lab.path) - before - {"stdout", "stderr"}  # these two are pytester's
    assert {name for name in made if "__pycache__" not in name} == {"events.jsonl", "accelerator.lock"}


def test_with_it_run_and_journal_agree_and_can_be_read_back(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b", "extra_args": ["--fail", "open"]}, {"id": "c", "enabled": False})
    lab.run("matrix.yaml", "--llmbench-out=out")
    run = lab.run_json()
    assert run["results"] == lab.journal()
    assert run["complete"] is True
    assert files(lab.out) == {"run.json", "journal.jsonl"}
    again = record.read_run(lab.out / "run.json")
    kept = journal.read(lab.out / "journal.jsonl")
    assert again.results == kept.run.results
    assert kept.warning is None


def test_the_terminal_says_where_the_record_is(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.run("matrix.yaml", "--llmbench-out=out").stdout.fnmatch_lines([f"llmbench: wrote {lab.out}/run.json"])


@pytest.mark.parametrize(("name", "kept"), [("run.json", "report.md"), ("report.md", "run.json")])
def test_what_could_not_be_written_is_said_and_an_exit_status(lab: Lab, name: str, kept: str) -> None:
    lab.matrix({"id": "a"})
    (lab.out / name).mkdir(parents=True)
    result = lab.run("matrix.yaml", "--llmbench-out=out", "--llmbench-report=md")
    assert result.ret == 6
    result.stdout.fnmatch_lines(["llmbench: warning: * couldn't be written (*)", f"llmbench: wrote {lab.out}/{kept}"])


def test_the_record_holds_samples_settings_environment_and_options(lab: Lab) -> None:
    lab.matrix({"id": "a", "quant": "Q4", "group": "G"}, settings={"runs": 2, "warmup": 1})
    lab.run("matrix.yaml", "--llmbench-out=out", "--llmbench-gate=0.9")
    run = lab.run_json()
    (result,) = run["results"]
    assert result["entry"]["quant"] == "Q4"
    assert (len(result["measurement"]["samples"]), len(result["measurement"]["warmups"])) == (2, 1)
    assert result["measurement"]["metrics"]["decode_tok_s"] == pytest.approx(50)
    assert run["options"]["gate"] == 0.9
    assert run["environment"]["fingerprint"]


def test_secrets_of_an_entry_reach_no_artefact(lab: Lab) -> None:
    lab.matrix(
        {"id": "a", "api_key": "sk-very-secret", "env": {"HF_TOKEN": "hf-very-secret"}},
        {"id": "b", "api_key": "sk-very-secret", "extra_args": ["--fail", "open"]},
    )
    result = lab.run("matrix.yaml", "--llmbench-out=out", "--junitxml=junit.xml", "-vv")
    written = "".join(path.read_text() for path in (*lab.out.rglob("*.json*"), lab.path / "junit.xml"))
    assert "very-secret" not in written + result.stdout.str()


def test_hooks_may_change_environment_and_record(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    with (lab.path / "conftest.py").open("a") as file:
        file.write(
            "\n\ndef pytest_llmbench_update_environment(environment):\n    environment['rack'] = 'b7'\n"
            "\n\ndef pytest_llmbench_update_record(record):\n    record['environment']['room'] = 3\n"
        )
    lab.run("matrix.yaml", "--llmbench-out=out").assert_outcomes(passed=1)
    run = json.loads((lab.out / "run.json").read_text())
    assert (run["environment"]["rack"], run["environment"]["room"]) == ("b7", 3)
    head = json.loads((lab.out / "journal.jsonl").read_text().splitlines()[0])
    assert head["environment"]["rack"] == "b7"


def test_a_new_run_starts_a_new_journal_and_keeps_the_old_one_beside_it(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"})
    lab.run("matrix.yaml", "--llmbench-out=out", "-k", "a-short")
    lab.run("matrix.yaml", "--llmbench-out=out", "-k", "b-short")
    assert [result["entry"]["id"] for result in lab.journal()] == ["b"]
    old = journal.read(lab.out / "journal.previous.jsonl").run
    assert [result.nodeid for result in old.results] == ["matrix.yaml::test_throughput[a-short]"]


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n1")], ids=["alone", "worker"])
def test_a_selection_of_nothing_leaves_an_earlier_run_as_it_is(lab: Lab, workers: tuple[str, ...]) -> None:
    lab.matrix({"id": "a"})
    lab.run("matrix.yaml", "--llmbench-out=out")
    earlier = lab.run_json()
    done = lab.spawn("matrix.yaml", "--llmbench-out=out", "-k", "mistyped", *workers)
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert lab.run_json() == earlier


def test_a_tests_duration_includes_its_measurement(lab: Lab) -> None:
    lab.matrix({"id": "a", "extra_args": ["--sleep", "0.1"]})
    lab.run("matrix.yaml", "--llmbench-out=out")
    (result,) = lab.run_json()["results"]
    assert result["duration_s"] >= 3 * 0.1  # one run and two cached ones


def test_a_test_that_changes_the_working_directory_moves_no_artefact(lab: Lab, tmp_path: Path) -> None:
    lab.matrix({"id": "a"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    lab.pytester.makepyfile(
        f"def test_it(llmbench_measurement, monkeypatch):\n    import os\n    os.chdir({str(tmp_path)!r})\n"
    )
    lab.run("-k", "test_it", "--llmbench-out=out").assert_outcomes(passed=1)
    assert lab.outcomes() == {"a-short": "passed"}


def test_a_run_that_was_stopped_is_not_complete(lab: Lab) -> None:
    lab.matrix({"id": "a", "extra_args": ["--fail", "open"]}, {"id": "b"})
    lab.run("matrix.yaml", "--llmbench-out=out", "-x")
    assert lab.run_json()["complete"] is False
    assert lab.outcomes() == {"a-short": "error"}


def test_a_failing_teardown_makes_the_test_an_error(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    conftest = lab.path / "conftest.py"
    conftest.write_text(conftest.read_text().replace('log("close", entry)', 'raise RuntimeError("will not stop")'))
    result = lab.run("matrix.yaml", "--llmbench-out=out")
    result.assert_outcomes(passed=1, errors=1)
    assert lab.outcomes() == {"a-short": "error"}
    (found,) = lab.run_json()["results"]
    assert "will not stop" in found["reason"]
    assert found["measurement"] is not None


def test_of_a_long_traceback_the_end_is_kept(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    lab.pytester.makepyfile(
        "def test_it(llmbench_entry):\n" + "    # a line\n" * 500 + "    assert False, 'the point of it'\n"
    )
    lab.run("-k", "test_it", "--llmbench-out=out").assert_outcomes(failed=1)
    (found,) = lab.run_json()["results"]
    assert "the point of it" in found["reason"]


def test_an_unusable_folder_is_refused_before_anything_is_measured(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    (lab.path / "taken").write_text("a file")
    result = lab.run("matrix.yaml", "--llmbench-out=taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llmbench-out *taken: can't be written to*"])
    assert lab.opened() == []


def test_a_junit_file_that_cant_be_written_costs_no_record(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    (lab.path / "taken").write_text("a file")
    lab.run("matrix.yaml", "--llmbench-out=out", "--junitxml=taken/junit.xml")
    assert lab.run_json()["complete"] is True


def test_the_journal_is_there_before_the_first_result(lab: Lab) -> None:
    lab.matrix({"id": "a", "extra_args": ["--broken", "broken"]})
    (lab.path / "broken").touch()
    lab.run("matrix.yaml", "--llmbench-out=out")
    assert (lab.out / "journal.jsonl").read_text().startswith('{"schema": "llmbench-run"')
