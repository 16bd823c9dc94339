"""Which files become tests, what the tests are called, and what is said of a file that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab


def test_each_prompt_of_an_entry_is_a_test_named_after_both(lab: Lab) -> None:
    lab.matrix({"id": "a", "prompts": ["short", "code"]}, {"id": "b.c+1"}, prompts=["long"])
    nodes = [item.nodeid for item in lab.select("matrix.yaml")]
    assert nodes == [f"matrix.yaml::test_throughput[{name}]" for name in ("a-short", "a-code", "b.c+1-long")]


def test_a_node_id_on_the_command_line_runs_that_test_alone(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"}, prompts=["short", "long"], name="sub/m.yaml")
    lab.run("sub/m.yaml::test_throughput[b-long]").assert_outcomes(passed=1)
    assert lab.opened() == ["b"]
    assert {event["prompt"] for event in lab.events("stream")} == {"long"}


def test_an_unknown_node_id_is_refused(lab: Lab) -> None:
    lab.matrix({"id": "a"})
    result = lab.run("matrix.yaml::test_throughput[b-short]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not found: *matrix.yaml::test_throughput*"])


def test_yaml_that_is_not_ours_is_left_alone(lab: Lab) -> None:
    (lab.path / "docker-compose.yaml").write_text("services: {}\n")
    (lab.path / "package.json").write_text("{}\n")
    lab.matrix({"id": "a"}, name="matrix/m.yml")
    lab.ini("llmbench_matrix = matrix\n")
    assert [item.nodeid for item in lab.select(".")] == ["matrix/m.yml::test_throughput[a-short]"]


def test_without_any_setting_only_a_named_file_is_a_matrix(lab: Lab) -> None:
    lab.matrix({"id": "a"}, name="sub/m.yaml")
    assert lab.select("sub") == []
    assert len(lab.select("sub/m.yaml")) == 1


def test_the_option_names_a_file_or_a_folder_in_place_of_the_ini_value(lab: Lab) -> None:
    lab.matrix({"id": "ini"}, name="ini/m.yaml")
    lab.matrix({"id": "a"}, name="one/a.yaml")
    lab.matrix({"id": "b"}, name="two/deep/b.yml")
    lab.matrix({"id": "c"}, name="two/c.yaml")
    lab.ini("llmbench_matrix = ini\n")
    nodes = [item.nodeid for item in lab.select("--llmbench-matrix=one/a.yaml", "--llmbench-matrix", "two")]
    assert nodes == [
        "one/a.yaml::test_throughput[a-short]",
        "two/c.yaml::test_throughput[c-short]",
        "two/deep/b.yml::test_throughput[b-short]",
    ]


def test_a_matrix_that_is_not_there_is_refused_by_name(lab: Lab) -> None:
    result = lab.run("--llmbench-matrix=gone.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*not found: *gone.yaml*"])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty; a matrix needs a list of `tests`"),
        ("tests: []\n", 1, "the list of tests is empty"),
        ("tests:\n  - {id: a, backend: fake, model_id: m, quantt: 4bit}\n", 2, "quant"),
        ("tests:\n  - {id: a, model_id: m, backend: fakee}\n", 2, "fake"),
        ("tests:\n  - {id: a, backend: fake, model_id: m}\n  - {id: a, backend: fake, model_id: m}\n", 3, "line 2"),
        ("prompts: [shrt]\ntests:\n  - {id: a, backend: fake, model_id: m}\n", 1, "short"),
        ("tests: [\n", 2, ""),
    ],
)
def test_a_mistake_in_a_matrix_is_a_collection_error_with_file_and_line(
    lab: Lab, text: str, line: int, message: str
) -> None:
    (lab.path / "bad.yaml").write_text(text)
    result = lab.run("bad.yaml")
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    found = next(text for text in result.outlines if f"bad.yaml:{line}: " in text)
    assert message in found
    assert "Traceback" not in result.stdout.str()


def test_two_files_may_share_an_id_since_their_tests_do_not(lab: Lab) -> None:
    lab.matrix({"id": "a"}, name="one.yaml")
    lab.matrix({"id": "a"}, name="two.yaml")
    lab.run("one.yaml", "two.yaml").assert_outcomes(passed=2)
    assert lab.opened() == ["a", "a"]


def test_an_id_in_two_files_is_refused_where_one_test_runs_over_both(lab: Lab) -> None:
    lab.matrix({"id": "a"}, name="m/one.yaml")
    lab.matrix({"id": "a"}, name="m/two.yaml")
    lab.ini("llmbench_matrix = m\n")
    lab.pytester.makepyfile("def test_it(llmbench_entry): pass")
    result = lab.run("-k", "test_it")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*two.yaml:*: id 'a' is already used in *one.yaml:*"])


@pytest.mark.parametrize("how", ["--llmbench-prompts", "LLMBENCH_PROMPTS", "llmbench_prompts"])
def test_a_prompt_that_no_file_knows_is_an_error_that_names_who_asked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    lab.matrix({"id": "a"}, custom_prompts={"mine": "Say hello."})
    args = ["--llmbench-prompts=mine,yours"] if how.startswith("--") else []
    if how.isupper():
        monkeypatch.setenv(how, "mine,yours")
    elif not args:
        lab.ini("llmbench_prompts = mine,yours\n")
    result = lab.run("matrix.yaml", *args)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{how}: matrix.yaml has no prompt 'yours'; there are: short,*, mine"])


def test_every_entry_is_opened_once_whatever_the_order_of_files_and_functions(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"}, prompts=["long", "short"])
    lab.ini("llmbench_matrix = matrix.yaml\n")
    for name in ("test_early", "test_z"):
        body = "def test_one(llmbench_measurement): pass\ndef test_two(llmbench_server, llmbench_entry): pass\n"
        (lab.path / f"{name}.py").write_text(body)
    result = lab.run("test_early.py", "matrix.yaml", "test_z.py")
    result.assert_outcomes(passed=4 + 2 * (4 + 2))
    assert lab.opened() == ["a", "b"]
    measured = [(e["id"], e["prompt"]) for e in lab.events("stream") if not e["cached"]]
    assert measured == [("a", "long"), ("a", "short"), ("b", "long"), ("b", "short")]
    assert sum(line.startswith("a   fake") for line in result.outlines) == 2  # a row for each prompt, not each test


def test_a_file_reached_through_a_link_gives_the_same_entries(lab: Lab) -> None:
    lab.matrix({"id": "a"}, name="real/m.yaml")
    (lab.path / "link").symlink_to("real", target_is_directory=True)
    lab.ini("llmbench_matrix = link\n")
    lab.pytester.makepyfile("def test_it(llmbench_server): pass")
    lab.run("link/m.yaml", ".").assert_outcomes(passed=2 + 1)
    assert lab.opened() == ["a"]


def test_tests_without_a_benchmark_keep_their_place(lab: Lab) -> None:
    lab.matrix({"id": "a"}, {"id": "b"})
    lab.ini("llmbench_matrix = matrix.yaml\n")
    lab.pytester.makepyfile(
        "def test_first(): pass\n"
        "def test_entry(llmbench_entry): pass\n"
        "def test_between(): pass\n"
        "def test_again(llmbench_entry): pass\n"
    )
    names = [
        item.name for item in lab.select("-k", "test_", Path("test_tests_without_a_benchmark_keep_their_place.py"))
    ]
    assert names == [
        "test_first",
        "test_entry[a]",
        "test_again[a]",
        "test_entry[b]",
        "test_again[b]",
        "test_between",
    ]


def test_a_named_yaml_of_another_plugin_is_left_to_it(lab: Lab) -> None:
    (lab.path / "other.tavern.yaml").write_text("test_name: ping\nstages: []\n")
    result = lab.run("other.tavern.yaml")
    assert "no matrix" not in result.stdout.str()
    result.assert_outcomes()


def test_two_tests_of_one_name_are_refused(lab: Lab) -> None:
    (lab.path / "matrix.yaml").write_text(
        "custom_prompts: {x-short: Hi}\nprompts: [short]\n"
        "defaults: {backend: fake, model_id: m}\ntests:\n  - {id: a-x}\n  - {id: a, prompts: [x-short]}\n"
    )
    result = lab.run("matrix.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*two tests would be called a-x-short*"])


def test_a_matrix_in_json_is_a_matrix_too(lab: Lab) -> None:
    (lab.path / "named.yaml").write_text(
        '{"prompts": ["short"], "tests": [{"id": "a", "backend": "fake", "model_id": "m"}]}'
    )
    lab.run("named.yaml").assert_outcomes(passed=1)
