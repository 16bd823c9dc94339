"""A checkpoint's JSON files that hold something else are told of as such, by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from llmbench_engine import CheckpointError, Engine
from llmbench_engine.config import HARMLESS, read_config
from llmbench_engine.loader import build_model
from llmbench_engine.shards import read_arrays

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


def test_bytes_behind_the_last_tensor_are_told(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: has 1 bytes behind its last tensor"):
        Engine.load(folder)


@pytest.mark.parametrize("lost", [1, 5000])
def test_a_file_that_was_cut_short_is_told(folder: Path, lost: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
        Engine.load(folder)


def numbers(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        if isinstance(value, dict) and key not in HARMLESS:
            yield from numbers(value, (*path, key))
        elif type(value) in (int, float) and key not in HARMLESS:
            yield (*path, key)


def changed(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *rest = path
    return values | {head: changed(values[head], tuple(rest), value) if rest else value}


@pytest.mark.parametrize("wrong", [-1, 1 << 60, 10**400, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("kind", ["tiny-dense", "tiny-moe", "tiny-hybrid", "tiny-hybrid-moe"])
def test_each_number_that_cannot_be_is_named(tiny_kinds: Path, kind: str, wrong: Any) -> None:
    values, arrays = read_config(tiny_kinds / kind), read_arrays(tiny_kinds / kind)
    for path in numbers(values):
        with pytest.raises(CheckpointError) as caught:
            build_model(changed(values, path, wrong), arrays, tiny_kinds / kind)
        assert path[-1] in caught.value.key, path


@pytest.mark.parametrize("kind", ["tiny-dense", "tiny-moe", "tiny-hybrid", "tiny-hybrid-moe"])
def test_a_number_is_not_zero_unless_there_may_be_none(tiny_kinds: Path, kind: str) -> None:
    values, arrays = read_config(tiny_kinds / kind), read_arrays(tiny_kinds / kind)
    for path in numbers(values):
        if path[-1] not in {"max_window_layers"} and not (
            kind == "tiny-hybrid-moe" and path[-1] == "intermediate_size"
        ):
            with pytest.raises(CheckpointError, match="is 0; it has to be more"):
                build_model(changed(values, path, 0), arrays, tiny_kinds / kind)


@pytest.mark.parametrize("kind", ["tiny-moe", "tiny-hybrid-moe"])
def test_no_more_experts_are_chosen_than_there_are(tiny_kinds: Path, kind: str) -> None:
    values, arrays = read_config(tiny_kinds / kind), read_arrays(tiny_kinds / kind)
    (path,) = (path for path in numbers(values) if path[-1] == "num_experts_per_tok")
    with pytest.raises(CheckpointError, match="is 1000; it can be at most"):
        build_model(changed(values, path, 1000), arrays, tiny_kinds / kind)


@pytest.mark.parametrize(
    "table", ["4bit", [4], {"bits": "4", "group_size": 64}, {"bits": 4, "group_size": 0}, {"bits": 4}]
)
def test_a_packing_that_cannot_be_is_named(tiny_kinds: Path, table: Any) -> None:
    folder = tiny_kinds / "tiny-dense"
    with pytest.raises(CheckpointError, match="quantization"):
        build_model(read_config(folder) | {"quantization": table}, read_arrays(folder), folder)


@pytest.mark.parametrize("ending", ["q_proj.weight", "q_proj.scales", "q_proj.biases", "q_norm.weight", "norm.weight"])
def test_weights_of_another_type_are_named(tiny_kinds: Path, ending: str) -> None:
    folder = tiny_kinds / "tiny-dense"
    arrays = {name: a.astype(mx.int32) if name.endswith(ending) else a for name, a in read_arrays(folder).items()}
    with pytest.raises(CheckpointError, match=rf"{ending} is int32, not (uint32|bfloat16 or float16 or float32)"):
        build_model(read_config(folder), arrays, folder)
