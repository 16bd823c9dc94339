"""A parity plan becomes tests: which, with what names, in what order; and only where somebody named the plan."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import ROOT, Lab, bracket, collect_items

from pytest_llmbench.collect import section_of
from pytest_llmbench.parity import RUN_ORDER

Select = Callable[..., list[pytest.Item]]
PLAN = str(ROOT / "matrix" / "parity.yaml")
SMOKE = str(ROOT / "matrix" / "parity_smoke.yaml")
RECORDS = str(ROOT / "matrix" / "records")
SMALL = {
    "legacy_repeats": [1],
    "prompt_tokens": [],
    "concurrency": {"levels": [1, 2]},
    "load": {"cold": False},
    "memory": {"prompt_tokens": []},
}


def write_plan(lab: Lab, *models: dict[str, Any], name: str = "plan.yaml", **settings: Any) -> Path:
    """A plan of small sections; a model that says nothing else is dense, and nowhere to be found."""
    path = lab.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [{"kind": "dense", "path": "no/such/folder"} | model for model in models]
    document = {"parity": {"candidate": "engine"}, "settings": SMALL | settings, "models": listed}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def names(items: list[pytest.Item]) -> list[str]:
    return [item.name for item in items]


def test_a_model_s_tests_stand_section_by_section_in_the_order_of_the_run(lab: Lab) -> None:
    write_plan(lab, {"id": "org/m"}, {"id": "org/n", "sections": ["load", "decode"]})
    assert names(lab.select("plan.yaml")) == [
        "test_parity[m-decode-r1-tok_s]",
        "test_same_tokens[m]",
        "test_parity[m-ttft-r1-prefill_tok_s]",
        *(
            f"test_parity[m-concurrency-{level}-{metric}]"
            for level in (1, 2)
            for metric in ("wall_s", "aggregate_tok_s", "decode_aggregate_tok_s")
        ),
        "test_batch_matches_solo[m-1]",
        "test_batch_matches_solo[m-2]",
        "test_measured[m-memory-load]",
        "test_measured[m-memory-decode]",
        "test_parity[m-load-warm-model_ready_s]",
        "test_parity[m-load-warm-first_token_s]",
        "test_parity[n-decode-r1-tok_s]",
        "test_same_tokens[n]",
        "test_parity[n-load-warm-model_ready_s]",
        "test_parity[n-load-warm-first_token_s]",
    ]


def test_memory_that_a_plan_gates_is_a_test_of_parity(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "sections": ["memory"]}, memory={"prompt_tokens": [8], "gated": ["peak_bytes"]})
    expected = [f"test_parity[m-memory-{point}-peak_bytes]" for point in ("load", "decode", "prefill_8")]
    assert names(lab.select("plan.yaml")) == expected


def test_a_plan_without_a_section_has_no_test_of_it(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "sections": ["load"]})
    lab.ini("empty_parameter_set_mark = fail_at_collect\n")
    assert {item.name.partition("[")[0] for item in lab.select("plan.yaml")} == {"test_parity"}


def test_the_repository_s_plan_judges_what_a_replay_of_its_record_judges(selected: Select) -> None:
    live = [item.name for item in selected(PLAN, "--llmbench-tier=full", "-k", "test_parity")]
    replayed = [item.name for item in selected(RECORDS)]
    assert sorted(live) == sorted(replayed)
    assert len(live) == 280


def test_quick_is_the_default_tier(selected: Select, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = names(selected(PLAN))
    assert quick == names(selected(PLAN, "--llmbench-tier=quick"))
    full = names(selected(PLAN, "--llmbench-tier=full"))
    assert set(quick) < set(full)
    monkeypatch.setenv("LLMBENCH_TIER", "full")
    assert names(selected(PLAN)) == full


def test_tests_of_a_section_are_neighbours_and_share_one_object(selected: Select) -> None:
    sections = [section_of(item) for item in selected(PLAN)]
    runs = [s for s, before in zip(sections, [None, *sections], strict=False) if s is not before]
    assert len(runs) == len({(s.model.id, s.section) for s in runs if s is not None}) == 12 * 5
    assert [s.section for s in runs if s is not None] == list(RUN_ORDER) * 12


@pytest.mark.parametrize(
    ("args", "models", "sections"),
    [
        (["-k", "Qwen3-0.6B"], {"Qwen3-0.6B-4bit"}, set(RUN_ORDER)),
        (["-k", "mlx-community/Qwen3-0.6B-4bit"], {"Qwen3-0.6B-4bit"}, set(RUN_ORDER)),
        (["-k", "gpt-oss and section:decode"], {"gpt-oss-20b-MXFP4-Q8", "gpt-oss-20b-MLX-8bit"}, {"decode"}),
        (["-k", "quant:8bit and section:memory"], {"gpt-oss-20b-MLX-8bit"}, {"memory"}),
        (["-k", "same_tokens and Llama-3.2"], {"Llama-3.2-3B-Instruct-4bit"}, {"decode"}),
        (
            ["-m", 'llmbench(model_id="mlx-community/Qwen3-8B-4bit", section="concurrency")'],
            {"Qwen3-8B-4bit"},
            {"concurrency"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_models_and_sections_are_chosen(
    selected: Select, args: list[str], models: set[str], sections: set[str]
) -> None:
    found = [section_of(item) for item in selected(PLAN, *args)]
    assert {s.model.name for s in found if s is not None} == models
    assert {s.section for s in found if s is not None} == sections


def test_the_same_words_choose_the_same_tests_of_a_plan_and_of_a_record(selected: Select) -> None:
    words = ["-k", "test_parity and Qwen3-30B-A3B and (section:load or wall_s)"]
    assert sorted(names(selected(PLAN, "--llmbench-tier=full", *words))) == sorted(names(selected(RECORDS, *words)))


def test_a_model_s_name_alone_runs_its_parity_too_but_no_smoke_plan_and_no_record(
    pytester: pytest.Pytester, no_outer_settings: None
) -> None:
    ini = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    named = "\n".join(str(ROOT / path) for path in ini["llmbench_matrix"])
    assert "matrix" in ini["testpaths"]
    here = ("-c", str(ROOT / "pyproject.toml"), "--rootdir=.", "-o", f"testpaths={ROOT / 'matrix'}")
    items = collect_items(pytester, *here, "-o", f"llmbench_matrix={named}", "-k", "Qwen3-0.6B-4bit")
    assert {section_of(item) is not None for item in items} == {True}
    assert {item.path.name for item in items} == {"parity.yaml"}
    items = collect_items(pytester, *here, "-o", f"llmbench_matrix={named}")
    found = {item.path.name for item in items}
    assert {"smoke.yaml", "parity.yaml"} < found
    assert not found & {"parity_smoke.yaml", "parity_m4_pro.json"}


@pytest.mark.parametrize("args", [[], ["-k", "org"], ["--llmbench-matrix=matrix"]])
def test_a_plan_that_nobody_named_is_not_run(lab: Lab, args: list[str]) -> None:
    write_plan(lab, {"id": "org/m"}, name="matrix/plan.yaml")
    lab.matrix({"id": "org"}, name="matrix/m.yaml")
    lab.ini("llmbench_matrix = matrix\n")
    assert names(lab.select(*args)) == ["test_throughput[org-short]"]


@pytest.mark.parametrize("args", [["matrix"], ["matrix/plan.yaml"], ["--llmbench-matrix=matrix/plan.yaml"]])
def test_a_plan_is_run_where_it_or_its_folder_is_named(lab: Lab, args: list[str]) -> None:
    write_plan(lab, {"id": "m", "sections": ["decode"]}, name="matrix/plan.yaml")
    assert names(lab.select(*args)) == ["test_parity[m-decode-r1-tok_s]", "test_same_tokens[m]"]


def test_the_ini_value_may_name_a_plan_beside_a_folder(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "sections": ["decode"]}, name="matrix/plan.yaml")
    lab.matrix({"id": "a"}, name="matrix/m.yaml")
    lab.ini("llmbench_matrix =\n    matrix\n    matrix/plan.yaml\n")
    assert len(lab.select("-k", "m")) == 3


def test_a_user_s_test_over_the_matrix_leaves_plans_out(lab: Lab) -> None:
    write_plan(lab, {"id": "m"}, name="matrix/plan.yaml")
    lab.matrix({"id": "a"}, name="matrix/m.yaml")
    lab.ini("llmbench_matrix = matrix\n")
    lab.pytester.makepyfile("def test_mine(llmbench_entry): pass")
    assert names(lab.select("-k", "test_mine")) == ["test_mine[a]"]


def test_a_user_s_test_runs_over_the_plan_that_is_named(lab: Lab) -> None:
    write_plan(lab, {"id": "m"}, {"id": "n", "sections": ["decode"]})
    lab.pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.llmbench(section='decode')\n"
        "def test_result(llmbench_section, llmbench_parity): pass\n"
        "@pytest.mark.llmbench(model_id='m', section='load')\n"
        "def test_point(llmbench_point, llmbench_section): pass\n"
        "def test_section(llmbench_section): pass\n"
    )
    found = names(lab.select("--llmbench-matrix=plan.yaml", "-k", "test_result or test_point or test_section"))
    assert found[:4] == [
        "test_result[m-decode-r1-tok_s]",
        "test_section[m-decode]",
        "test_section[m-ttft]",
        "test_section[m-concurrency]",
    ]
    assert {name for name in found if "point" in name} == {"test_point[m-load-warm]"}


@pytest.mark.parametrize(
    ("marker", "args", "why"),
    [
        ("section='decode'", [], "no parity plan to run over"),
        ("section='decod'", ["--llmbench-matrix=plan.yaml"], "no parity plan matches llmbench(section='decod')"),
    ],
)
def test_a_user_s_test_that_has_no_section_is_refused(lab: Lab, marker: str, args: list[str], why: str) -> None:
    write_plan(lab, {"id": "m"})
    lab.pytester.makepyfile(f"import pytest\n@pytest.mark.llmbench({marker})\ndef test_mine(llmbench_section): pass\n")
    result = lab.run("-k", "test_mine", *args)
    assert result.ret != pytest.ExitCode.OK
    assert why in result.stdout.str()


def test_a_plan_may_be_json(lab: Lab) -> None:
    text = '{\n  "parity": {},\n  "models": [{"id": "m", "kind": "moe", "sections": ["decode"]}]\n}'
    (lab.path / "plan.yaml").write_text(text)
    assert len(lab.select("plan.yaml")) == 4


def test_a_word_of_a_matrix_makes_no_plan_of_it(lab: Lab) -> None:
    lab.matrix({"id": "parity"}, custom_prompts={"parity": "Is 7 even?"}, prompts=["parity"])
    assert names(lab.select("matrix.yaml")) == ["test_throughput[parity-parity]"]


def test_a_wrong_plan_is_a_collection_error_with_its_line(lab: Lab) -> None:
    (lab.path / "plan.yaml").write_text("parity: {}\nmodels:\n- id: m\n  kynd: dense\n")
    result = lab.run("plan.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*plan.yaml:4: unknown key 'kynd' in a model; did you mean 'kind'?*"])
    assert "Traceback" not in result.stdout.str()


def test_what_is_not_here_is_skipped_with_the_fix_and_what_is_off_with_its_reason(lab: Lab) -> None:
    write_plan(
        lab,
        {"id": "gone", "path": "checkpoints/gone", "sections": ["decode"]},
        {"id": "off", "enabled": False, "reason": "loops for ever", "sections": ["load"]},
    )
    result = lab.run("plan.yaml", "-rs", f"--llmbench-out={lab.out}", "--junitxml=junit.xml")
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["*no file or folder checkpoints/gone; fix: llmbench checkpoint tiny checkpoints"])
    result.stdout.fnmatch_lines(["*disabled: loops for ever"])
    extras = {bracket(r["nodeid"]): r["extra"] for r in lab.run_json()["results"]}
    assert extras["gone"] == {"model_id": "gone", "section": "decode"}
    assert extras["gone-decode-r1-tok_s"] == {
        "model_id": "gone", "section": "decode", "point": "r1", "metric": "tok_s"
    }  # fmt: skip


def test_what_is_not_here_is_an_error_where_it_is_required(lab: Lab) -> None:
    write_plan(lab, {"id": "gone", "sections": ["decode"]})
    lab.run("plan.yaml", "--llmbench-require").assert_outcomes(errors=2)


def test_a_known_issue_is_expected_to_fail(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "known_issue": "wrong at length", "sections": ["decode", "concurrency", "memory"]})
    for item in lab.select("plan.yaml"):
        (mark,) = item.iter_markers("xfail")
        assert mark.kwargs == {"reason": "wrong at length", "strict": False}


def test_the_list_has_each_model_once_with_the_fix(lab: Lab) -> None:
    tiny = lab.path / "weights"
    tiny.mkdir()
    (tiny / "config.json").write_text("{}")
    (tiny / "model.safetensors").write_bytes(b"weights")
    write_plan(
        lab,
        {"id": "org/here", "path": "weights", "quant": "4bit", "synthetic": True},
        {"id": "org/gone", "path": "checkpoints/gone"},
        {"id": "org/off", "enabled": False, "reason": "loops for ever"},
    )
    result = lab.run("plan.yaml", "--llmbench-list")
    result.stdout.fnmatch_lines(
        [
            "here * engine vs mlx-lm * org/here * 4bit * yes * with random weights: *weights",
            "gone * engine vs mlx-lm * org/gone * no * no file or folder *; fix: llmbench checkpoint tiny checkpoints",
            "off * org/off * off * disabled: loops for ever",
            "1/3 ready",
        ]
    )


def test_options_beat_the_plan_s_settings(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "sections": ["decode"]}, gates={"gate": 0.5, "goal": 0.6}, verdict="point")
    (first, *_) = lab.select("plan.yaml")
    section = section_of(first)
    assert section is not None
    assert (section.settings.gate, section.settings.goal, section.settings.verdict) == (0.5, 0.6, "point")
    options = ["--llmbench-gate=0.9", "--llmbench-goal=1.1", "--llmbench-verdict=interval", "--llmbench-runs=7"]
    (first, *_) = lab.select("plan.yaml", *options)
    section = section_of(first)
    assert section is not None
    found = section.settings
    assert (found.gate, found.goal, found.verdict, found.runs_per_pass) == (0.9, 1.1, "interval", 7)


def test_workers_run_a_plan_that_was_named(lab: Lab) -> None:
    write_plan(lab, {"id": "m", "sections": ["decode"]}, name="matrix/plan.yaml")
    lab.ini("testpaths = matrix\n")
    lab.spawn("matrix/plan.yaml", "-n1").assert_outcomes(skipped=2)


def test_the_smoke_plan_has_a_model_of_each_kind(selected: Select) -> None:
    found = {s.model.id for item in selected(SMOKE) if (s := section_of(item)) is not None}
    assert found == {"tiny-dense", "tiny-moe", "tiny-hybrid", "tiny-hybrid-moe"}
