"""The text model inside a checkpoint of the whole Gemma 4: what sees and hears is left out."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from llmbench_engine.config import Config
from llmbench_engine.models import gemma4_text
from llmbench_engine.weights import Weights

TIED = True

PREFIX = "language_model."

OTHERS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio", "vision_embedder", "multi_modal_projector")
"""How the names of tensors begin that text doesn't need."""


def text_weights(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    """The tensors that the model may use."""
    used = {name: a for name, a in arrays.items() if not name.removeprefix("model.").startswith(OTHERS)}
    used = gemma4_text.text_weights(used, tied)
    return {name: a for name, a in used.items() if not (tied and name.startswith(f"{PREFIX}lm_head."))}


def build(config: Config, weights: Weights) -> gemma4_text.Gemma4:
    """The model. CheckpointError for a configuration or weights that don't fit."""
    text = config.section("text_config")
    if text is None:
        raise config.error("text_config", "is missing; an object is needed")
    vocabulary = text.positive("vocab_size", int)
    config.only("vocab_size", vocabulary)
    config.only("tie_word_embeddings", text.get("tie_word_embeddings", bool, TIED))
    config.finish()
    return gemma4_text.build_text(text, weights, PREFIX)
