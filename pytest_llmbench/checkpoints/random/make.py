"""A whole random checkpoint on disk: there when it is complete, or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_llmbench import units
from pytest_llmbench.checkpoints import script
from pytest_llmbench.checkpoints.random.layout import Config
from pytest_llmbench.checkpoints.random.quantization import Entry
from pytest_llmbench.checkpoints.random.shapes import Shape, shape_of
from pytest_llmbench.checkpoints.random.shards import SHARD_BYTES, Shard, ShardFile, index, open_shard, plan
from pytest_llmbench.checkpoints.random.tensors import TensorSpec, tensors
from pytest_llmbench.checkpoints.random.values import parts
from pytest_llmbench.checkpoints.random.vocabulary import vocabulary_of_size
from pytest_llmbench.checkpoints.tokenizer import (
    Vocabulary,
    chat_template,
    tokenizer_config_json,
    tokenizer_json,
)
from pytest_llmbench.errors import Unavailable, UsageError

_STAGING_PREFIX = ".llmbench-making-"
_OTHER_FILES_BYTES = 64 << 20
_STEPS = 20
_DEFAULT_CONTEXT = 32768

Report = Callable[[str], None]


def random_checkpoint(
    config: Config, quantization: Entry | str | None, out: Path, seed: int = 0, *, vocabulary: Vocabulary | None = None
) -> Path:
    """Writes a model of any of `MODEL_TYPES` to the folder `out`; see `shape_of` and `write_checkpoint`."""
    return write_checkpoint(
        shape_of(config, quantization), out, seed=seed, report=lambda _line: None, vocabulary=vocabulary
    )


def write_checkpoint(
    shape: Shape,
    out: Path,
    *,
    report: Report,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Writes `shape` with random weights to the new folder `out`, as mlx-lm would; returns `out`.

    `vocabulary` is that of `vocabulary_of_size`, for those who make many; `shard_bytes` the largest file, and
    `report` gets lines of progress. Raises UsageError when `out` exists or can't be written, Unavailable without
    MLX or without room on the disk.
    """
    _check_mlx()
    shards = plan(tensors(shape), shard_bytes=shard_bytes)
    if vocabulary is None:
        vocabulary = vocabulary_of_size(int(shape.text_config["vocab_size"]))
    try:
        with _staging(out) as folder:
            _check_room(folder, needed=sum(shard.nbytes for shard in shards) + _OTHER_FILES_BYTES)
            _write_texts(folder, shape, vocabulary, shards)
            _write_weights(folder, shards, seed=seed, report=report)
            folder.rename(out)
    except OSError as error:
        raise UsageError(
            f"can't write the checkpoint to {out}: {error}; name a folder that you may write to"
        ) from error
    report(f"made {out}")
    return out


def _check_mlx() -> None:
    if find_spec("mlx") is None:
        raise Unavailable(
            "random checkpoints are quantized by MLX, not installed", fix="pip install 'pytest-llmbench[mlx]'"
        )


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, on the same disk, which is gone afterwards."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already; name a new folder, or remove it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=out.parent) as staging:
        folder = Path(staging, out.name)
        folder.mkdir()
        yield folder


def _check_room(folder: Path, *, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Unavailable(
            f"the checkpoint needs {units.memory(needed)} and the disk of {folder.parent.parent} has "
            f"{units.memory(free)} free; make room, name a folder on another disk, or ask for fewer --layers"
        )


def _write_texts(folder: Path, shape: Shape, vocabulary: Vocabulary, shards: Sequence[Shard]) -> None:
    ends = {
        "eos_token_id": [vocabulary.token_id(script.IM_END), vocabulary.token_id(script.ENDOFTEXT)],
        "pad_token_id": vocabulary.token_id(script.ENDOFTEXT),
    }
    context = int(shape.text_config.get("max_position_embeddings") or _DEFAULT_CONTEXT)
    texts = {
        "config.json": _json(_config(shape, ends)),
        "generation_config.json": _json({"do_sample": False, **ends}),
        "model.safetensors.index.json": _json(index(shards)),
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config_json(vocabulary, context_tokens=context),
        "chat_template.jinja": chat_template(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _config(shape: Shape, ends: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in shape.config.items() if not key.startswith("quantization")}
    config = {**kept, **ends, "torch_dtype": shape.dtype}
    if shape.quantization is not None:
        config |= {"quantization": shape.quantization, "quantization_config": shape.quantization}
    return config


def _write_weights(folder: Path, shards: Sequence[Shard], *, seed: int, report: Report) -> None:
    progress = _Progress(shards, report)
    for shard in shards:
        with open_shard(folder, shard) as handle:
            file = ShardFile(handle, shard)
            for spec in shard.specs:
                _write_parameter(file, spec, seed=seed, progress=progress)


def _write_parameter(file: ShardFile, spec: TensorSpec, *, seed: int, progress: _Progress) -> None:
    import mlx.core as mx

    progress.tensors += len(spec.stored())
    for part in parts(spec, seed=seed):
        file.append(part)
        progress.written(sum(value.nbytes for value in part.values()))
    # MLX keeps freed buffers of each size; with hundreds of shapes that would add up.
    mx.clear_cache()


class _Progress:
    """A line for each twentieth of the bytes, and how long the rest should take."""

    def __init__(self, shards: Sequence[Shard], report: Report) -> None:
        self.tensors = 0
        self._report = report
        self._all_tensors = sum(len(shard.starts) for shard in shards)
        self._all_bytes = sum(stored.nbytes for shard in shards for spec in shard.specs for stored in spec.stored())
        self._bytes = 0
        self._started = time.monotonic()

    def written(self, nbytes: int) -> None:
        """Counts one part."""
        before = self._bytes * _STEPS // self._all_bytes
        self._bytes += nbytes
        if self._bytes * _STEPS // self._all_bytes > before:
            self._report(self._line())

    def _line(self) -> str:
        share = self._bytes / self._all_bytes
        left = (time.monotonic() - self._started) * (1 - share) / share
        return (
            f"{share:4.0%}  {units.memory(self._bytes)} of {units.memory(self._all_bytes)}, "
            f"tensor {self.tensors} of {self._all_tensors}, {units.seconds(left)} left"
        )


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
