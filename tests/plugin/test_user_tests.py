"""A user's own tests in any repository, through the fixtures."""

from __future__ import annotations

import re

import pytest
from lab import ROOT, Lab, properties


@pytest.fixture
def repo(lab: Lab) -> Lab:
    """A repository with a matrix of two backends' entries, named in its ini file."""
    lab.matrix(
        {"id": "quick", "extra_args": ["--rate", "50"], "quant": "4bit"},
        {"id": "slow", "extra_args": ["--rate", "30"], "quant": "8bit"},
        {"id": "other", "backend": "ollama", "model_id": "x:1"},
        name="bench/matrix.yaml",
    )
    lab.ini("llmbench_matrix = bench\nmarkers = net\n")
    return lab


def write(lab: Lab, text: str) -> None:
    (lab.path / "test_mine.py").write_text("import pytest\n" + text)


def test_a_gate_in_a_users_test_passes_and_fails_by_entry(repo: Lab) -> None:
    write(
        repo,
        'def test_fast_enough(llmbench_measurement, llmbench_gate):\n    llmbench_gate("decode_tok_s", at_least=40)\n',
    )
    result = repo.run("test_mine.py")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["*test_fast_enough[[]slow-short[]]*", "decode_tok_s failed: 30.0 tok/s, gate at least 40.0 tok/s, n = 1"]
    )
    assert repo.opened() == ["quick", "slow"]


def test_a_gate_gives_its_verdict_back(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(id="quick")\n'
        "def test_it(llmbench_measurement, llmbench_gate):\n"
        '    found = llmbench_gate("ttft_s", at_most=1)\n'
        "    assert (found.passed, found.value, found.gate, found.n) == (True, 0.25, 1, 1)\n",
    )
    repo.run("test_mine.py").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("filters", "nodes"),
    [
        ('backend="fake"', ["quick-short", "slow-short"]),
        ('backend="ollama"', ["other-short"]),
        ('quant="8bit"', ["slow-short"]),
        ('id="quick", backend="fake"', ["quick-short"]),
    ],
)
def test_the_marker_chooses_entries(repo: Lab, filters: str, nodes: list[str]) -> None:
    write(repo, f"@pytest.mark.llmbench({filters})\ndef test_it(llmbench_measurement): pass\n")
    assert [item.name for item in repo.select("test_mine.py")] == [f"test_it[{node}]" for node in nodes]


def test_the_marker_chooses_a_prompt(repo: Lab) -> None:
    repo.matrix({"id": "a"}, {"id": "b"}, name="bench/matrix.yaml", prompts=["short", "long"])
    write(repo, '@pytest.mark.llmbench(prompt="long", id="b")\ndef test_it(llmbench_measurement): pass\n')
    assert [item.name for item in repo.select("test_mine.py")] == ["test_it[b-long]"]


def test_markers_of_module_class_and_function_add_up(repo: Lab) -> None:
    write(
        repo,
        'pytestmark = pytest.mark.llmbench(backend="fake")\n'
        '@pytest.mark.llmbench(quant="4bit")\nclass TestIt:\n    def test_it(self, llmbench_measurement): pass\n',
    )
    assert [item.name for item in repo.select("test_mine.py")] == ["test_it[quick-short]"]


@pytest.mark.parametrize("arguments", ['backnd="fake"', '"fake"'])
def test_a_marker_argument_that_means_nothing_is_a_collection_error(repo: Lab, arguments: str) -> None:
    write(repo, f"@pytest.mark.llmbench({arguments})\ndef test_it(llmbench_measurement): pass\n")
    result = repo.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_mine.py::test_it: the marker llmbench takes the keywords id, backend, *"])


def test_no_matrix_at_all_is_a_collection_error_that_says_how_to_name_one(lab: Lab) -> None:
    write(lab, "def test_it(llmbench_measurement): pass\n")
    result = lab.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no matrix to run over: name a file with --llmbench-matrix or *llmbench_matrix*"])


def test_a_matrix_that_is_gone_is_named(lab: Lab) -> None:
    lab.ini("llmbench_matrix = gone\n")
    write(lab, "def test_it(llmbench_measurement): pass\n")
    lab.run("test_mine.py").stdout.fnmatch_lines(["*gone: no such matrix file or folder*"])


def test_the_option_replaces_the_matrix_for_users_tests_too(repo: Lab) -> None:
    repo.matrix({"id": "extra"}, name="extra.yaml")
    write(repo, "def test_it(llmbench_measurement): pass\n")
    items = repo.select("test_mine.py", "--llmbench-matrix=extra.yaml")
    assert [item.name for item in items] == ["test_it[extra-short]"]


def test_parametrize_multiplies_with_entries(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(backend="fake")\n'
        '@pytest.mark.parametrize("limit", [10, 40])\n'
        "def test_it(llmbench_measurement, llmbench_gate, limit):\n"
        '    llmbench_gate("decode_tok_s", at_least=limit)\n',
    )
    repo.run("test_mine.py").assert_outcomes(passed=3, failed=1)
    assert repo.opened() == ["quick", "slow"]
    assert sum(not event["cached"] for event in repo.events("stream")) == 2


def test_a_test_without_a_prompt_runs_once_an_entry_and_measures_nothing(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(backend="fake")\n'
        "def test_server(llmbench_server, llmbench_entry):\n"
        '    assert llmbench_server.base_url == "http://127.0.0.1:1/v1"\n'
        "    assert llmbench_server.model == llmbench_entry.model_id\n"
        "    assert llmbench_server.pid > 0\n",
    )
    repo.run("test_mine.py").assert_outcomes(passed=2)
    assert repo.opened() == ["quick", "slow"]
    assert repo.events("stream") == []


def test_options_accelerator_and_out_are_fixtures(repo: Lab) -> None:
    write(
        repo,
        "import dataclasses\n"
        "def test_options(llmbench_options):\n"
        "    assert llmbench_options.runs == 7\n"
        "    with pytest.raises(dataclasses.FrozenInstanceError):\n"
        "        llmbench_options.runs = 1\n"
        "def test_accelerator(llmbench_accelerator):\n"
        "    with llmbench_accelerator.hold(print):\n"
        "        pass\n"
        "def test_out(llmbench_out):\n"
        '    (llmbench_out / "mine.txt").write_text("x")\n',
    )
    repo.run("test_mine.py", "--llmbench-runs=7", "--llmbench-out=out").assert_outcomes(passed=3)
    assert (repo.out / "mine.txt").exists()
    repo.run("test_mine.py", "--llmbench-runs=7").assert_outcomes(passed=3)
    assert [path.name for path in repo.out.iterdir()] == ["mine.txt"]


def test_a_test_of_the_users_own_gets_the_accelerator_behind_an_entry_and_within_one(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(id="quick")\n'
        "def test_within(llmbench_measurement, llmbench_accelerator):\n"
        "    with llmbench_accelerator.hold(print):\n        pass\n"
        "def test_behind(llmbench_accelerator):\n"
        "    with llmbench_accelerator.hold(print):\n"
        "        assert '\"close\"' in open('events.jsonl').read().splitlines()[-1]\n",
    )
    repo.spawn("test_mine.py").assert_outcomes(passed=2)


def test_recorded_facts_reach_record_and_junit(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(id="quick")\n'
        "def test_it(llmbench_measurement, llmbench_record):\n"
        '    llmbench_record("answer", 42)\n'
        '    llmbench_record("zero", 0)\n'
        '    llmbench_record("note", "a < b")\n',
    )
    repo.run("test_mine.py", "--llmbench-out=out", "--junitxml=junit.xml").assert_outcomes(passed=1)
    (result,) = repo.run_json()["results"]
    assert result["extra"] == {"answer": 42, "zero": 0, "note": "a < b"}
    found = properties(repo.junit()["quick-short"])
    assert (found["llmbench.answer"], found["llmbench.zero"], found["llmbench.note"]) == ("42", "0", "a < b")


@pytest.mark.parametrize(
    ("arguments", "call", "message"),
    [
        ("llmbench_entry, llmbench_gate", '"ttft_s", at_most=1', "*llmbench_gate needs a measurement: let the test *"),
        ("llmbench_measurement, llmbench_gate", '"speed", at_least=1', "*no metric 'speed'; there are: *decode_tok_s*"),
        ("llmbench_measurement, llmbench_gate", '"ttft_s"', "*ttft_s: give exactly one of at_least and at_most*"),
        ("llmbench_measurement, llmbench_gate", '"itl_p99_s", at_most=1', "itl_p99_s wasn't measured*"),
    ],
)
def test_a_gate_that_cannot_judge_is_an_error_that_says_why(repo: Lab, arguments: str, call: str, message: str) -> None:
    write(repo, f'@pytest.mark.llmbench(id="quick")\ndef test_it({arguments}):\n    llmbench_gate({call})\n')
    result = repo.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_an_error_of_the_target_within_a_users_test_is_an_error_not_a_failure(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(id="quick")\n'
        "def test_it(llmbench_target, llmbench_entry):\n"
        "    from pytest_llmbench.errors import RequestError\n"
        '    raise RequestError("the stream broke off")\n',
    )
    repo.run("test_mine.py").assert_outcomes(errors=1)


def test_an_assertion_of_the_users_own_is_a_failure(repo: Lab) -> None:
    write(
        repo,
        '@pytest.mark.llmbench(id="quick")\n'
        "def test_it(llmbench_measurement):\n"
        '    assert llmbench_measurement.median("decode_tok_s") > 1000\n',
    )
    repo.run("test_mine.py").assert_outcomes(failed=1)


def test_every_fixture_of_the_reference_is_offered(repo: Lab) -> None:
    page = (ROOT / "docs" / "reference" / "plugin.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(llmbench_\w+)` \|", page, re.MULTILINE)
    repo.run("--fixtures", "-q").stdout.fnmatch_lines_random([f"{name}* -- *" for name in names])


def test_a_users_unittest_and_plain_tests_are_left_alone(repo: Lab) -> None:
    write(repo, "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\ndef test_b(): pass\n")
    result = repo.run("test_mine.py", "--llmbench-out=out")
    result.assert_outcomes(passed=2)
    assert not repo.out.exists()
    assert "llmbench:" not in result.stdout.str()


def test_a_marker_that_matches_no_entry_is_an_error_that_says_so(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    (lab.path / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.llmbench(backend='ollama')\ndef test_it(llmbench_measurement): pass\n"
    )
    result = lab.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no entry of the matrix matches llmbench(backend='ollama')*"])
