"""Which array of a checkpoint is quantized, and how: the dictionary `quantization` of config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pytest_llmbench.checkpoints.random.layout import Parameter
from pytest_llmbench.errors import UsageError
from pytest_llmbench.yaml_nodes import suggestion

Entry = Mapping[str, Any]

_PRESETS: Mapping[str, Entry] = MappingProxyType(
    {
        **{f"{bits}bit": {"group_size": 64, "bits": bits, "mode": "affine"} for bits in (2, 3, 4, 5, 6, 8)},
        "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
        "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    }
)
UNQUANTIZED = "bf16"
QUANTS = (*_PRESETS, UNQUANTIZED)
"""Names that `--quant` takes."""

_SENSITIVE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemma4": ("router.proj",),
        "gemma4_text": ("router.proj",),
        "gpt_oss": ("mlp.router",),
        "qwen3_5": ("mlp.gate", "mlp.shared_expert_gate"),
        "qwen3_5_moe": ("mlp.gate", "mlp.shared_expert_gate"),
    }
)
"""Layers that mlx-lm 0.32.2 gives 8 bits in each conversion, whatever the rest gets."""

_SENSITIVE_ENTRY: Entry = MappingProxyType({"group_size": 64, "bits": 8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Quant:
    """One layer's quantization. `affine` has scales and biases in the model's float type, the others 8-bit scales."""

    bits: int
    group_size: int
    mode: str = "affine"


def preset(name: str) -> dict[str, Any] | None:
    """Top level of `quantization` for `4bit`, `mxfp4` …; None for `bf16`. Raises UsageError for another name."""
    if name == UNQUANTIZED:
        return None
    if name not in _PRESETS:
        raise UsageError(f"unknown quantization {name!r}: {suggestion(name, QUANTS)}")
    return dict(_PRESETS[name])


def sensitive(model_type: str) -> dict[str, Entry]:
    """Ends of layer names → entry, for the routers that keep 8 bits."""
    return dict.fromkeys(_SENSITIVE.get(model_type, ()), _SENSITIVE_ENTRY)


def expand(top: Entry | None, rules: Mapping[str, Entry], parameters: Iterable[Parameter]) -> dict[str, Any] | None:
    """`quantization` as config.json has it: `top`, and an entry for each layer whose name ends with a rule's."""
    if top is None:
        return None
    document: dict[str, Any] = dict(top)
    for parameter in parameters:
        path = parameter.name.removesuffix(".weight")
        for end, entry in rules.items():
            divides = parameter.shape[-1] % entry["group_size"] == 0
            if parameter.quantizable and divides and f".{path}".endswith(f".{end}"):
                document[path] = dict(entry)
    return document


def quant_of(parameter: Parameter, quantization: Entry | None) -> Quant | None:
    """Quantization of one array: its own entry, else the top level.

    None where there is none, where the entry is `false`, and where the rows don't divide into the top level's
    groups (mlx-lm leaves such layers as they are). Raises UsageError where they don't into those of an entry.
    """
    path = parameter.name.removesuffix(".weight")
    entry = (quantization or {}).get(path, quantization)
    if not entry or not parameter.quantizable:
        return None
    quant = Quant(bits=entry["bits"], group_size=entry["group_size"], mode=entry.get("mode", "affine"))
    if parameter.shape[-1] % quant.group_size == 0:
        return quant
    if entry is not quantization:
        raise UsageError(
            f"{path} has rows of {parameter.shape[-1]}, which its quantization can't divide into groups of "
            f"{quant.group_size}; take its entry out, or give it a group size that divides them"
        )
    return None
