"""How far the host may run ahead of the accelerator while a prompt is read.

Whoever builds a step's graph is done long before the accelerator is, and what has been begun has its memory already:
for a long chunk that would be the activations of all layers at once.
"""

from __future__ import annotations

from collections import deque

import mlx.core as mx

from llmbench_engine.kv_cache import LayerCache

LAYERS_AHEAD = 2
"""Layers that may be underway: enough for the accelerator never to wait."""

PACED_FROM = 512
"""Tokens from which on a step's activations count, and a wait for them doesn't."""


class Pace:
    """Called after each layer of a step of `tokens` tokens; of long ones at most `LAYERS_AHEAD` layers are underway."""

    __slots__ = ("_begun",)

    def __init__(self, tokens: int) -> None:
        self._begun: deque[mx.array] | None = deque() if tokens >= PACED_FROM else None

    def __call__(self, x: mx.array, past: LayerCache | None = None) -> None:
        """Begin to compute a layer's result, and what its cache keeps of it."""
        if self._begun is None:
            return
        mx.async_eval(x, [] if past is None else past.arrays)  # type: ignore[no-untyped-call]
        self._begun.append(x)
        if len(self._begun) > LAYERS_AHEAD:
            mx.eval(self._begun.popleft())
