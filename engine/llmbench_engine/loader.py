"""From a checkpoint folder to a model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx

from llmbench_engine.config import Config, QuantizationTable, read_config
from llmbench_engine.models import module_for
from llmbench_engine.shards import read_arrays
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights


def load_model(folder: Path) -> Model:
    """The folder's model, its weights in memory. CheckpointError names the file and the key that don't fit."""
    return build_model(read_config(folder), read_arrays(folder), folder)


def build_model(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> Model:
    """The model of a configuration and tensors under the checkpoint's names."""
    kept = text_weights(values, arrays, folder)
    # Else the parts of a fused weight would stay beside it until everything is loaded.
    del arrays
    model, reading = assemble(values, kept, folder)
    mx.eval(reading)
    return model


def begin_model(values: Mapping[str, Any], folder: Path) -> tuple[Model, list[mx.array]]:
    """The folder's model, and its arrays that are still being read: keep them, and evaluate them in the end."""
    return assemble(values, text_weights(values, read_arrays(folder), folder), folder)


def text_weights(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> dict[str, mx.array]:
    """Those tensors that the text model uses, under the names that it looks for. CheckpointError for other models."""
    module = _module(values, folder)
    tied = bool(values.get("tie_word_embeddings", module.TIED))
    if hasattr(module, "text_weights"):
        kept: dict[str, mx.array] = module.text_weights(arrays, tied)
        return kept
    return _without_computed(arrays, tied)


def assemble(values: Mapping[str, Any], arrays: dict[str, mx.array], folder: Path) -> tuple[Model, list[mx.array]]:
    """As `begin_model`, from what `text_weights` gave, which is emptied so that parts can go once they are fused."""
    weights = Weights(arrays, QuantizationTable(values, folder / "config.json"), folder)
    arrays.clear()
    try:
        model: Model = _module(values, folder).build(Config(values, folder / "config.json"), weights)
        weights.finish()
    finally:
        weights.wait()
    return model, weights.begin_rest()


def _module(values: Mapping[str, Any], folder: Path) -> Any:
    return import_module(f"llmbench_engine.models.{module_for(values, folder)}")


def _without_computed(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    from llmbench_engine.models.dense import drop_computed

    return {name: a for name, a in arrays.items() if drop_computed(name, tied=tied) is not None}
