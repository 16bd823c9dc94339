"""Strict reading of a checkpoint's `config.json`.

A key that is neither read by the model nor known to leave the mathematics alone is an error: silently dropped, a new
rope parameter would give wrong numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from llmbench_engine.errors import CheckpointError

T = TypeVar("T")
N = TypeVar("N", int, float)

LARGEST: Mapping[type, int] = {int: 1 << 24, float: 1 << 53}
"""No model's numbers are larger. A damaged one would cost memory, or give NaN, before a weight is found not to fit."""

HARMLESS = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "attn_logit_softcapping_note", "audio_config",
        "audio_token_id", "audio_token_index", "auto_map", "boa_token_id", "boi_token_id", "bos_token_id",
        "dtype", "eoa_token_id", "eoa_token_index", "eoi_token_id", "eos_token_id", "head_dim_note", "id2label",
        "image_token_id", "image_token_index", "initial_context_length", "initializer_range", "label2id",
        "language_model_only", "max_position_embeddings", "mlp_note", "model_name", "model_type",
        "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "output_attentions", "output_hidden_states",
        "output_router_logits", "pad_token_id", "pretraining_tp", "quantization", "quantization_config",
        "router_aux_loss_coef", "router_jitter_noise", "torch_dtype", "transformers_version", "unsloth_fixed",
        "unsloth_version", "use_cache", "video_token_id", "vision_config", "vision_end_token_id",
        "vision_soft_tokens_per_image", "vision_start_token_id", "vocab_size_note",
    }
)  # fmt: skip
"""Keys that say nothing about the text model's forward pass."""


MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")
"""Ways of packing, as MLX names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a weight is packed; `mode` as `mx.quantize` names it."""

    group_size: int
    bits: int
    mode: str


class Config:
    """One JSON object of the configuration; remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self._values = values
        self._read: set[str] = set()
        self.path = path
        self._prefix = prefix

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a key that must be there. CheckpointError otherwise."""
        if self._values.get(key) is None:
            raise self.error(key, f"is missing; a {kind.__name__} is needed")
        return self._checked(key, kind)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of a key, or the default where it is absent or null."""
        self._read.add(key)
        return default if self._values.get(key) is None else self._checked(key, kind)

    def positive(self, key: str, kind: type[N], default: N | None = None, *, most: N | None = None) -> N:
        """As `need`, or with a default `get`, of a number that makes no sense at 0 or above `most`."""
        value = self.need(key, kind) if default is None else self.get(key, kind, default)
        if not value:
            raise self.error(key, "is 0; it has to be more")
        if most is not None and value > most:
            raise self.error(key, f"is {value}; it can be at most {most}")
        return value

    def need_or_null(self, key: str, kind: type[T]) -> T | None:
        """The value of a key that must be there, where null has a meaning of its own. CheckpointError otherwise."""
        if key not in self._values:
            raise self.error(key, f"is missing; a {kind.__name__} or null is needed")
        self._read.add(key)
        return None if self._values[key] is None else self._checked(key, kind)

    def section(self, key: str) -> Config | None:
        """A nested object as a `Config` of its own."""
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"is a {type(value).__name__}, not an object")
        return Config(value, self.path, f"{self._prefix}{key}.")

    def only(self, key: str, *allowed: Any) -> None:
        """A key that may be absent or null, but whose other values this engine doesn't implement."""
        self._read.add(key)
        value = self._values.get(key)
        if value is not None and value not in allowed:
            supported = ", ".join(repr(v) for v in allowed)
            raise self.error(key, f"is {value!r}; supported: {supported}")

    def finish(self) -> None:
        """CheckpointError for the first key that nobody read and that isn't known to be harmless."""
        for key in self._values:
            if key not in self._read and key not in HARMLESS:
                raise self.error(key, "is not known to this engine and may change the results")

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(problem, path=self.path, key=f"{self._prefix}{key}")

    def _checked(self, key: str, kind: type[T]) -> T:
        self._read.add(key)
        value = self._values[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if number and kind in (int, float) and not 0 <= value <= LARGEST[kind]:
            raise self.error(key, f"is {value!r}; it has to be from 0 to {LARGEST[kind]:,}")
        if number and kind is float:
            return kind(value)  # type: ignore[call-arg]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"is {value!r}; a {kind.__name__} is needed")
        return value


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. CheckpointError where it is missing or no JSON object."""
    path = folder / "config.json"
    values = read_object(path)
    if values is None:
        problem = "is missing; is this a checkpoint folder? `hf download MODEL --local-dir FOLDER` brings one"
        raise CheckpointError(problem, path=path, key="")
    return values


def read_object(path: Path) -> dict[str, Any] | None:
    """A file's JSON object, None where there is no file. CheckpointError where it is something else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"can't be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"is not JSON: {error}", path=path) from error
    if not isinstance(values, dict):
        raise CheckpointError("is not a JSON object", path=path)
    return values


class QuantizationTable:
    """The quantization of each weight: the checkpoint's default, and its exceptions by path."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._path = path
        table = values.get("quantization") or values.get("quantization_config") or {}
        if not isinstance(table, Mapping):
            raise CheckpointError(f"is {table!r}; an object is needed", path=path, key="quantization")
        self._default = {k: v for k, v in table.items() if not isinstance(v, Mapping)}
        self._exceptions = {k: v for k, v in table.items() if isinstance(v, Mapping)}

    def of(self, name: str) -> Quantization:
        """The quantization of the weight `name`. CheckpointError where bits or group size are missing or wrong."""
        own = self._exceptions.get(name)
        # An exception is whole: one that names no mode is affine, whatever the default's is.
        chosen = self._default if own is None else own
        said = Config(chosen, self._path, f"quantization of {name}: ")
        mode = said.get("mode", str, "affine")
        if mode not in MODES:
            raise said.error("mode", f"is {mode!r}; supported: {', '.join(MODES)}")
        return Quantization(group_size=said.positive("group_size", int), bits=said.positive("bits", int), mode=mode)
