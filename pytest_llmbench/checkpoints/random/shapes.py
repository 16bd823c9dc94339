"""The twelve models of the parity record, and models from any configuration of the same types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pytest_llmbench.checkpoints import corpus
from pytest_llmbench.checkpoints.random import gemma4, hybrid, llama_family
from pytest_llmbench.checkpoints.random.layout import Config, Parameter
from pytest_llmbench.checkpoints.random.quantization import Entry, expand, preset, sensitive
from pytest_llmbench.errors import UsageError
from pytest_llmbench.yaml_nodes import suggestion

SHAPES = (
    "qwen3-0.6b",
    "llama-3.2-3b",
    "llama-3.1-8b",
    "qwen3-8b",
    "qwen3.5-9b",
    "qwen3.8-27b",
    "qwen3-30b-a3b",
    "qwen3.6-35b-a3b",
    "gpt-oss-20b",
    "gpt-oss-20b-8bit",
    "gemma-4-e4b",
    "gemma-4-26b-a4b",
)
"""Names that `load_shape` knows."""

_LAYOUTS: Mapping[str, Callable[[Config], Iterator[Parameter]]] = MappingProxyType(
    {
        "llama": llama_family.llama,
        "qwen2": llama_family.qwen2,
        "qwen3": llama_family.qwen3,
        "qwen3_moe": llama_family.qwen3_moe,
        "gpt_oss": llama_family.gpt_oss,
        "qwen3_5": hybrid.qwen3_5,
        "qwen3_5_moe": hybrid.qwen3_5,
        "gemma4": gemma4.gemma4,
        "gemma4_text": gemma4.gemma4_text,
    }
)
MODEL_TYPES = tuple(_LAYOUTS)

_GEMMA4_VOCAB_SIZE = 262144
_DTYPES = ("bfloat16", "float16", "float32")
_FLOAT32 = ("linear_attn.A_log",)
"""Arrays that mlx-lm 0.32.2 keeps in float32 when it converts a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model: `config` and `quantization` as in config.json (None: not quantized), float type of the rest.

    `float32` are the ends of the names that stay in float32 all the same.
    """

    name: str
    config: Config = field(repr=False)
    quantization: Entry | None = field(default=None, repr=False)
    dtype: str = "bfloat16"
    float32: tuple[str, ...] = _FLOAT32
    model_id: str | None = None

    @property
    def text_config(self) -> Config:
        """Configuration of the text model, which some types keep one level down."""
        inner: Config = self.config.get("text_config") or self.config
        if self.config["model_type"] != "gemma4":
            return inner
        # mlx-lm overrides it with the outer one, and that has a default.
        return {**inner, "vocab_size": self.config.get("vocab_size", _GEMMA4_VOCAB_SIZE)}

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return int(self.text_config["num_hidden_layers"])

    def parameters(self) -> Iterator[Parameter]:
        """Every array before quantization. Raises UsageError when the configuration lacks a key."""
        try:
            yield from _LAYOUTS[self.config["model_type"]](self.text_config)
        except KeyError as error:
            raise UsageError(f"the configuration of {self.name} lacks {error}; add it") from error

    def with_quantization(self, quantization: Entry | str | None) -> Shape:
        """The same model in another quantization (None: in its own). Raises UsageError for an unknown name.

        It is a dictionary as in config.json, or one of `QUANTS`; with a name, routers that mlx-lm keeps in 8 bits
        stay so.
        """
        if quantization is None:
            return self
        if isinstance(quantization, str):
            rules = sensitive(self.config["model_type"])
            return replace(self, quantization=expand(preset(quantization), rules, self.parameters()))
        return replace(self, quantization=quantization)

    def with_layers(self, layers: int) -> Shape:
        """The first `layers` layers. Raises UsageError for a number that the model can't have."""
        config = _cut(self.config, self.name, layers)
        return self._with_config(config) if layers != self.layers else self

    def _with_config(self, config: dict[str, Any]) -> Shape:
        cut = replace(self, config=config)
        if self.quantization is None:
            return cut
        kept = {parameter.name.removesuffix(".weight") for parameter in cut.parameters()}
        entries = {
            key: value
            for key, value in self.quantization.items()
            if key in kept or not isinstance(value, Mapping | bool)
        }
        return replace(cut, quantization=entries)


def load_shape(name: str) -> Shape:
    """One of `SHAPES`, as the published checkpoint is. Raises UsageError with what was probably meant."""
    if name not in SHAPES:
        raise UsageError(f"unknown shape {name!r}: {suggestion(name, SHAPES)}")
    facts = json.loads(corpus.data("shapes.json"))[name]
    bare = Shape(
        name=name,
        model_id=facts["model_id"],
        config=facts["config"],
        dtype=facts["dtype"],
        float32=tuple(facts["float32"]),
    )
    return replace(bare, quantization=expand(facts["quantization"], facts["rules"], bare.parameters()))


def shape_of(config: Config, quantization: Entry | str | None = None) -> Shape:
    """A model of any of `MODEL_TYPES`; its float type is `torch_dtype` or `dtype`, else bfloat16.

    `quantization` as in `Shape.with_quantization`; by default the configuration's own, if it has one. Raises
    UsageError for an unknown type.
    """
    model_type = str(config.get("model_type"))
    if model_type not in _LAYOUTS:
        raise UsageError(f"unknown model_type {model_type!r}: {suggestion(model_type, MODEL_TYPES)}")
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    if dtype not in _DTYPES:
        raise UsageError(f"unknown torch_dtype {dtype!r}: {suggestion(dtype, _DTYPES)}")
    shape = Shape(name=model_type, config=config, dtype=dtype, quantization=config.get("quantization"))
    return shape.with_quantization(quantization)


def _cut(config: Config, name: str, layers: int) -> dict[str, Any]:
    if "text_config" in config:
        return {**config, "text_config": _cut(config["text_config"], name, layers)}
    least, most = _least_layers(config), config["num_hidden_layers"]
    if not least <= layers <= most:
        raise UsageError(f"{name} can have {least} to {most} layers, not {layers}")
    cut: dict[str, Any] = {**config, "num_hidden_layers": layers}
    if config.get("layer_types"):
        cut["layer_types"] = config["layer_types"][:layers]
    if config.get("num_kv_shared_layers"):
        cut["num_kv_shared_layers"] = _shared_layers(cut, config["num_kv_shared_layers"] * layers // most)
    return cut


def _least_layers(config: Config) -> int:
    """mlx-lm looks for one layer of each kind of attention in these types."""
    if config["model_type"].startswith("qwen3_5"):
        return int(config.get("full_attention_interval", 4))
    return 2 if config["model_type"] == "gpt_oss" else 1


def _shared_layers(config: Config, most: int) -> int:
    """Largest number up to `most`, so that a layer before them has each shared layer's kind of attention."""
    kinds = gemma4.layer_types(config)
    return next(n for n in range(most, -1, -1) if set(kinds[len(kinds) - n :]) <= set(kinds[: len(kinds) - n]))
