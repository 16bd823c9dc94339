"""One tiny checkpoint of each kind: whole or not at all, and beside the other tiny ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.checkpoints import NAMES, kinds, publish
from pytest_llmbench.checkpoints.random import shape_of, stored_bytes
from pytest_llmbench.cli import OK, main
from pytest_llmbench.parity_plan import KINDS
from pytest_llmbench.parity_plan_file import load

SMOKE = Path(__file__).parents[2] / "matrix" / "parity_smoke.yaml"


def make(folder: Path) -> list[str]:
    """Lines of `llmbench checkpoint tiny`, in a process of its own: it imports MLX."""
    command = [sys.executable, "-m", "pytest_llmbench", "checkpoint", "tiny", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == OK, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder, and what was said when it was filled."""
    folder = tmp_path_factory.mktemp("kinds")
    return folder, make(folder)


def test_each_kind_of_the_smoke_plan_is_made_where_the_plan_looks_for_it() -> None:
    models = load(SMOKE).models
    assert [model.kind for model in models] == list(KINDS)
    assert [model.path for model in models] == [f"checkpoints/{name}" for name in kinds.CONFIGS]
    assert [model.kind for model in models] == [name.removeprefix("tiny-") for name in kinds.CONFIGS]


def test_one_command_makes_both_sets(made: tuple[Path, list[str]]) -> None:
    folder, lines = made
    assert lines == [f"made {folder / name}" for name in (*NAMES, *kinds.CONFIGS)]
    for name, config in kinds.CONFIGS.items():
        found = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        assert found["model_type"] == config["model_type"]
        assert found["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}


def test_a_set_that_is_there_is_left_as_it_is(made: tuple[Path, list[str]]) -> None:
    folder, _ = made
    before = [path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")]
    assert make(folder) == [f"already there: {folder}", f"already there: {folder} (one model of each kind)"]
    assert [path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")] == before


def test_a_damaged_model_is_made_again_to_the_same_bytes_and_the_other_set_is_kept(
    made: tuple[Path, list[str]],
) -> None:
    folder, _ = made
    marker = json.loads((folder / kinds.MARKER).read_text(encoding="utf-8"))
    weights = next((folder / "tiny-moe").glob("*.safetensors"))
    whole = publish.sha256(weights)
    weights.write_bytes(b"cut")
    assert make(folder)[0] == f"already there: {folder}"
    assert publish.sha256(weights) == whole
    assert json.loads((folder / kinds.MARKER).read_text(encoding="utf-8")) == marker


def test_without_mlx_the_other_set_is_made_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_llmbench.checkpoints.random.make.find_spec", lambda _name: None)
    assert main(["checkpoint", "tiny", str(tmp_path)]) == OK
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith("not made: one model of each kind (")
    assert said[-1].endswith("fix: pip install 'pytest-llmbench[mlx]')")
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {*NAMES, publish.MARKER}


def test_the_models_are_small_and_use_every_token_of_their_tokenizer() -> None:
    for config in kinds.CONFIGS.values():
        shape = shape_of({**config, "torch_dtype": "float32"}, "4bit")
        assert shape.text_config["vocab_size"] == 2048
        assert stored_bytes(shape) < 4e6
