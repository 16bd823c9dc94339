"""From a checkpoint folder to a model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx

from llmbench_engine.config import Config, QuantizationTable, read_config
from llmbench_engine.errors import CheckpointError
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights, read_arrays

MODULES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "gpt_oss": "gpt_oss",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4_text",
    "gemma4_unified": "gemma4",
}
"""The module of `llmbench_engine.models` for each `model_type`."""


def load_model(folder: Path) -> Model:
    """The folder's model, its weights in memory. CheckpointError names the file and the key that don't fit."""
    return build_model(read_config(folder), read_arrays(folder), folder)


def build_model(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> Model:
    """The model of a configuration and tensors under the checkpoint's names."""
    kept = text_weights(values, arrays, folder)
    # Else the parts of a fused weight would stay beside it until everything is loaded.
    del arrays
    return assemble(values, kept, folder)


def text_weights(values: Mapping[str, Any], arrays: Mapping[str, mx.array], folder: Path) -> dict[str, mx.array]:
    """Those tensors that the text model uses, under the names that it looks for. CheckpointError for other models."""
    module = _module(values, folder)
    tied = bool(values.get("tie_word_embeddings", module.TIED))
    if hasattr(module, "text_weights"):
        kept: dict[str, mx.array] = module.text_weights(arrays, tied)
        return kept
    return _without_computed(arrays, tied)


def assemble(values: Mapping[str, Any], arrays: dict[str, mx.array], folder: Path) -> Model:
    """The model from what `text_weights` gave, which is emptied so that each weight can go once it is fused."""
    weights = Weights(arrays, QuantizationTable(values, folder / "config.json"), folder)
    arrays.clear()
    model: Model = _module(values, folder).build(Config(values, folder / "config.json"), weights)
    weights.finish()
    weights.materialize()
    return model


def _module(values: Mapping[str, Any], folder: Path) -> Any:
    kind = values.get("model_type")
    if kind not in MODULES:
        supported = ", ".join(sorted(MODULES))
        raise CheckpointError(f"is {kind!r}; supported: {supported}", path=folder / "config.json", key="model_type")
    return import_module(f"llmbench_engine.models.{MODULES[kind]}")


def _without_computed(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    from llmbench_engine.models.dense import drop_computed

    return {name: a for name, a in arrays.items() if drop_computed(name, tied=tied) is not None}
