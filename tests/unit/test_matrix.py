"""Facts about matrix types: keywords, slugs, and which of several values wins."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.matrix import (
    BUILTIN_PROMPTS,
    CustomPrompt,
    Gate,
    Matrix,
    MatrixEntry,
    Overrides,
    RunSettings,
    Settings,
    resolve,
    slug,
)

PATH = Path("m.yaml")


def entry(**fields: Any) -> MatrixEntry:
    return MatrixEntry(id="a", backend="mlx-lm", model_id="org/model", path=PATH, line=1, **fields)


def settle(found: MatrixEntry, settings: Settings | None = None, **overrides: Any) -> tuple[RunSettings, Matrix]:
    matrix = Matrix(
        path=PATH,
        entries=(found,),
        settings=settings or Settings(),
        custom_prompts=(
            CustomPrompt(name="brief", text="Hi", max_tokens=7),
            CustomPrompt(name="open", text="Hi"),
        ),
    )
    return resolve(matrix, found, Overrides(**overrides)), matrix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P — Qwen3.6-27B (Dense, VLM)", "P-Qwen3-6-27B-Dense-VLM"),
        ("GLM_4.7", "GLM-4-7"),
        ("Qualität 4", "Qualität-4"),
        ("—", ""),
    ],
)
def test_a_slug_is_letters_digits_and_single_dashes(text: str, expected: str) -> None:
    assert slug(text) == expected


@given(st.text())
def test_a_slug_is_its_own_slug_and_one_word_for_k(text: str) -> None:
    found = slug(text)
    assert slug(found) == found
    assert re.fullmatch(r"[^\W_]+(-[^\W_]+)*|", found)


def test_keywords_name_the_entry_the_model_and_each_property() -> None:
    found = entry(quant="4bit", kv_cache="tq3.5bit", group="A — Qwen3 (MoE)")
    assert found.keywords == (
        "a",
        "org/model",
        "backend:mlx-lm",
        "quant:4bit",
        "kv:tq3.5bit",
        "group:A-Qwen3-MoE",
    )


def test_keywords_leave_out_what_has_no_value() -> None:
    assert entry().keywords == ("a", "org/model", "backend:mlx-lm", "kv:default")


def test_an_entry_shows_no_secret_in_its_repr() -> None:
    found = entry(api_key="sk-123", env=(("HF_TOKEN", "hf-456"),), api_key_env="KEY_NAME")
    assert "sk-123" not in repr(found)
    assert "hf-456" not in repr(found)
    assert "KEY_NAME" in repr(found)


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry().id = "b"  # type: ignore[misc]


def test_without_any_word_the_documented_defaults_hold() -> None:
    found, matrix = settle(entry())
    assert found == RunSettings(
        runs=3,
        warmup=1,
        max_tokens=512,
        temperature=0.0,
        server_timeout=600.0,
        cooldown=0.0,
        bench_port=None,
        prompts=("short", "long", "code"),
        think=None,
        fixed_length=True,
        prompt_max_tokens=(("brief", 7),),
        custom_prompts=matrix.custom_prompts,
    )


def test_an_entry_beats_the_settings_and_an_override_beats_the_entry() -> None:
    settings = Settings(max_tokens=100, temperature=0.5, server_timeout=5.0, fixed_length=True)
    own = entry(max_tokens=200, temperature=0.7, server_timeout=9.0, fixed_length=False, prompts=("code",))
    from_settings, _ = settle(entry(), settings)
    from_entry, _ = settle(own, settings)
    from_override, _ = settle(own, settings, max_tokens=300, prompts=("short",), fixed_length=True)
    assert [found.max_tokens for found in (from_settings, from_entry, from_override)] == [100, 200, 300]
    assert [found.fixed_length for found in (from_settings, from_entry, from_override)] == [True, False, True]
    assert (from_entry.prompts, from_override.prompts) == (("code",), ("short",))
    assert (from_entry.temperature, from_entry.server_timeout) == (0.7, 9.0)
    assert (from_settings.temperature, from_settings.server_timeout) == (0.5, 5.0)


def test_levels_of_concurrency_come_from_the_nearest_and_an_empty_list_is_a_value() -> None:
    settings = Settings(concurrency=(1, 4))
    assert settle(entry())[0].concurrency == ()
    assert settle(entry(), settings)[0].concurrency == (1, 4)
    assert settle(entry(concurrency=()), settings)[0].concurrency == ()
    assert settle(entry(concurrency=(2,)), settings, concurrency=(8,))[0].concurrency == (8,)


@pytest.mark.parametrize(
    ("metric", "level", "applies"),
    [
        ("ttft_s", None, (True, False, False)),
        ("aggregate_tok_s", None, (False, True, True)),
        ("ttft_s", 4, (False, False, True)),
        ("aggregate_tok_s", 4, (False, False, True)),
    ],
)
def test_a_gate_is_for_prompts_for_every_level_or_for_its_own(
    metric: str, level: int | None, applies: tuple[bool, ...]
) -> None:
    gate = Gate(metric=metric, level=level, at_most=1.0)
    assert tuple(gate.applies_to(at_once) for at_once in (None, 1, 4)) == applies


def test_runs_and_warmups_come_from_settings_unless_overridden() -> None:
    settings = Settings(runs=5, warmup=2, cooldown=4.0, bench_port=8090)
    plain, _ = settle(entry(), settings)
    overridden, _ = settle(entry(), settings, runs=9, warmup=1)
    assert (plain.runs, plain.warmup, plain.cooldown, plain.bench_port) == (5, 2, 4.0, 8090)
    assert (overridden.runs, overridden.warmup) == (9, 1)


def test_zero_is_a_value_and_not_an_absent_one() -> None:
    found, _ = settle(entry(temperature=0.0), Settings(temperature=0.7, warmup=3), warmup=0)
    assert (found.temperature, found.warmup) == (0.0, 0)


@pytest.mark.parametrize(
    ("no_think", "override", "think"),
    [
        (None, None, None),
        (True, None, False),
        (False, None, True),
        (None, True, True),
        (None, False, False),
        (True, True, True),
        (False, False, False),
    ],
)
def test_thinking_follows_the_command_line_then_the_entry_then_the_template(
    no_think: bool | None, override: bool | None, think: bool | None
) -> None:
    assert settle(entry(no_think=no_think), think=override)[0].think is think


def test_a_custom_prompts_length_stands_between_the_entrys_and_the_settings() -> None:
    plain, _ = settle(entry())
    own, _ = settle(entry(max_tokens=50))
    overridden, _ = settle(entry(), max_tokens=60)
    assert [plain.max_tokens_for(name) for name in ("brief", "open", "short")] == [7, 512, 512]
    assert own.max_tokens_for("brief") == 50
    assert overridden.max_tokens_for("brief") == 60


def test_a_matrix_knows_the_built_in_prompts_and_its_own() -> None:
    _, matrix = settle(entry())
    assert matrix.prompt_names == (*BUILTIN_PROMPTS, "brief", "open")
    assert BUILTIN_PROMPTS[:4] == ("short", "long", "code", "context-4k")
    assert BUILTIN_PROMPTS[-1] == "context-256k"
