"""mlx-lm takes random checkpoints of every model type as its own, and they say something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from random_configs import CASES, CONFIGS, DEEP

from pytest_llmbench.checkpoints.random import MODEL_TYPES, SHAPES

CHILD = Path(__file__).with_name("random_child.py")
LOADS = [f"{name}-{quant}" for name, quants in CASES.items() for quant in quants] + [f"{DEEP}-layers"]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The child's answers, all from one process."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(tmp_path_factory.mktemp("random"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_every_model_type_is_tried() -> None:
    assert set(CASES) == set(CONFIGS) == set(MODEL_TYPES)


@pytest.mark.parametrize("load", LOADS)
def test_logits_are_finite_and_peaked_at_any_depth(said: dict[str, Any], load: str) -> None:
    logits = said["loads"][load]
    assert logits["finite"]
    assert logits["std"] >= 3


@pytest.mark.parametrize("load", LOADS)
def test_what_follows_depends_on_the_token_and_seldom_repeats_it(said: dict[str, Any], load: str) -> None:
    logits = said["loads"][load]
    assert len(set(logits["best"])) >= len(logits["best"]) / 2
    assert abs(logits["own"]) < 3


@pytest.mark.parametrize("load", LOADS)
def test_the_chats_tokens_never_come_best(said: dict[str, Any], load: str) -> None:
    assert min(said["loads"][load]["best"]) >= 7


@pytest.mark.parametrize("name", SHAPES)
def test_names_and_shapes_of_the_full_model_are_those_of_mlx_lm(said: dict[str, Any], name: str) -> None:
    assert said["full_shapes"][name] == []


def test_rounding_in_bfloat16_stays_far_below_the_logits_deviation(said: dict[str, Any]) -> None:
    assert 0 < said["rounding"] < 0.5


def test_a_seed_gives_the_same_weights_in_memory_in_one_file_and_in_many(said: dict[str, Any]) -> None:
    assert said["same"] == {"one file": True, "many files": True, "index": True, "other seed": True}
