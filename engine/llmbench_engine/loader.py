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
    path = folder / "config.json"
    kind = values.get("model_type")
    if kind not in MODULES:
        supported = ", ".join(sorted(MODULES))
        raise CheckpointError(f"is {kind!r}; supported: {supported}", path=path, key="model_type")
    module = import_module(f"llmbench_engine.models.{MODULES[kind]}")
    tied = bool(values.get("tie_word_embeddings", module.TIED))
    kept = module.text_weights(arrays, tied) if hasattr(module, "text_weights") else _text_weights(arrays, tied)
    weights = Weights(kept, QuantizationTable(values, path), folder)
    del kept
    model: Model = module.build(Config(values, path), weights)
    weights.finish()
    weights.materialize()
    return model


def _text_weights(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    from llmbench_engine.models.dense import drop_computed

    return {name: a for name, a in arrays.items() if drop_computed(name, tied=tied) is not None}
