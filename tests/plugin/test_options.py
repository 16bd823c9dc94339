"""Options: command line before environment before ini file before the entry before the file's settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab

from pytest_llmbench.collect import entry_of
from pytest_llmbench.matrix import RunSettings
from pytest_llmbench.options import OPTIONS, Option, Options
from pytest_llmbench.session import bench_of


def options(lab: Lab, *args: str) -> Options:
    return bench_of(lab.pytester.parseconfigure("-p", "no:cacheprovider", *args)).options


def settings(lab: Lab, *args: str) -> RunSettings:
    """What the first entry of the matrix would run with."""
    item = lab.select("matrix.yaml", *args)[0]
    entry = entry_of(item)
    assert entry is not None
    return bench_of(item.config).settings(entry)


def refusal(lab: Lab, *args: str) -> str:
    """What pytest says when it refuses to start."""
    result = lab.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Traceback" not in result.stderr.str()
    return result.stderr.str()


def test_without_a_word_the_defaults_hold(lab: Lab) -> None:
    assert options(lab) == Options()


@pytest.mark.parametrize(
    ("name", "cli", "variable", "ini"),
    [
        ("runs", "5", "4", "3"),
        ("warmup", "0", "1", "2"),
        ("max_tokens", "30", "20", "10"),
        ("gate", "0.5", "0.6", "0.7"),
        ("goal", "1.5", "1.6", "1.7"),
    ],
)
def test_command_line_beats_environment_beats_ini(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, cli: str, variable: str, ini: str
) -> None:
    lab.ini(f"llmbench_{name} = {ini}\n")
    assert str(getattr(options(lab), name)) == ini
    monkeypatch.setenv(f"LLMBENCH_{name.upper()}", variable)
    assert str(getattr(options(lab), name)) == variable
    assert str(getattr(options(lab, f"--llmbench-{name.replace('_', '-')}={cli}"), name)) == cli


def test_lists_of_prompts_come_from_each_place(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.ini("llmbench_prompts = code\n")
    assert options(lab).prompts == ("code",)
    monkeypatch.setenv("LLMBENCH_PROMPTS", "long, code")
    assert options(lab).prompts == ("long", "code")
    assert options(lab, "--llmbench-prompts", "short,context-4k").prompts == ("short", "context-4k")


def test_a_flag_can_be_set_and_unset_by_the_environment(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.ini("llmbench_require = true\n")
    assert options(lab).require is True
    monkeypatch.setenv("LLMBENCH_REQUIRE", "0")
    assert options(lab).require is False
    assert options(lab, "--llmbench-require").require is True


def test_an_ini_path_starts_at_the_ini_file_and_any_other_where_pytest_was_started(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.ini("llmbench_matrix =\n    one\n    two.yaml\nllmbench_out = art\n")
    folder = lab.pytester.mkdir("sub")
    monkeypatch.chdir(folder)
    found = options(lab, f"--rootdir={lab.path}", "-c", str(lab.path / "pytest.ini"))
    assert found.matrix == (lab.path / "one", lab.path / "two.yaml")
    assert found.out == lab.path / "art"
    monkeypatch.setenv("LLMBENCH_MATRIX", "a.yaml:b")
    assert options(lab).matrix == (folder / "a.yaml", folder / "b")
    assert options(lab, "--llmbench-matrix=x", "--llmbench-matrix", "y").matrix == (folder / "x", folder / "y")
    assert options(lab, "--llmbench-out=here").out == folder / "here"


def test_a_home_path_is_expanded(lab: Lab) -> None:
    assert options(lab, "--llmbench-out=~/art").out == Path.home() / "art"


TOML_FILES = {"pytest.toml": "[pytest]\n", "pyproject.toml": "[tool.pytest]\n"}
TOML_VALUES = """
llmbench_runs = 7
llmbench_gate = 1
llmbench_require = true
llmbench_matrix = ["m"]
llmbench_prompts = "code"
"""


@pytest.mark.parametrize("name", TOML_FILES)
def test_a_toml_file_gives_values_in_its_own_types(lab: Lab, name: str) -> None:
    path = lab.path / "toml" / name
    path.parent.mkdir()
    path.write_text(TOML_FILES[name] + TOML_VALUES)
    found = options(lab, "-c", str(path), f"--rootdir={path.parent}")
    assert (found.runs, found.gate, found.require, found.prompts) == (7, 1.0, True, ("code",))
    assert found.matrix == (path.parent / "m",)


def test_the_older_toml_table_gives_strings(lab: Lab) -> None:
    path = lab.path / "toml" / "pyproject.toml"
    path.parent.mkdir()
    path.write_text('[tool.pytest.ini_options]\nllmbench_runs = "7"\nllmbench_require = true\nllmbench_matrix = "m"\n')
    found = options(lab, "-c", str(path), f"--rootdir={path.parent}")
    assert (found.runs, found.require, found.matrix) == (7, True, (path.parent / "m",))


def test_zero_warmups_are_zero(lab: Lab) -> None:
    lab.matrix({"id": "a"}, settings={"warmup": 2})
    lab.run("matrix.yaml", "--llmbench-warmup=0").assert_outcomes(passed=1)
    assert [event["warmup"] for event in lab.events("open")] == [0]
    assert sum(not event["cached"] for event in lab.events("stream")) == 1


def test_an_entry_beats_the_files_settings_and_an_option_beats_the_entry(lab: Lab) -> None:
    lab.matrix(
        {"id": "a", "max_tokens": 20, "prompts": ["code"], "temperature": 0.5},
        settings={"runs": 2, "warmup": 3, "max_tokens": 10, "temperature": 0.1},
    )
    found = settings(lab)
    assert (found.runs, found.warmup, found.max_tokens, found.prompts, found.temperature) == (2, 3, 20, ("code",), 0.5)
    found = settings(lab, "--llmbench-runs=9", "--llmbench-max-tokens=40", "--llmbench-prompts=long")
    assert (found.runs, found.warmup, found.max_tokens, found.prompts) == (9, 3, 40, ("long",))


def test_what_neither_options_nor_file_say_has_a_default(lab: Lab) -> None:
    (lab.path / "matrix.yaml").write_text("tests: [{id: a, backend: fake, model_id: m}]\n")
    found = settings(lab)
    assert (found.runs, found.warmup, found.max_tokens, found.prompts) == (3, 1, 512, ("short", "long", "code"))


@pytest.mark.parametrize(
    ("args", "variables", "ini", "think"),
    [
        ([], {}, "", None),
        (["--llmbench-think"], {}, "", True),
        (["--llmbench-no-think"], {}, "", False),
        ([], {"LLMBENCH_THINK": "1"}, "", True),
        ([], {}, "llmbench_no_think = true\n", False),
        ([], {"LLMBENCH_NO_THINK": "false"}, "", None),
        (["--llmbench-think"], {"LLMBENCH_NO_THINK": "1"}, "", True),
        (["--llmbench-no-think"], {}, "llmbench_think = true\n", False),
        ([], {"LLMBENCH_THINK": "1"}, "llmbench_no_think = true\n", True),
        (["--llmbench-think"], {"LLMBENCH_NO_THINK": "1"}, "llmbench_no_think = true\n", True),
    ],
)
def test_thinking_is_one_switch_whoever_says_it_nearest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, args: list[str], variables: dict[str, str], ini: str, think: bool | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lab.ini(ini)
    assert options(lab, *args).think is think


@pytest.mark.parametrize("no_think", [True, False])
def test_the_switch_beats_an_entrys_no_think(lab: Lab, no_think: bool) -> None:
    lab.matrix({"id": "a", "no_think": no_think})
    assert settings(lab).think is not no_think
    assert settings(lab, "--llmbench-think").think is True
    assert settings(lab, "--llmbench-no-think").think is False


def test_both_switches_from_one_place_contradict_each_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--llmbench-think and --llmbench-no-think contradict" in refusal(
        lab, "--llmbench-think", "--llmbench-no-think"
    )
    monkeypatch.setenv("LLMBENCH_THINK", "1")
    monkeypatch.setenv("LLMBENCH_NO_THINK", "1")
    assert "LLMBENCH_THINK and LLMBENCH_NO_THINK contradict" in refusal(lab)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("runs", "0", "at least 1"),
        ("concurrency", "0", "at least 1"),
        ("concurrency", "1,10000", "at most 1024"),
        ("concurrency", ",", "is empty"),
        ("warmup", "-1", "at least 0"),
        ("max_tokens", "many", "many"),
        ("gate", "0", "positive"),
        ("gate", "nan", "positive"),
        ("goal", "inf", "positive"),
        ("verdict", "guess", "point, interval"),
        ("tier", "fast", "quick, full"),
        ("prompts", " , ", "empty"),
        ("out", " ", "empty"),
    ],
)
@pytest.mark.parametrize("place", ["cli", "environment", "ini"])
def test_a_bad_value_is_refused_where_it_was_said(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str, place: str
) -> None:
    option = next(option for option in OPTIONS if option.name == name)
    if place == "cli":
        message = refusal(lab, f"{option.flag}={value}")
        assert option.flag in message
    elif place == "environment":
        monkeypatch.setenv(option.variable, value)
        message = refusal(lab)
        assert f"{option.variable}: " in message
    else:
        lab.ini(f"{option.ini} = {value}\n")
        message = refusal(lab)
        assert option.ini in message
    assert why in message


def test_a_value_of_the_wrong_toml_type_is_refused_with_its_file(lab: Lab) -> None:
    path = lab.path / "pytest.toml"
    path.write_text('[pytest]\nllmbench_runs = "three"\n')
    message = refusal(lab, "-c", str(path))
    assert "llmbench_runs" in message
    assert "pytest.toml" in message


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_help_lists_each_option_with_its_ini_value_and_the_reverse(help_text: str, option: Option) -> None:
    assert re.search(rf"{option.flag}[ =]((?!\(ini:).)*\(ini: {option.ini}\)", help_text)
    assert re.search(rf"{option.ini} \(\w+\): ((?!\(as --).)*\(as {option.flag}\)", help_text)


@pytest.fixture(scope="module")
def help_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The whole of it, in one line."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help", "-p", "no:hypothesispytest", "-p", "no:anyio"],
        cwd=tmp_path_factory.mktemp("help"),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "300"},
    )
    return " ".join(done.stdout.split())


def test_a_percent_sign_in_the_help_is_shown_once(help_text: str) -> None:
    assert "%%" not in help_text
    assert "decode_tok_s:5%" in help_text


def test_the_marker_is_explained(lab: Lab) -> None:
    lab.run("--markers").stdout.fnmatch_lines(["@pytest.mark.llmbench(id, backend, model_id, *"])
