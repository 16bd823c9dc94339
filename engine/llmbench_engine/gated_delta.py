"""The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), in forms that agree.

For each head, a memory S [value width, key width] reads and corrects itself with every token:

    S ← γ S;   S ← S + β (v - S k) kᵀ;   y = S q

Shapes: q, k [batch, tokens, key heads, key width]; v [batch, tokens, value heads, value width]; decay (γ) and beta
[batch, tokens, value heads]; memory [batch, value heads, value width, key width]. Value heads come in groups: value
head h uses key head h // (value heads / key heads). All are float32, v and beta may be narrower. Results, in float32: y
like v, and the new memory.
"""

from __future__ import annotations

from functools import partial

import mlx.core as mx

from llmbench_engine import gated_delta_cuda
from llmbench_engine.backend import on_metal

CHUNK = 32
"""Tokens whose corrections are solved for at once."""

SEGMENT = 512
"""Tokens whose chunks are prepared at once; it bounds the memory for them."""

LEAF = 4
"""Triangular blocks of this size are inverted by a series, which loses precision in larger ones."""


def update(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, memory: mx.array
) -> tuple[mx.array, mx.array]:
    """The form that suits the backend and the number of tokens: the one place where it is chosen."""
    if on_metal():
        return fused(q, k, v, decay, beta, memory)
    if gated_delta_cuda.suits(k.shape[-1], v.shape[0] * v.shape[2]):
        return gated_delta_cuda.scan(q, k, v, decay, beta, memory)
    if q.shape[1] == 1:
        return step(q, k, v, decay, beta, memory)
    return chunked(q, k, v, decay, beta, memory)


def fused(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, memory: mx.array
) -> tuple[mx.array, mx.array]:
    """MLX's own operation. It rounds γ to the type of q, so that q has to be float32 for γ near 1."""
    beta, v = beta.astype(mx.float32), v.astype(mx.float32)
    y, memory = mx.fast.gated_delta_update(q, k, v, decay, beta, memory)
    return y, memory


def step(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, memory: mx.array
) -> tuple[mx.array, mx.array]:
    """One token: two matrix-vector products and one pass over the memory."""
    batch, _, key_heads, key_width = k.shape
    heads, width = v.shape[2:]
    grouped = (batch, key_heads, heads // key_heads * width, key_width)
    by_head = (batch, key_heads, heads // key_heads, 1, 1)
    read = memory.reshape(grouped) @ k.reshape(batch, key_heads, key_width, 1)
    memory = _correct(
        memory.reshape(batch, key_heads, -1, width, key_width),
        read.reshape(batch, key_heads, -1, width, 1),
        v.reshape(batch, key_heads, -1, width, 1),
        k.reshape(batch, key_heads, 1, 1, key_width),
        decay.reshape(by_head),
        beta.reshape(by_head),
    )
    y = memory.reshape(grouped) @ q.reshape(batch, key_heads, key_width, 1)
    return y.reshape(batch, 1, heads, width), memory.reshape(batch, heads, width, key_width)


@partial(mx.compile, shapeless=True)
def _correct(memory: mx.array, read: mx.array, v: mx.array, k: mx.array, decay: mx.array, beta: mx.array) -> mx.array:
    return decay * memory + (beta * (v - decay * read)) * k


def chunked(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    decay: mx.array,
    beta: mx.array,
    memory: mx.array,
    *,
    chunk: int = CHUNK,
    segment: int = SEGMENT,
) -> tuple[mx.array, mx.array]:
    """Many tokens: matrix products within a chunk, and from chunk to chunk. `chunk` is a power of two."""
    v, log_decay, beta = v.astype(mx.float32), mx.log(decay), beta.astype(mx.float32)
    parts = []
    for start in range(0, q.shape[1], segment):
        here = slice(start, start + segment)
        y, memory = _segment(q[:, here], k[:, here], v[:, here], log_decay[:, here], beta[:, here], memory, chunk=chunk)
        parts.append(y)
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1), memory


def _segment(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, beta: mx.array, memory: mx.array,
    *, chunk: int,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """Chunks lead in all arrays: [chunks, batch, key heads, group, chunk, ...].

    With D the decay from one token of the chunk to another, and L the one since its start, the corrections are
    (I + tril(β K Kᵀ D))⁻¹ β (V - L K Sᵀ) = U - W Sᵀ (the WY form of the paper's section 3.3), linear in the memory S.
    """
    batch, tokens, key_heads, key_width = k.shape
    heads, width = v.shape[2:]
    size = min(chunk, max(LEAF, 1 << (tokens - 1).bit_length()))
    q, k = (_in_chunks(a, size, key_heads) for a in (q, k))
    v, log_decay, beta = (_in_chunks(a, size, key_heads) for a in (v, log_decay[..., None], beta[..., None]))
    between, since = _decays(log_decay.squeeze(-1))
    keys_t = k.swapaxes(-1, -2)
    solved = invert_unit_lower(_strictly_lower(beta, k @ keys_t, between)) * beta.swapaxes(-1, -2)
    u, w = solved @ v, (solved * since.swapaxes(-1, -2)) @ k
    attention = (q @ keys_t) * between
    to_end = between[..., -1:, :].swapaxes(-1, -2)
    memory = memory.reshape(batch, key_heads, -1, width, key_width)
    y, memory = _walk(q * since, k, u, w, attention, to_end, since[..., -1:, :], memory)
    y = y.transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, heads, width)[:, :tokens]
    return y, memory.reshape(batch, heads, width, key_width)


def _walk(
    q: mx.array, k: mx.array, u: mx.array, w: mx.array, attention: mx.array, to_end: mx.array, total: mx.array,
    memory: mx.array,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """Chunk by chunk: its corrections, its results, and what it leaves in the memory."""
    parts = []
    for i in range(u.shape[0]):
        corrections = u[i] - w[i] @ memory.swapaxes(-1, -2)
        parts.append(attention[i] @ corrections + q[i] @ memory.swapaxes(-1, -2))
        memory = total[i] * memory + (corrections * to_end[i]).swapaxes(-1, -2) @ k[i]
    return mx.stack(parts), memory


def _in_chunks(a: mx.array, size: int, key_heads: int) -> mx.array:
    """[batch, tokens, heads, width] → [chunks, batch, key heads, group, size, width], padded with tokens of no effect.

    Zeros have none: ln γ = 0 forgets nothing, β = 0 writes nothing.
    """
    batch, tokens, heads, width = a.shape
    missing = -tokens % size
    if missing:
        a = mx.pad(a, [(0, 0), (0, missing), (0, 0), (0, 0)])
    return a.reshape(batch, -1, size, key_heads, heads // key_heads, width).transpose(1, 0, 3, 4, 2, 5)


def _decays(log_decay: mx.array) -> tuple[mx.array, mx.array]:
    """[..., size] → decay from token j to token i ≥ j [..., size, size] (else 0), and since the start [..., size, 1].

    Sums are taken afresh for each j: differences of one running sum would cancel after a γ near 0.
    """
    size = log_decay.shape[-1]
    steps = mx.where(mx.tri(size, k=-1, dtype=mx.bool_), log_decay[..., None], 0.0)
    between = mx.where(mx.tri(size, dtype=mx.bool_), mx.exp(mx.cumsum(steps, axis=-2)), 0.0)
    return between, mx.exp(mx.cumsum(log_decay, axis=-1))[..., None]


def _strictly_lower(beta: mx.array, products: mx.array, between: mx.array) -> mx.array:
    size = products.shape[-1]
    return mx.where(mx.tri(size, k=-1, dtype=mx.bool_), beta * products * between, 0.0)


def invert_unit_lower(lower: mx.array) -> mx.array:
    """(I + lower)⁻¹ for strictly lower triangular matrices [..., n, n], n a power of two from LEAF on.

    By halves: the inverse of [[P, 0], [R, Q]] is [[P⁻¹, 0], [-Q⁻¹ R P⁻¹, Q⁻¹]]. A power series of the whole would be
    useless: equal keys give powers with entries as large as binomial(n, n / 2).
    """
    *lead, size, _ = lower.shape
    blocks = _diagonal_blocks(lower, LEAF)
    eye = mx.eye(LEAF)
    inverse = (eye - blocks) @ (eye + blocks @ blocks)
    half = LEAF
    while half < size:
        pairs = inverse.reshape(*lead, -1, 2, half, half)
        first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
        corner = _diagonal_blocks(lower, 2 * half)[..., half:, :half]
        corner = -(second @ corner @ first)
        top = mx.concatenate([first, mx.zeros_like(first)], axis=-1)
        bottom = mx.concatenate([corner, second], axis=-1)
        inverse = mx.concatenate([top, bottom], axis=-2)
        half *= 2
    return inverse.reshape(*lead, size, size)


def _diagonal_blocks(a: mx.array, size: int) -> mx.array:
    """[..., n, n] → [..., n / size, size, size]."""
    count = a.shape[-1] // size
    tiles = a.reshape(*a.shape[:-2], count, size, count, size)
    return mx.diagonal(tiles, axis1=-4, axis2=-2).transpose(*range(a.ndim - 2), -1, -3, -2)
