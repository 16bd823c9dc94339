"""Safetensors files written in place, an array's part at a time: a model needs no more memory than one part.

Format: 8 bytes with the header's length, the header in JSON, the arrays without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from pytest_llmbench.checkpoints.random.tensors import ITEM_BYTES, StoredTensor, TensorSpec

if TYPE_CHECKING:
    import mlx.core as mx

SHARD_BYTES = 1 << 30
"""A file is closed before it gets larger, unless one parameter alone is."""

_DTYPES: Mapping[str, str] = MappingProxyType(
    {"float32": "F32", "uint32": "U32", "bfloat16": "BF16", "float16": "F16", "uint8": "U8"}
)
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file to be: the parameters in it, and where each array starts."""

    file: str
    specs: tuple[TensorSpec, ...]
    header: bytes
    starts: Mapping[str, int]
    nbytes: int


def plan(specs: Iterable[TensorSpec], *, shard_bytes: int) -> list[Shard]:
    """The files of a checkpoint, named as Hugging Face does."""
    groups = list(_groups(specs, shard_bytes))
    if len(groups) == 1:
        return [_shard("model.safetensors", groups[0])]
    return [
        _shard(f"model-{number:05}-of-{len(groups):05}.safetensors", group)
        for number, group in enumerate(groups, start=1)
    ]


def index(shards: Sequence[Shard]) -> dict[str, Any]:
    """`model.safetensors.index.json`."""
    files = {name: shard.file for shard in shards for name in shard.starts}
    total = sum(shard.nbytes - len(shard.header) for shard in shards)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}


class ShardFile:
    """A shard on disk, open for writing; arrays are given in parts, each array's in order."""

    def __init__(self, file: BinaryIO, shard: Shard) -> None:
        file.write(shard.header)
        self._file = file
        self._next = dict(shard.starts)

    def append(self, part: Mapping[str, mx.array]) -> None:
        """Writes the next part of each array. Raises OSError."""
        import mlx.core as mx

        for name, value in part.items():
            flat: Any = value.reshape(-1).view(mx.uint8)
            data = memoryview(flat)
            self._file.seek(self._next[name])
            self._file.write(data)
            self._next[name] += data.nbytes


def open_shard(folder: Path, shard: Shard) -> BinaryIO:
    """The new file of `shard`. Raises OSError."""
    return (folder / shard.file).open("xb")


def _groups(specs: Iterable[TensorSpec], shard_bytes: int) -> Iterator[list[TensorSpec]]:
    group: list[TensorSpec] = []
    size = 0
    for spec in specs:
        nbytes = sum(stored.nbytes for stored in spec.stored())
        if group and size + nbytes > shard_bytes:
            yield group
            group, size = [], 0
        group.append(spec)
        size += nbytes
    yield group


def _shard(file: str, specs: Sequence[TensorSpec]) -> Shard:
    """Wide items come first, so that every array lies at a multiple of its item's size."""
    arrays = [stored for spec in specs for stored in spec.stored()]
    arrays.sort(key=lambda stored: -ITEM_BYTES[stored.dtype])
    ends: dict[str, int] = {}
    total = 0
    for stored in arrays:
        total += stored.nbytes
        ends[stored.name] = total
    header = _header(arrays, ends)
    starts = {stored.name: len(header) + ends[stored.name] - stored.nbytes for stored in arrays}
    return Shard(file=file, specs=tuple(specs), header=header, starts=starts, nbytes=len(header) + total)


def _header(arrays: Iterable[StoredTensor], ends: Mapping[str, int]) -> bytes:
    entries = {
        stored.name: {
            "dtype": _DTYPES[stored.dtype],
            "shape": stored.shape,
            "data_offsets": [ends[stored.name] - stored.nbytes, ends[stored.name]],
        }
        for stored in arrays
    }
    text = json.dumps({"__metadata__": {"format": "mlx"}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
