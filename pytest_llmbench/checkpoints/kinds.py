"""One tiny checkpoint for each kind of model that a parity run knows, 4-bit, with random weights; made with MLX."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.checkpoints import publish
from pytest_llmbench.checkpoints.random import shape_of, write_checkpoint
from pytest_llmbench.checkpoints.tokenizer import VOCAB_SIZE, make_vocabulary
from pytest_llmbench.errors import UsageError

MARKER: Final = "llmbench-kinds.json"

_SEED: Final = 3
_QUANTIZATION: Final = MappingProxyType({"group_size": 64, "bits": 4, "mode": "affine"})
# MLX's CPU kernels take 20 times as long with 16-bit scales.
_DTYPE: Final = "float32"
_BODY: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
)
_EXPERTS: Final[Mapping[str, Any]] = MappingProxyType(
    {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
)
_HYBRID: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **_BODY,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }
)
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "tiny-dense": {**_BODY, "model_type": "qwen3", "rope_theta": 1e6},
        "tiny-moe": {
            **_BODY,
            **_EXPERTS,
            "model_type": "qwen3_moe",
            "rope_theta": 1e6,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
        },
        "tiny-hybrid": {"model_type": "qwen3_5", "text_config": dict(_HYBRID)},
        "tiny-hybrid-moe": {
            "model_type": "qwen3_5_moe",
            "text_config": {**_HYBRID, **_EXPERTS, "shared_expert_intermediate_size": 128},
        },
    }
)
"""config.json of each, by its name; the name ends with the kind."""


def make_kinds(directory: Path, *, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Makes the folders of `CONFIGS` in `directory`, or leaves a complete set as it is.

    Nothing else in `directory` is touched; of two processes that call it at once, one waits. `report` gets a line for
    each folder. Raises UsageError when `directory` can't be written, Unavailable without MLX.
    """
    maker = _recipe_digest()
    try:
        with publish.locked(directory):
            if publish.is_complete(directory, maker=maker, marker=MARKER):
                report(f"already there: {directory} (one model of each kind)")
            else:
                _make(directory, maker=maker, report=report)
    except OSError as error:
        raise UsageError(f"can't write the tiny checkpoints to {directory}: {error}; name another folder") from error
    return tuple(directory / name for name in CONFIGS)


def _make(directory: Path, *, maker: str, report: Callable[[str], None]) -> None:
    vocabulary = make_vocabulary()
    with publish.staging(directory) as folder:
        for name, config in CONFIGS.items():
            shape = shape_of({**config, "torch_dtype": _DTYPE}, dict(_QUANTIZATION))
            write_checkpoint(shape, folder / name, seed=_SEED, report=lambda _progress: None, vocabulary=vocabulary)
        publish.publish(folder, directory, tuple(CONFIGS), maker=maker, marker=MARKER)
    for name in CONFIGS:
        report(f"made {directory / name}")


def _recipe_digest() -> str:
    """SHA-256 of the sources that decide what is written: a set made by other ones is made again."""
    package = resources.files("pytest_llmbench.checkpoints")
    folders: tuple[Traversable, ...] = (package, package / "data", package / "random")
    digest = hashlib.sha256()
    for file in sorted((file for folder in folders for file in folder.iterdir()), key=lambda file: file.name):
        if file.name.endswith((".py", ".txt", ".jinja")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
