"""The two ways through many experts agree, and the second leaves no row out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench_engine.config import Quantization
from llmbench_engine.sparse import SparseFeedForward, blocks, unpack
from llmbench_engine.weights import Experts, Linear

COUNT, WIDTH, INNER = 6, 64, 32

PACKINGS = {
    "affine": Quantization(group_size=32, bits=4, mode="affine"),
    "mxfp4": Quantization(group_size=32, bits=4, mode="mxfp4"),
    "mxfp8": Quantization(group_size=32, bits=8, mode="mxfp8"),
    "nvfp4": Quantization(group_size=16, bits=4, mode="nvfp4"),
}


def experts(outputs: int, inputs: int, how: Quantization, *, bias: bool, seed: int) -> Experts:
    key = mx.random.key(seed)
    packed = mx.quantize(mx.random.normal((COUNT, outputs, inputs), key=key), how.group_size, how.bits, how.mode)
    added = mx.random.normal((COUNT, outputs), key=key) if bias else None
    biases = packed[2] if len(packed) > 2 else None
    return Experts(Linear(packed[0], scales=packed[1], biases=biases, bias=added, quantization=how))


@pytest.mark.parametrize("at_once", [1, 4, 5, COUNT])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_experts_unpacked_a_few_at_a_time_give_what_packed_ones_do(packing: str, bias: bool, at_once: int) -> None:
    block = SparseFeedForward(
        gate_up=experts(2 * INNER, WIDTH, PACKINGS[packing], bias=bias, seed=1),
        down=experts(WIDTH, INNER, PACKINGS[packing], bias=bias, seed=2),
    )
    # Nobody asks for expert 2, and for the last one neither.
    chosen = mx.sort(mx.array(np.random.default_rng(0).choice([0, 1, 3, 4], 90), dtype=mx.uint32))
    x = mx.random.normal((90, 1, WIDTH), key=mx.random.key(3))
    found, wanted = block.unpacked(x, chosen, at_once=at_once), block.packed(x, chosen)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * float(mx.abs(wanted).max()))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
@pytest.mark.parametrize("packing", PACKINGS)
def test_unpacked_experts_have_the_type_that_what_they_are_applied_to_has(packing: str, dtype: mx.Dtype) -> None:
    """Else results would be of a wider type, and with them all that follows. (On the CPU these can't be multiplied.)"""
    packed = experts(INNER, WIDTH, PACKINGS[packing], bias=False, seed=1)
    assert unpack(packed, 1, 3, dtype).linear.weight.dtype == dtype


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40).map(sorted), st.integers(1, 10))
def test_blocks_take_each_row_once_with_its_expert(chosen: list[int], at_once: int) -> None:
    seen: list[int] = []
    for first, end, rows in blocks(mx.array(chosen, dtype=mx.uint32), at_once):
        assert 0 < end - first <= at_once
        assert rows.start == len(seen)
        assert all(first <= expert < end for expert in chosen[rows])
        seen += chosen[rows]
    assert seen == chosen


class Seen(SparseFeedForward):
    """Keeps what the experts are given."""

    def packed(self, x: mx.array, experts: mx.array) -> mx.array:
        self.x = x
        return super().packed(x, experts)


def test_sorted_rows_lie_as_rows() -> None:
    """A new axis put into x has stride 1, and `gather_mm` on CUDA takes the rows for columns then: noise, no error."""
    how = PACKINGS["affine"]
    block = Seen(
        gate_up=experts(2 * INNER, WIDTH, how, bias=False, seed=1), down=experts(WIDTH, INNER, how, bias=False, seed=2)
    )
    x = mx.random.normal((40, WIDTH), key=mx.random.key(3))
    mx.eval(block(x, mx.random.randint(0, COUNT, (40, 2), key=mx.random.key(4)).astype(mx.uint32)))
    width = WIDTH * x.itemsize
    assert memoryview(block.x).strides == (width, width, x.itemsize)
