"""The 289 entries of the predecessor are all there, and each value of each is what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.matrix import Matrix, MatrixEntry
from pytest_llmbench.matrix_file import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "matrix" / "apple_silicon"
BACKENDS = (
    "diffusion-cli",
    "dflash",
    "docker-model-runner",
    "litert-lm",
    "llama-server",
    "lm-studio",
    "mlx-lm",
    "mlx-lm-turboquant",
    "mlx-vlm",
    "ollama",
    "omlx",
    "unsloth-studio",
    "vllm-mlx",
)
PLACE = {"path", "line"}


@pytest.fixture(scope="module")
def original() -> dict[str, Any]:
    text = (ROOT / "tests" / "data" / "apple_silicon_matrix.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.fixture(scope="module")
def matrices() -> list[Matrix]:
    return [load(path, backends=BACKENDS) for path in sorted(FOLDER.glob("*.yaml"))]


@pytest.fixture(scope="module")
def entries(matrices: list[Matrix]) -> list[MatrixEntry]:
    return [entry for matrix in matrices for entry in matrix.entries]


def as_loaded(test: dict[str, Any]) -> dict[str, Any]:
    """The JSON's values in the types of `MatrixEntry`, with its defaults where the JSON is silent."""
    blank = MatrixEntry(id="", backend="", model_id="", path=Path(), line=0)
    values = {name: getattr(blank, name) for name in MatrixEntry.__dataclass_fields__ if name not in PLACE}
    return values | {key: tuple(value) if isinstance(value, list) else value for key, value in test.items()}


def test_every_value_of_every_entry_is_unchanged(original: dict[str, Any], entries: list[MatrixEntry]) -> None:
    loaded = {entry.id: entry for entry in entries}
    assert len(original["tests"]) == len(entries) == len(loaded) == 289
    for test in original["tests"]:
        entry = loaded[test["id"]]
        expected = as_loaded(test)
        assert {name: getattr(entry, name) for name in expected} == expected


def test_each_file_starts_with_the_original_head(original: dict[str, Any], matrices: list[Matrix]) -> None:
    for matrix in matrices:
        for key in ("hardware", "settings"):
            loaded = getattr(matrix, key)
            assert {name: getattr(loaded, name) for name in original[key]} == original[key]
        assert list(matrix.prompts) == original["prompts"]
        assert matrix.custom_prompts == ()


def test_a_model_lives_in_one_file(entries: list[MatrixEntry]) -> None:
    files: dict[str, set[Path]] = {}
    for entry in entries:
        files.setdefault(entry.model, set()).add(entry.path)
    assert [model for model, paths in files.items() if len(paths) > 1] == []


def test_an_entrys_line_is_where_its_id_stands(entries: list[MatrixEntry]) -> None:
    for entry in entries:
        line = entry.path.read_text(encoding="utf-8").splitlines()[entry.line - 1]
        assert line == f"  - id: {entry.id}"


def test_disabled_entries_say_why(entries: list[MatrixEntry]) -> None:
    disabled = [entry for entry in entries if not entry.enabled]
    assert len(disabled) == 42
    assert [entry.id for entry in disabled if not entry.reason or "disabled in" in entry.reason] == []
