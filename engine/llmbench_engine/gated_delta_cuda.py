"""The gated delta rule as one kernel for MLX's CUDA backend, which has no operation of its own for it.

Lanes of a warp share one row of the memory S, [key width], in registers, and take it through the tokens: rows don't
depend on each other. Against `gated_delta.chunked`, dozens of small products, that is one launch for a layer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from llmbench_engine.backend import on_cuda

LANES = 32
"""A warp's, on every GPU; the source counts on it."""

ROWS = 4
"""Rows of the memory in one block of threads."""

GRID = 65535
"""Blocks that CUDA takes in the grid's last dimension."""

SOURCE = """
    constexpr int EACH = KEY_WIDTH / 32;
    const int lane = threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    const int sequence = blockIdx.z / HEADS, head = blockIdx.z % HEADS, key_head = head / (HEADS / KEY_HEADS);
    if (row >= WIDTH) return;
    const long long tokens = v_shape[1], start = ((long long)blockIdx.z * WIDTH + row) * KEY_WIDTH + lane;
    float s[EACH];
    for (int j = 0; j < EACH; ++j) s[j] = memory[start + 32 * j];
    for (long long t = sequence * tokens; t < (sequence + 1) * tokens; ++t) {
        const long long key = (t * KEY_HEADS + key_head) * KEY_WIDTH + lane, at = t * HEADS + head;
        const float gamma = decay[at];
        float keys[EACH], read = 0.0f, result = 0.0f;
        for (int j = 0; j < EACH; ++j) {
            keys[j] = k[key + 32 * j];
            s[j] *= gamma;
            read += s[j] * keys[j];
        }
        for (int lanes = 16; lanes; lanes /= 2) read += __shfl_xor_sync(0xffffffff, read, lanes);
        const float correction = float(beta[at]) * (float(v[at * WIDTH + row]) - read);
        for (int j = 0; j < EACH; ++j) {
            s[j] += correction * keys[j];
            result += s[j] * q[key + 32 * j];
        }
        for (int lanes = 16; lanes; lanes /= 2) result += __shfl_xor_sync(0xffffffff, result, lanes);
        if (lane == 0) y[at * WIDTH + row] = result;
    }
    for (int j = 0; j < EACH; ++j) left[start + 32 * j] = s[j];
"""


def suits(key_width: int, heads: int) -> bool:
    """Whether every lane gets as many keys, and the grid has room for the heads of all rows."""
    return on_cuda() and key_width % LANES == 0 and heads <= GRID


def scan(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, memory: mx.array
) -> tuple[mx.array, mx.array]:
    """As all forms of `gated_delta`. `suits` says where it may be called."""
    key_heads, key_width = k.shape[2:]
    batch, _, heads, width = v.shape
    sizes = {"KEY_HEADS": key_heads, "KEY_WIDTH": key_width, "HEADS": heads, "WIDTH": width}
    y, memory = _kernel()(
        inputs=[q, k, v, decay, beta, memory],
        template=list(sizes.items()),
        grid=(LANES, -(-width // ROWS) * ROWS, batch * heads),
        threadgroup=(LANES, ROWS, 1),
        output_shapes=[v.shape, memory.shape],
        output_dtypes=[mx.float32, mx.float32],
    )
    return y, memory


@cache
def _kernel() -> Any:
    names = ["q", "k", "v", "decay", "beta", "memory"]
    return mx.fast.cuda_kernel(name="gated_delta", input_names=names, output_names=["y", "left"], source=SOURCE)
