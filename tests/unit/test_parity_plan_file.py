"""Facts about parity plans as files: what is read, and where and why a wrong one is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import MatrixError
from pytest_llmbench.parity import SECTIONS
from pytest_llmbench.parity_plan import KINDS, TIERS, ParityPlan, ParitySettings
from pytest_llmbench.parity_plan_file import load

ROOT = Path(__file__).parents[2]
HEAD = "parity: {candidate: engine}\n"
ONE = HEAD + "models:\n- id: org/m\n  kind: dense\n"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str) -> Path:
        path = tmp_path / "p.yaml"
        path.write_text(content, encoding="utf-8")
        return path

    return write_file


def with_settings(text: str) -> str:
    """The smallest plan, with settings (from line 5 on)."""
    return ONE + "settings:\n" + "".join(f"  {line}\n" for line in text.split("\n"))


def with_fields(text: str) -> str:
    """The smallest plan, with more lines (from line 5 on) in its only model."""
    return ONE + "".join(f"  {line}\n" for line in text.split("\n"))


REFUSED = {
    "an empty file": ("", 1, "the file is empty; a parity plan needs"),
    "no models": (HEAD, 1, "the file has no `models`"),
    "no head": ("models: []\n", 1, "the file has no `parity`"),
    "an empty head": ("parity:\nmodels: [{id: m, kind: moe}]\n", 1, "the file has no `parity`"),
    "an empty list": (HEAD + "models: []\n", 2, "the list of models is empty"),
    "an unknown top key": (ONE + "setings: {}\n", 5, "in a parity plan; did you mean 'settings'?"),
    "an unknown key of the head": ("parity: {candidat: x}\nmodels: []\n", 1, "did you mean 'candidate'?"),
    "a version that is a number": ("parity: {baseline_version: 0.32}\nmodels: []\n", 1, "put it in quotes"),
    "a version that is none": ('parity: {baseline_version: ">= 1"}\nmodels: []\n', 1, "isn't a version"),
    "a side without command": (ONE + "sides:\n  mine: {env: {A: b}}\n", 6, "the side mine has no `command`"),
    "a side without program": (ONE + "sides:\n  mine: {command: []}\n", 6, "expected a program and its arguments"),
    "a side of an empty word": (ONE + "sides:\n  mine: {command: ''}\n", 6, "expected a program and its arguments"),
    "a command that is a number": (ONE + "sides:\n  mine: {command: 7}\n", 6, "expected a string"),
    "a command without its end": (ONE + "sides:\n  mine:\n    command: a 'b\n", 7, "can't be split into arguments"),
    "an unknown key of a side": (
        ONE + "sides:\n  mine:\n    command: a\n    comand: b\n",
        8,
        "unknown key 'comand' in the side mine; did you mean 'command'?",
    ),
    "a side's variable that is none": (
        ONE + "sides: {mine: {command: a, env: {A-B: c}}}\n",
        5,
        "letters, digits and _",
    ),
    "a side's version that is a number": (ONE + "sides: {mine: {command: a, version: 1.2}}\n", 5, "put it in quotes"),
    "a side's name that is a path": (ONE + "sides: {my/side: {command: a}}\n", 5, "is no valid name"),
    "a side twice": (ONE + "sides:\n  a: {command: a}\n  a: {command: b}\n", 7, "key 'a' is already given in line 6"),
    "an unknown setting": (with_settings("passe: 1"), 6, "unknown key 'passe' in settings; did you mean 'passes'?"),
    "an unknown tier": (with_settings("tiers:\n  quik: {}"), 7, "in tiers; did you mean 'quick'?"),
    "an unknown setting of a tier": (
        with_settings("tiers:\n  quick:\n    promt_tokens: []"),
        8,
        "in the tier quick; did you mean 'prompt_tokens'?",
    ),
    "tiers within a tier": (with_settings("tiers:\n  quick: {tiers: {}}"), 7, "unknown key 'tiers'"),
    "an unknown verdict": (with_settings("verdict: intervall"), 6, "did you mean 'interval'?"),
    "a gate of 0": (with_settings("gates: {gate: 0}"), 6, "above 0"),
    "no level": (with_settings("concurrency: {levels: []}"), 6, "the list is empty"),
    "a level twice": (with_settings("concurrency: {levels: [4, 4]}"), 6, "'4' is in this list twice"),
    "no prompt tokens": (with_settings("prompt_tokens: [0]"), 6, "a whole number from 1 to 10000000, found '0'"),
    "a memory metric of another section": (
        with_settings("memory: {gated: [peak_byte]}"),
        6,
        "unknown memory metric 'peak_byte'; did you mean 'peak_bytes'?",
    ),
    "fewer rounds than are begun with": (
        with_settings("tiers:\n  quick: {passes: 3, runs_per_pass: 3, max_rounds: 8}"),
        7,
        "max_rounds 8 in tier quick is less than passes 3 x runs_per_pass 3 = 9",
    ),
    "a model without kind": (HEAD + "models:\n- id: m\n", 3, "this model has no `kind`"),
    "a model that is a name": (HEAD + "models: [m]\n", 2, "expected a mapping, found a string"),
    "an unknown kind": (
        HEAD + "models: [{id: m, kind: densest}]\n",
        2,
        "unknown kind 'densest'; did you mean 'dense'?",
    ),
    "an unknown key of a model": (with_fields("shap: x"), 5, "unknown key 'shap' in a model; did you mean 'shape'?"),
    "an unknown shape": (with_fields("shape: qwen3-0.6"), 5, "did you mean 'qwen3-0.6b'?"),
    "an unknown section": (with_fields("sections: [decod]"), 5, "did you mean 'decode'?"),
    "no section": (with_fields("sections: []"), 5, "the list is empty"),
    "an id with a space": (HEAD + "models: [{id: 'a b', kind: moe}]\n", 2, "is no model id such as"),
    "a model twice": (ONE + "- {kind: moe, id: org/m}\n", 5, "model 'org/m' is already in line 3"),
    "a snapshot that is a branch": (with_fields("snapshot: main"), 5, "'main' isn't a commit"),
    "random weights of no shape": (with_fields("synthetic: true"), 5, "need a `path`, or the `shape`"),
    "an unknown requirement": (with_fields("requires: ['memory:3']"), 5, "unknown requirement 'memory'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_plan_is_refused_with_its_line(write: Write, case: str) -> None:
    text, line, why = REFUSED[case]
    path = write(text)
    with pytest.raises(MatrixError, match=re.escape(why)) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_the_smallest_plan_gets_every_default(write: Write) -> None:
    plan = load(write(ONE))
    assert (plan.candidate, plan.baseline, plan.baseline_version) == ("engine", "mlx-lm", None)
    assert plan.settings == ParitySettings()
    (model,) = plan.models
    assert (model.id, model.name, model.line, model.sections, model.enabled) == ("org/m", "m", 3, SECTIONS, True)


def test_sides_of_the_plan_s_own_have_their_programs_beside_it(write: Write) -> None:
    plan = load(
        write(
            ONE + "sides:\n  mine: {command: [./target/side, --threads, 8, on], env: {A: 1, B: on}, version: '1.2'}\n"
            "  found: {command: side a/b 'c d'}\n  fixed: {command: /opt/side, env:, version: ~}\n"
        )
    )
    mine, found, fixed = plan.sides
    assert (mine.name, found.name, fixed.name) == ("mine", "found", "fixed")
    assert mine.command == (str(plan.path.parent / "target/side"), "--threads", "8", "on")
    assert (mine.env, mine.version) == ((("A", "1"), ("B", "on")), "1.2")
    assert (found.command, fixed.command) == (("side", "a/b", "c d"), ("/opt/side",))
    assert (fixed.env, fixed.version) == ((), None)
    assert (plan.own_side("found"), plan.own_side("engine")) == (found, None)


def test_a_tier_replaces_settings_key_by_key(write: Write) -> None:
    plan = load(
        write(
            with_settings(
                "max_tokens: 7\nconcurrency: {levels: [1, 2], prompt_tokens: 9}\n"
                "tiers:\n  quick: {concurrency: {levels: [3]}, gates: {gate: 0.5}}"
            )
        )
    )
    quick, full = (plan.settings.for_tier(name) for name in TIERS)
    assert (quick.tier, quick.max_tokens, quick.gate, quick.goal) == ("quick", 7, 0.5, 1.0)
    assert (quick.concurrency.levels, quick.concurrency.prompt_tokens) == ((3,), 9)
    assert (full.tier, full.concurrency.levels, full.gate) == ("full", (1, 2), 0.98)


def test_two_models_of_one_name_keep_their_owners(write: Write) -> None:
    plan = load(write(ONE + "- {id: other/m, kind: moe}\n- {id: other/n, kind: moe}\n"))
    assert [model.name for model in plan.models] == ["org/m", "other/m", "n"]


def test_why_a_model_is_off_may_stand_behind_it(write: Write) -> None:
    def reason(text: str) -> str:
        return load(write(with_fields(text))).models[0].reason

    assert reason("enabled: false  # needs 64 GB") == "needs 64 GB"
    assert reason("enabled: false\nreason: no such file") == "no such file"
    assert reason("enabled: false") == "disabled in p.yaml:5"


def test_a_key_with_nothing_behind_it_counts_as_left_out(write: Write) -> None:
    model = load(write(with_fields("snapshot:\nshape: null\nsynthetic: ~\nextra_prompt_tokens:"))).models[0]
    assert (model.snapshot, model.shape, model.synthetic, model.extra_prompt_tokens) == (None, None, None, ())


@pytest.mark.parametrize("name", ["parity.yaml", "parity_smoke.yaml"])
def test_the_plans_of_this_repository_are_valid(name: str) -> None:
    plan = load(ROOT / "matrix" / name)
    assert {model.kind for model in plan.models} == set(KINDS)
    assert {tier.tier for tier in plan.settings.tiers} == set(TIERS)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = st.sampled_from(
    ["candidate", "gates", "tiers", "quick", "levels", "memory", "id", "kind", "sections", "path", "requires"]
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "parity": st.dictionaries(KEYS, values, max_size=3),
            "settings": st.dictionaries(KEYS, st.dictionaries(KEYS, values, max_size=3) | values, max_size=3),
            "models": st.lists(st.dictionaries(KEYS, values, max_size=5), max_size=3),
        },
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_a_plan_or_is_refused_with_a_line(tmp_path: Path, document: dict[str, object]) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    found = plan_or_complaint(path)
    assert isinstance(found, ParityPlan) or re.match(rf"{re.escape(str(path))}:\d+: .", found)


def plan_or_complaint(path: Path) -> ParityPlan | str:
    try:
        return load(path)
    except MatrixError as error:
        return str(error)


def test_all_faults_of_a_plan_are_told_at_once(write: Write) -> None:
    models = "models:\n- {id: org/a, kind: dens}\n- {id: a b, kind: moe}\n- {id: org/c}\n"
    with pytest.raises(MatrixError) as caught:
        load(write(HEAD + models))
    assert [fault.split(":")[1] for fault in caught.value.faults] == ["3", "4", "5"]
