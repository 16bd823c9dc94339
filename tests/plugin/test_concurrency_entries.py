"""`concurrency` of a matrix file and `--llmbench-concurrency`: several requests at once, as tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lab import Lab, properties

SHORT = {"prompts": ["short"]}
# Four answers of 8 tokens, one every 20 ms, that begin 250, 300, 350 and 400 ms after their requests.
FOUR = {
    "wall_s": 0.54,
    "aggregate_tok_s": 32 / 0.54,
    "decode_aggregate_tok_s": 14 / 0.14,
    "fairness_ratio": 0.39 / 0.54,
    "ttft_spread_s": 0.15,
    "streams_at_once": 3,
    "ttft_s": 0.325,
    "decode_tok_s": 50,
}


def names(lab: Lab, *args: str) -> list[str]:
    return [item.name for item in lab.select("matrix.yaml", *args)]


def recorded(lab: Lab, test: str) -> dict[str, Any]:
    (found,) = [r for r in lab.run_json()["results"] if r["nodeid"].endswith(f"::{test}")]
    result: dict[str, Any] = found
    return result


def test_levels_come_from_the_settings_the_entry_or_the_command_line(lab: Lab) -> None:
    lab.matrix(
        {"id": "a"},
        {"id": "b", "concurrency": [2]},
        {"id": "c", "concurrency": []},
        settings={"concurrency": [1, 4]},
        **SHORT,
    )
    assert names(lab) == [
        *("test_throughput[a-short]", "test_concurrency[a-1]", "test_concurrency[a-4]"),
        *("test_throughput[b-short]", "test_concurrency[b-2]"),
        "test_throughput[c-short]",
    ]
    assert names(lab, "--llmbench-concurrency=8", "-k", "test_concurrency") == [
        *("test_concurrency[a-8]", "test_concurrency[b-8]", "test_concurrency[c-8]")
    ]


def test_without_a_level_there_is_no_such_test(lab: Lab) -> None:
    lab.matrix({"id": "a"}, **SHORT)
    assert names(lab) == ["test_throughput[a-short]"]


def test_an_entry_is_opened_once_for_its_prompts_and_levels_in_their_order(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"}, settings={"concurrency": [4, 1]}, **SHORT)
    lab.run("matrix.yaml", f"--llmbench-out={lab.out}")
    assert lab.opened() == ["a", "b"]
    assert list(lab.outcomes()) == ["a-short", "a-4", "a-1", "b-short", "b-4", "b-1"]


@pytest.fixture
def four(lab: Lab) -> dict[str, Any]:
    """The result of four requests at once: two rounds and a warm-up."""
    lab.matrix({"id": "a", "concurrency": [4]}, settings={"runs": 2, "warmup": 1})
    result = lab.run("matrix.yaml", "-k", "concurrency", f"--llmbench-out={lab.out}", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*llmbench: several requests at once*", "id *requests *fairness *", "a  *fake  *4  *"])
    return recorded(lab, "test_concurrency[a-4]")


def test_figures_of_rounds_and_requests_are_recorded(lab: Lab, four: dict[str, Any]) -> None:
    measurement = four["measurement"]
    assert (four["prompt"], measurement["level"]) == ("concurrency-4", 4)
    assert {name: measurement["metrics"][name] for name in FOUR} == pytest.approx(FOUR)
    assert (len(measurement["warmups"]), len(measurement["samples"]), measurement["cached"]) == (4, 8, None)
    assert [found["valid"] for found in measurement["rounds"]] == [True, True]
    assert measurement["rounds"][0]["metrics"]["wall_s"] == pytest.approx(FOUR["wall_s"])
    assert {sample["sent_ns"] for sample in measurement["samples"]} == {0}
    flat = properties(lab.junit()["a-4"])
    assert float(flat["llmbench.aggregate_tok_s"]) == pytest.approx(FOUR["aggregate_tok_s"])
    assert flat["llmbench.prompt"] == "concurrency-4"


def test_the_markdown_report_has_a_table_of_them(lab: Lab) -> None:
    lab.matrix({"id": "a", "concurrency": [4]}, **SHORT)
    lab.run("matrix.yaml", f"--llmbench-out={lab.out}", "--llmbench-report=md").assert_outcomes(passed=2)
    (page,) = (path.read_text(encoding="utf-8") for path in lab.out.glob("*.md"))
    assert "### Prompt short" in page
    _, _, table = page.partition("### Several requests at once: concurrency-4\n")
    assert "| `a` | fake | 59.3 | 100.0 | 50.0 | 325 ms | 150 ms | 540 ms | 0.7222 | 3 | 100/8 | 2.79 GiB |" in table
    assert "### Prompt concurrency-4" not in page


def test_no_two_requests_have_a_prompt_in_common_and_all_have_the_entrys_length(lab: Lab, four: dict[str, Any]) -> None:
    asked = lab.events("together")
    prompts = [prompt for event in asked for prompt in event["prompts"]]
    assert len({prompt.split()[0] for prompt in prompts}) == len(prompts) == 12
    assert {(event["max_tokens"], event["fixed_length"]) for event in asked} == {(8, True)}


def test_a_gate_is_for_prompts_for_every_level_or_for_one(lab: Lab) -> None:
    gates = {
        "decode_tok_s": {"at_least": 50},
        "aggregate_tok_s": {"at_least": 20},
        "aggregate_tok_s@4": {"at_least": 59},
        "ttft_s@4": {"at_most": 0.3},
        "ttft_s@2": {"at_most": 0.001},
    }
    lab.matrix({"id": "a", "gates": gates, "concurrency": [1, 4]}, **SHORT)
    result = lab.run("matrix.yaml", f"--llmbench-out={lab.out}")
    assert lab.outcomes() == {"a-short": "passed", "a-1": "passed", "a-4": "failed"}
    result.stdout.fnmatch_lines(["ttft_s failed: 325 ms, gate at most 300 ms, n = 4"])
    judged = {test: recorded(lab, test)["verdicts"] for test in ("test_throughput[a-short]", "test_concurrency[a-4]")}
    assert {test: [(v["metric"], v["gate"]) for v in found] for test, found in judged.items()} == {
        "test_throughput[a-short]": [("decode_tok_s", 50)],
        "test_concurrency[a-4]": [("aggregate_tok_s", 20), ("aggregate_tok_s", 59), ("ttft_s", 0.3)],
    }


def test_a_backend_that_lets_requests_wait_is_skipped_with_its_reason_and_not_started(lab: Lab) -> None:
    lab.matrix({"id": "a", "backend": "single", "concurrency": [1, 4]})
    result = lab.run("matrix.yaml", "-k", "concurrency", "-rs", f"--llmbench-out={lab.out}")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*single answers one request at a time: it has one thread*concurrency: [[]1[]]*"]
    )
    lab.forget()
    lab.run("matrix.yaml", "-k", "a-4")
    assert lab.events("open") == []


def test_a_backend_that_cant_be_sent_several_is_skipped(lab: Lab) -> None:
    lab.matrix({"id": "a", "concurrency": [4], "extra_args": ["--many", "no"]})
    result = lab.run("matrix.yaml", "-k", "concurrency", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*fake can't be sent several requests at once*"])


def test_require_makes_errors_of_both(lab: Lab) -> None:
    lab.matrix(
        {"id": "a", "backend": "single"},
        {"id": "b", "extra_args": ["--many", "no"]},
        settings={"concurrency": [4]},
    )
    lab.run("matrix.yaml", "-k", "concurrency", "--llmbench-require").assert_outcomes(errors=2)


def test_a_server_that_answers_one_by_one_is_suspect(lab: Lab) -> None:
    lab.matrix({"id": "a", "concurrency": [4], "extra_args": ["--many", "queue"]})
    result = lab.run("matrix.yaml", "-k", "concurrency")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*a-4*: 4 requests were answered one after the other: this server lets them wait"])


@pytest.mark.parametrize("way", ["stream", "invalid"])
def test_what_couldnt_be_measured_is_an_error(lab: Lab, way: str) -> None:
    lab.matrix({"id": "a", "concurrency": [4], "extra_args": ["--fail", way]})
    lab.run("matrix.yaml", "-k", "concurrency").assert_outcomes(errors=1)


def test_a_resumed_run_measures_no_level_twice_and_refuses_other_levels(lab: Lab) -> None:
    lab.matrix({"id": "a"}, **SHORT)
    args = ("matrix.yaml", "--llmbench-concurrency=1,4")
    lab.run(*args, f"--llmbench-out={lab.out}").assert_outcomes(passed=3)
    lab.forget()
    lab.run(*args, f"--llmbench-resume={lab.out}").assert_outcomes(skipped=3)
    assert lab.events("open") == []
    result = lab.run("matrix.yaml", "--llmbench-concurrency=2", f"--llmbench-resume={lab.out}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_an_earlier_run_is_compared_level_by_level(lab: Lab) -> None:
    lab.matrix({"id": "a", "concurrency": [1, 4]})
    lab.run("matrix.yaml", "-k", "concurrency", f"--llmbench-out={lab.out}")
    lab.matrix({"id": "a", "concurrency": [1, 4], "extra_args": ["--rate", "25"]})
    limit = "--llmbench-compare-fail=decode_aggregate_tok_s:10%"
    result = lab.run("matrix.yaml", "-k", "concurrency", f"--llmbench-compare={lab.out}", limit)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*a-concurrency-4 *decode_aggregate_tok_s*"])


def test_a_users_test_gets_the_levels_too(lab: Lab) -> None:
    lab.matrix({"id": "a", "concurrency": [1, 4]})
    lab.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.llmbench(prompt="concurrency-4")
        def test_fast(llmbench_streams, llmbench_level, llmbench_gate):
            llmbench_gate("aggregate_tok_s", at_least=59)
            assert llmbench_level == llmbench_streams.level == len(llmbench_streams.rounds[0].samples)
        """
    )
    result = lab.run("--llmbench-matrix=matrix.yaml", "-v", next(lab.path.glob("test_*.py")))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_fast[[]a-4[]] PASSED*"])


def test_a_users_test_without_any_level_says_so(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    lab.pytester.makepyfile("def test_fast(llmbench_streams): pass")
    result = lab.run("--llmbench-matrix=matrix.yaml", next(lab.path.glob("test_*.py")))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no level of concurrency*--llmbench-concurrency*"])


def test_an_older_record_without_rounds_is_still_read(lab: Lab) -> None:
    lab.matrix({"id": "a"}, **SHORT)
    lab.run("matrix.yaml", f"--llmbench-out={lab.out}")
    path = lab.out / "run.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for result in data["results"]:
        del result["measurement"]["level"], result["measurement"]["rounds"]
    path.write_text(json.dumps(data), encoding="utf-8")
    lab.run("matrix.yaml", f"--llmbench-compare={path}").assert_outcomes(passed=1)
