"""Which of MLX's accelerators computes: that one exists doesn't say that it is the device in use."""

from __future__ import annotations

import mlx.core as mx


def on_metal() -> bool:
    return mx.metal.is_available() and mx.default_device() == mx.gpu


def on_cuda() -> bool:
    return mx.cuda.is_available() and mx.default_device() == mx.gpu
