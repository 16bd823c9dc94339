"""From a checkpoint folder to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx

from llmbench_engine.backend import on_cuda
from llmbench_engine.config import Config, QuantizationTable, read_config
from llmbench_engine.models import module_for
from llmbench_engine.reading import Behind, Readers, Reading
from llmbench_engine.shards import read_arrays
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights


def load_model(folder: Path) -> Model:
    """The folder's model, its weights in memory. CheckpointError names the file and the key that don't fit."""
    with begin_model(read_config(folder), folder) as model:
        pass
    return model


def build_model(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> Model:
    """The model of a configuration and tensors under the checkpoint's names."""
    kept = text_weights(values, arrays, folder)
    # Else the parts of a fused weight would stay beside it until everything is loaded.
    del arrays
    with closing(Behind()) as reading:
        model = assemble(values, kept, folder, reading)
        reading.wait()
    return model


@contextmanager
def begin_model(
    values: Mapping[str, Any], folder: Path, rehearse: Callable[[Model], None] | None = None
) -> Iterator[Model]:
    """The folder's model: its last tensors may be read while the body runs, after it they are in memory.

    `rehearse` is called with the model's `excerpt` as soon as that is in memory; only where there is something to be
    read meanwhile.
    """
    threads = on_cuda()
    reading: Reading = Readers() if threads else Behind()
    with closing(reading):
        tensors = reading.tensors(lambda stream: text_weights(values, read_arrays(folder, stream), folder))
        yield assemble(values, tensors, folder, reading, rehearse if threads else None)
        reading.wait()


def text_weights(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> dict[str, mx.array]:
    """Those tensors that the text model uses, under the names that it looks for. CheckpointError for other models."""
    module = _module(values, folder)
    tied = bool(values.get("tie_word_embeddings", module.TIED))
    if hasattr(module, "text_weights"):
        kept: dict[str, mx.array] = module.text_weights(arrays, tied)
        return kept
    return _without_computed(arrays, tied)


def assemble(
    values: Mapping[str, Any],
    arrays: dict[str, mx.array],
    folder: Path,
    reading: Reading,
    rehearse: Callable[[Model], None] | None = None,
) -> Model:
    """As `begin_model`, from what `text_weights` gave, which is emptied so that parts can go once they are fused."""
    weights = Weights(arrays, QuantizationTable(values, folder / "config.json"), folder, reading)
    arrays.clear()
    model: Model = _module(values, folder).build(Config(values, folder / "config.json"), weights)
    weights.finish()
    if rehearse is not None:
        excerpt, layers = model.excerpt()
        reading.wait(layers)
        rehearse(excerpt)
    weights.begin_rest()
    return model


def _module(values: Mapping[str, Any], folder: Path) -> Any:
    return import_module(f"llmbench_engine.models.{module_for(values, folder)}")


def _without_computed(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    from llmbench_engine.models.dense import drop_computed

    return {name: a for name, a in arrays.items() if drop_computed(name, tied=tied) is not None}
