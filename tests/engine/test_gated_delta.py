"""All forms of the gated delta rule against the recurrence in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench_engine import gated_delta_cuda
from llmbench_engine.backend import on_cuda
from llmbench_engine.gated_delta import LEAF, chunked, fused, invert_unit_lower, step, update
from llmbench_engine.gated_delta_cuda import scan, suits

Form = Callable[..., tuple[mx.array, mx.array]]
Arrays = list[np.ndarray]

TOLERANCE = 4e-5
"""Values are about 1; a float32 rounding is 6e-8, and with γ near 1 those of 150 tokens add up."""

GATES = {
    "near 0": lambda rng, shape: rng.choice([0.0, 1e-38, 1e-7, 1e-3], shape),
    "near 1": lambda rng, shape: 1 - rng.choice([0.0, 1e-7, 1e-5, 1e-3], shape),
    "between": lambda rng, shape: rng.uniform(0.3, 1.0, shape),
    "mixed": lambda rng, shape: rng.choice([0.0, 1e-30, 0.5, 0.9999, 1.0], shape),
}


def recurrence(q: np.ndarray, k: np.ndarray, v: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q, k, v, decay, beta, memory = (a.astype(np.float64) for a in (q, k, v, *rest))
    group = v.shape[2] // q.shape[2]
    q, k = (np.repeat(a, group, axis=2) for a in (q, k))
    results = []
    for t in range(q.shape[1]):
        memory = memory * decay[:, t, :, None, None]
        correction = beta[:, t, :, None] * (v[:, t] - np.einsum("bhvk,bhk->bhv", memory, k[:, t]))
        memory = memory + np.einsum("bhv,bhk->bhvk", correction, k[:, t])
        results.append(np.einsum("bhvk,bhk->bhv", memory, q[:, t]))
    return np.stack(results, axis=1), memory


def draw(
    seed: int,
    tokens: int,
    gate: str,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (2, 2),
    widths: tuple[int, int] = (16, 8),
    equal_keys: bool = False,
) -> Arrays:
    """q, k, v, γ, β and a memory; keys and queries of length 1; `heads`: key heads and value heads for each."""
    rng = np.random.default_rng(seed)
    (key_heads, group), (key_width, width) = heads, widths
    q, k = (rng.normal(size=(batch, tokens, key_heads, key_width)) for _ in range(2))
    if equal_keys:
        k[:] = k[:, :1]
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    by_head = (batch, tokens, key_heads * group)
    v, memory = rng.normal(size=(*by_head, width)), rng.normal(size=(batch, key_heads * group, width, key_width))
    beta = rng.choice([0.0, 0.2, 0.9, 0.9999, 1.0], by_head)
    return [a.astype(np.float32) for a in (q, k, v, GATES[gate](rng, by_head), beta, memory)]


def check(form: Form, arrays: Arrays, tolerance: float = TOLERANCE) -> None:
    wanted_y, wanted_memory = recurrence(*arrays)
    y, memory = form(*map(mx.array, arrays))
    assert y.dtype == memory.dtype == mx.float32
    np.testing.assert_allclose(np.array(y), wanted_y, rtol=0, atol=tolerance)
    np.testing.assert_allclose(np.array(memory), wanted_memory, rtol=0, atol=tolerance)


SIZES = {
    "seed": st.integers(0, 2**32 - 1),
    "gate": st.sampled_from(list(GATES)),
    "batch": st.integers(1, 2),
    "heads": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "widths": st.tuples(st.sampled_from([1, 5, 16, 32]), st.sampled_from([1, 7, 16])),
    "equal_keys": st.booleans(),
}


@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(SIZES),
    st.integers(1, 150),
    st.sampled_from([4, 16, 64]),
    st.sampled_from([1, 2]),
)
def test_chunked_is_the_recurrence(sizes: dict[str, object], tokens: int, chunk: int, many: int) -> None:
    arrays = draw(tokens=tokens, **sizes)  # type: ignore[arg-type]
    check(partial(chunked, chunk=chunk, segment=many * 64), arrays)


@settings(max_examples=25, deadline=None)
@given(st.fixed_dictionaries(SIZES))
def test_step_is_one_token_of_the_recurrence(sizes: dict[str, object]) -> None:
    check(step, draw(tokens=1, **sizes))  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(st.fixed_dictionaries(SIZES), st.integers(1, 40))
def test_operation_of_mlx_is_the_recurrence(sizes: dict[str, object], tokens: int) -> None:
    check(fused, draw(tokens=tokens, **sizes))  # type: ignore[arg-type]


@pytest.mark.skipif(not mx.cuda.is_available(), reason="a kernel for MLX's CUDA backend, which isn't here")
@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(SIZES | {"widths": st.tuples(st.sampled_from([32, 128]), st.sampled_from([1, 7, 128]))}),
    st.integers(1, 40),
)
def test_kernel_is_the_recurrence(sizes: dict[str, object], tokens: int) -> None:
    arrays = draw(tokens=tokens, **sizes)  # type: ignore[arg-type]
    check(scan, arrays)
    for i in (2, 4):
        arrays[i] = np.array(mx.array(arrays[i]).astype(mx.bfloat16).astype(mx.float32))
    check(lambda *a: scan(*_narrowed(a)), arrays)


def test_kernel_is_not_for_other_backends_widths_or_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suits(128, 48) == on_cuda()
    monkeypatch.setattr(gated_delta_cuda, "on_cuda", lambda: True)
    assert [suits(width, heads) for width, heads in ((128, 48), (48, 48), (128, 65536))] == [True, False, False]


@settings(max_examples=15, deadline=None)
@given(st.fixed_dictionaries(SIZES), st.integers(1, 70), st.integers(0, 70))
def test_pieces_give_what_the_whole_gives(sizes: dict[str, object], tokens: int, cut: int) -> None:
    """What is chosen for a long piece, a short one and single tokens fits together."""
    arrays = [mx.array(a) for a in draw(tokens=tokens, **sizes)]  # type: ignore[arg-type]
    whole, last = update(*arrays)
    *inputs, memory = arrays
    parts = []
    for piece in (slice(0, min(cut, tokens)), *(slice(t, t + 1) for t in range(cut, tokens))):
        if piece.start < piece.stop:
            y, memory = update(*(a[:, piece] for a in inputs), memory)
            parts.append(y)
    np.testing.assert_allclose(np.array(mx.concatenate(parts, axis=1)), np.array(whole), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(np.array(memory), np.array(last), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("gate", GATES)
def test_real_widths_and_many_chunks(gate: str) -> None:
    check(chunked, draw(1, 600, gate, heads=(1, 2), widths=(128, 128)), 2 * TOLERANCE)


def test_narrower_values_and_beta_are_computed_in_float32() -> None:
    arrays = draw(3, 70, "between")
    for i in (2, 4):
        arrays[i] = np.array(mx.array(arrays[i]).astype(mx.bfloat16).astype(mx.float32))
    for form in (chunked, fused):
        check(lambda *a, form=form: form(*_narrowed(a)), arrays)
    check(lambda *a: step(*_narrowed(a)), [a[:, :1] if a.shape[1] == 70 else a for a in arrays])


def _narrowed(arrays: tuple[mx.array, ...]) -> list[mx.array]:
    return [a.astype(mx.bfloat16) if i in (2, 4) else a for i, a in enumerate(arrays)]


@pytest.mark.parametrize("decay", [0.9, 0.99, 0.998, 0.9995])
def test_mlx_needs_float32_to_keep_decay_exact(decay: float) -> None:
    """With q in bfloat16 its operation rounds γ, too: the error is far above that of rounded q, k and v."""
    arrays = draw(5, 300, "between", widths=(32, 16))
    arrays[:3] = [np.array(mx.array(a).astype(mx.bfloat16).astype(mx.float32)) for a in arrays[:3]]
    arrays[3] = np.full_like(arrays[3], decay)
    check(fused, arrays)
    q, k, v, *rest = map(mx.array, arrays)
    _, rounded = mx.fast.gated_delta_update(*(a.astype(mx.bfloat16) for a in (q, k, v)), *rest)
    assert np.abs(np.array(rounded) - recurrence(*arrays)[1]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("size", [LEAF, 16, 64, 128])
def test_inverse_of_equal_keys_is_exact(size: int) -> None:
    """Powers of this matrix reach binomial(size, size / 2); its inverse has ones and minus ones."""
    lower = np.tril(np.ones((2, size, size), np.float32), -1)
    inverse = np.array(invert_unit_lower(mx.array(lower)))
    np.testing.assert_allclose(inverse, np.broadcast_to(np.eye(size) - np.eye(size, k=-1), lower.shape), atol=1e-6)


def test_inverse_of_random_triangles() -> None:
    lower = np.tril(np.random.default_rng(0).uniform(-1, 1, (3, 32, 32)), -1) / 4
    inverse = np.array(invert_unit_lower(mx.array(lower.astype(np.float32))))
    np.testing.assert_allclose(inverse @ (np.eye(32) + lower), np.broadcast_to(np.eye(32), lower.shape), atol=1e-5)


def test_decays_after_a_forgotten_past_stay_exact() -> None:
    """Differences of one running sum of logarithms would be off by 1e-4 here."""
    arrays = draw(9, 64, "near 1")
    arrays[3][:] = 0.999
    arrays[3][:, :20] = 1e-37
    check(chunked, arrays, 1e-5)
