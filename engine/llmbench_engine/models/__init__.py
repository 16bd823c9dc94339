"""One module a `model_type`; each has `build(config, weights)` and `TIED`, the default of `tie_word_embeddings`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmbench_engine.errors import CheckpointError

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
"""The module here for each `model_type`; none is imported by this one, so that it can be asked without MLX."""


def module_for(values: Mapping[str, Any], folder: Path) -> str:
    """The name of the module for the folder's configuration. CheckpointError for a `model_type` that has none."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in MODULES:
        supported = ", ".join(sorted(MODULES))
        raise CheckpointError(f"is {kind!r}; supported: {supported}", path=folder / "config.json", key="model_type")
    return MODULES[kind]
