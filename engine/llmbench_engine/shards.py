"""A checkpoint's weight files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from llmbench_engine.config import read_object
from llmbench_engine.errors import CheckpointError

_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""


def read_arrays(folder: Path, stream: mx.Stream | None = None) -> dict[str, mx.array]:
    """All tensors of the folder's safetensors files, not read yet. CheckpointError where a shard is missing.

    They are read on `stream`, which can be one of another thread; that one has to evaluate them, then.
    """
    arrays: dict[str, mx.array] = {}
    for path in shards(folder):
        try:
            loaded = mx.load(str(path), stream=stream)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"can't be read: {error}", path=path, key="") from error
        assert isinstance(loaded, dict)
        _check_end(path, loaded)
        arrays.update(loaded)
    return arrays


def _check_end(path: Path, arrays: Mapping[str, mx.array]) -> None:
    """CheckpointError for bytes behind the last tensor: safetensors has none, and MLX only misses those that lack."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    left = path.stat().st_size - (_LENGTH_BYTES + header + sum(array.nbytes for array in arrays.values()))
    if left > 0:
        raise CheckpointError(f"has {left} bytes behind its last tensor: it was changed; get it again", path=path)


def shards(folder: Path) -> list[Path]:
    """The weight files, in order of their names."""
    path = folder / "model.safetensors.index.json"
    index = read_object(path)
    names = sorted(p.name for p in folder.glob("model*.safetensors")) if index is None else _indexed(index, path)
    missing = [n for n in names if not (folder / n).is_file()] if names else ["model.safetensors"]
    if missing:
        problem = f"is missing ({len(missing)} of {len(names) or 1} weight files)"
        raise CheckpointError(problem, path=folder / missing[0])
    return [folder / n for n in names]


def _indexed(index: Mapping[str, Any], path: Path) -> list[str]:
    files = index.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise CheckpointError("must give each weight's file", path=path, key="weight_map")
    return sorted(set(files.values()))
