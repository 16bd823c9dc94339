"""Small random models of every kind, and what the engine's tests do with them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
from random_configs import CONFIGS

from llmbench_engine import Engine, Request, Token
from llmbench_engine.cache import Cache
from llmbench_engine.loader import build_model
from llmbench_engine.transformer import Model
from pytest_llmbench.checkpoints.random import random_weights, shape_of, write_checkpoint

long_prompt = tuple(range(100, 170))
WINDOW = 8
"""Of the configurations that have one."""

KINDS = ("llama", "qwen3", "qwen3_moe", "gpt_oss", "qwen3_5", "qwen3_5_moe", "gemma4", "gemma4_text")
CACHES = ("qwen3", "gpt_oss", "qwen3_5")
"""One with keys and values alone, one with windows, one with recurrent states."""

GEMMA = {
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
"""What the engine wants to be told of Gemma 4."""


def make_model(kind: str, *, packed: str | None = None, **changes: Any) -> Model:
    """In float32; or, as checkpoints are published, in bfloat16 and packed (`4bit`, …). `changes`: other keys."""
    config = config_of(kind, changes)
    if packed is not None:
        config["torch_dtype"] = "bfloat16"
        config["quantization"] = shape_of(config, packed).quantization
    return build_model(config, random_weights(config, seed=1), Path(kind))


def config_of(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    config = deepcopy(CONFIGS[kind]) | changes
    if kind.startswith("gemma4"):
        config.get("text_config", config).update(GEMMA)
        config.pop("num_experts_per_tok", None)
    return config


def write_model(kind: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint with its tokenizer, in float32."""
    return write_checkpoint(shape_of(config_of(kind, changes)), folder, report=lambda _line: None)


class Watched:
    """A model that notes what it is called with. `largest`: bytes of a cache."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.make_cache, self.head = model.make_cache, model.head
        self.forget()

    def forget(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.caches: list[Cache] = []
        self.largest = 0

    def __call__(self, tokens: mx.array, cache: Cache, **kind: Any) -> mx.array:
        hidden = self._model(tokens, cache, **kind)
        self.shapes.append(tokens.shape)
        self.caches.append(cache)
        self.largest = max(self.largest, cache.nbytes)
        return hidden

    @property
    def tokens(self) -> int:
        return sum(rows * columns for rows, columns in self.shapes)


def ids(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens]


def together(engine: Engine, requests: Sequence[Request]) -> list[list[Token]]:
    """Submit all, step until nothing is left; each request's tokens."""
    got: dict[int, list[Token]] = {engine.submit(request): [] for request in requests}
    while engine.pending:
        for number, token in engine.step():
            got[number].append(token)
    return list(got.values())


def arrays_of(model: object) -> Iterator[mx.array]:
    """All arrays that the model holds, those in closures included."""
    seen: dict[int, object] = {}
    waiting = [model]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, (type, ModuleType)):
            continue
        seen[id(found)] = found
        if isinstance(found, mx.array):
            yield found
        elif isinstance(found, FunctionType):  # what else it refers to is its module's
            waiting.extend([*(found.__closure__ or ()), *(found.__defaults__ or ())])
        else:
            waiting.extend(gc.get_referents(found))
