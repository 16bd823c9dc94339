"""A checkpoint's JSON files that hold something else are told of as such, by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llmbench_engine import CheckpointError, Engine

INDEX = "model.safetensors.index.json"
NOT_JSON = {
    "cut": b"{",
    "list": b"[1]",
    "no text": b"\xff",
    "deep": b"[" * 200_000,
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
}
NO_INDEX = {
    "without a map": b"{}",
    "map of a string": b'{"weight_map": "a"}',
    "map to a number": b'{"weight_map": {"a": 1}}',
}


@pytest.fixture
def folder(tiny_checkpoints: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoints / "tiny-random", tmp_path / "checkpoint"))


@pytest.mark.parametrize("text", NOT_JSON.values(), ids=NOT_JSON)
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json", INDEX])
def test_what_is_no_json_object_is_named(folder: Path, name: str, text: bytes) -> None:
    (folder / name).write_bytes(text)
    with pytest.raises(CheckpointError, match=r"JSON") as caught:
        Engine.load(folder)
    assert caught.value.path == folder / name


@pytest.mark.parametrize("text", NO_INDEX.values(), ids=NO_INDEX)
def test_an_index_must_name_files(folder: Path, text: bytes) -> None:
    (folder / INDEX).write_bytes(text)
    with pytest.raises(CheckpointError, match="weight_map must give each weight's file"):
        Engine.load(folder)


def test_a_folder_in_a_files_place_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: can't be read: Is a directory"):
        Engine.load(folder)


@pytest.mark.parametrize("path", ["config.json", "x" * 5000], ids=["file", "long name"])
def test_what_is_no_folder_is_named(folder: Path, path: str) -> None:
    with pytest.raises(CheckpointError, match=r"is missing; is this a checkpoint folder|can't be read"):
        Engine.load(folder / path)
