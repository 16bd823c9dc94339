"""A checkpoint as Hugging Face and MLX lay it out: one folder, weights in safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.checkpoints.tokenizer import (
    Vocabulary,
    chat_template,
    tokenizer_config_json,
    tokenizer_json,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WEIGHTS_FILE = "model.safetensors"


def write_folder(
    folder: Path, config: dict[str, Any], weights: dict[str, NDArray[Any]], vocabulary: Vocabulary
) -> None:
    """Makes `folder` (must not exist). Raises OSError."""
    folder.mkdir()
    _write_weights(folder, weights)
    texts = {
        "config.json": _json(config),
        "generation_config.json": _json(_generation_config(config)),
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config_json(vocabulary, context_tokens=config["max_position_embeddings"]),
        "chat_template.jinja": chat_template(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _write_weights(folder: Path, weights: dict[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save

    # `save_file` turns a full disk into an error of its own; written from here it stays an OSError.
    (folder / _WEIGHTS_FILE).write_bytes(save(weights, metadata={"format": "mlx"}))
    index = {
        "metadata": {"total_size": sum(value.nbytes for value in weights.values())},
        "weight_map": dict.fromkeys(sorted(weights), _WEIGHTS_FILE),
    }
    (folder / "model.safetensors.index.json").write_text(_json(index), encoding="utf-8")


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "do_sample": False,
        "eos_token_id": [config["eos_token_id"], config["pad_token_id"]],
        "pad_token_id": config["pad_token_id"],
    }


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
