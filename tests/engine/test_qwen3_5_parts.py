"""Parts of Qwen 3.5 that a comparison of logits alone might not see: types, epsilon, gates, memory, packing."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from exactness import RELATIVE, as_numpy, logits_after, prompts
from oracle import Oracle
from qwen3_5_cases import CASES, EXPERTS, ROPE, TEXT, VOCABULARY, with_config

from llmbench_engine.cache import RecurrentState
from llmbench_engine.config import read_config
from llmbench_engine.generate import decode, prefill
from llmbench_engine.loader import build_model, load_model
from llmbench_engine.models import hybrid
from llmbench_engine.models.hybrid import gate_in_float32
from llmbench_engine.shards import read_arrays
from llmbench_engine.weights import Parallel


@pytest.fixture(scope="module")
def checkpoint(oracle: Oracle) -> Path:
    return CASES["plain"].make(oracle)


@pytest.fixture(scope="module")
def experts(oracle: Oracle) -> Path:
    return CASES["experts-4-bit"].make(oracle)


def rewritten(folder: Path, out: Path, arrays: dict[str, mx.array]) -> Path:
    """The checkpoint with other tensors."""
    shutil.copytree(folder, out, dirs_exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), arrays)
    return out


def test_states_are_float32_and_inputs_of_the_models_type(oracle: Oracle) -> None:
    model = load_model(CASES["bfloat16"].make(oracle))
    cache = model.make_cache(1, 16)
    token = mx.argmax(prefill(model, mx.array([[1, 2, 3]]), cache), axis=-1)
    decode(model, token, cache)
    states = [layer for layer in cache.layers if isinstance(layer, RecurrentState)]
    assert len(states) == 3
    for state in states:
        assert state.memory is not None
        assert state.memory.dtype == mx.float32
        assert [a.dtype for a in state.inputs] == [mx.bfloat16] * 3
    assert not cache.cuttable


def test_rates_keep_float32_from_the_checkpoint(oracle: Oracle, tmp_path: Path) -> None:
    """A_log stays float32 in a bfloat16 checkpoint, as mlx-lm writes it."""
    folder = CASES["bfloat16"].make(oracle)
    rng = np.random.default_rng(3)
    arrays = {
        n: mx.array(rng.uniform(-1, 2, a.shape).astype(np.float32)) if n.endswith("A_log") else a
        for n, a in read_arrays(folder).items()
    }
    exact = rewritten(folder, tmp_path, arrays)
    prompt = prompts([40], VOCABULARY)[0]
    (reference,) = oracle.run(exact, [prompt], [1])
    model = load_model(exact)
    np.testing.assert_allclose(logits_after(model, prompt), reference.logits[0], rtol=0, atol=reference.tolerance(1e-1))
    rates = np.array(model._layers[0].mixer.rate)  # type: ignore[attr-defined]
    wanted = -np.exp(np.array(arrays["language_model.model.layers.0.linear_attn.A_log"], np.float64))
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


def test_epsilon_is_added_to_the_sum_of_squares(
    oracle: Oracle, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With q and k of about 1e-3 it matters; taken as part of the mean, it would be `width` times as large."""
    small = {n: a * 2e-3 if n.endswith("conv1d.weight") else a for n, a in read_arrays(checkpoint).items()}
    folder, prompt = rewritten(checkpoint, tmp_path, small), prompts([24], VOCABULARY)[0]
    (reference,) = oracle.run(folder, [prompt], [1])
    tolerance = reference.tolerance(RELATIVE["float32"])
    np.testing.assert_allclose(logits_after(load_model(folder), prompt), reference.logits[0], rtol=0, atol=tolerance)
    monkeypatch.setattr(hybrid, "L2_EPS", hybrid.L2_EPS * TEXT["linear_key_head_dim"])  # type: ignore[operator]
    assert np.abs(logits_after(load_model(folder), prompt) - reference.logits[0]).max() > 10 * tolerance


def test_gate_is_computed_in_float32_and_rounded_once() -> None:
    rng = np.random.default_rng(0)
    x, gate = (mx.array(rng.normal(size=4096).astype(np.float32)).astype(mx.bfloat16) for _ in range(2))
    exact_x, exact_gate = (np.array(a.astype(mx.float32), np.float64) for a in (x, gate))
    wanted = exact_gate / (1 + np.exp(-exact_gate)) * exact_x
    rounded = as_numpy(mx.array(wanted.astype(np.float32)).astype(mx.bfloat16))
    assert np.mean(as_numpy(gate_in_float32(x, gate)) == rounded) > 0.999
    assert np.mean(as_numpy(gate * mx.sigmoid(gate) * x) == rounded) < 0.9


def test_cache_keeps_no_whole_chunk_alive(checkpoint: Path) -> None:
    model, tokens = load_model(checkpoint), 1024
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    cache = model.make_cache(1, 2 * tokens)
    mx.eval(prefill(model, mx.array([[5] * tokens]), cache), cache.arrays)
    gc.collect()
    projected = tokens * 4 * (2 * 64 + 2 * 128 + 8)  # float32 q, k, v, z, b, a of one net
    assert mx.get_active_memory() - before < cache.nbytes + projected // 2


def test_only_a_part_of_each_head_is_rotated(oracle: Oracle, checkpoint: Path) -> None:
    """And for text the three positions of mrope are one: its sections don't matter."""
    prompt, arrays = prompts([24], VOCABULARY)[0], read_arrays(checkpoint)
    (reference,) = oracle.run(checkpoint, [prompt], [1])
    tolerance = reference.tolerance(RELATIVE["float32"])

    def logits(**changes: Any) -> np.ndarray:
        config = with_config(checkpoint, rope_parameters=ROPE | changes)
        return logits_after(build_model(config, arrays, checkpoint), prompt)

    for same in ({"mrope_section": [4, 0, 0]}, {"rope_type": "mrope"}, {"mrope_interleaved": False}):
        np.testing.assert_allclose(logits(**same), reference.logits[0], rtol=0, atol=tolerance)
    for other in ({"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.5}, {"rope_theta": 1e4}):
        assert np.abs(logits(**other) - reference.logits[0]).max() > 100 * tolerance


def test_router_of_other_bits_stays_apart_from_the_experts(experts: Path) -> None:
    """But it and the shared expert's gate are packed alike, and one matmul."""
    block = load_model(experts)._layers[0].block  # type: ignore[attr-defined]
    assert (block.router.bits, block.router.group_size) == (8, 64)
    assert block.router.weight.shape[0] == EXPERTS["num_experts"] + 1
    assert {block.experts.gate_up.linear.bits, block.shared.gate_up.bits, block.shared.down.bits} == {4}


def test_parts_packed_in_different_ways_are_not_fused(oracle: Oracle) -> None:
    layers = load_model(CASES["mixed-packing"].make(oracle))._layers  # type: ignore[attr-defined]
    assert isinstance(layers[0].mixer.project, Parallel)
    assert isinstance(layers[3].mixer.project, Parallel)
    assert isinstance(layers[0].block.gate_up, Parallel)


@pytest.mark.parametrize("part", ["switch_mlp.down_proj", "shared_expert.down_proj", "shared_expert_gate"])
def test_no_part_of_the_mixture_is_left_out(experts: Path, part: str) -> None:
    arrays, config, prompt = read_arrays(experts), read_config(experts), prompts([24], VOCABULARY)[0]
    packed = [n for n in arrays if part in n and n.endswith(("scales", "biases"))]
    kept, dropped = (
        logits_after(build_model(config, arrays | {n: arrays[n] * factor for n in packed}, experts), prompt)
        for factor in (1.0, 0.0)
    )
    assert np.abs(kept - dropped).max() > 100 * RELATIVE["float32"] * np.abs(kept).max()


def test_many_pairs_are_sorted_by_expert_with_the_same_result(experts: Path) -> None:
    model, prompt = load_model(experts), prompts([40], VOCABULARY)[0]
    whole, few = logits_after(model, prompt), logits_after(model, prompt, chunk=5)
    np.testing.assert_allclose(whole, few, rtol=0, atol=RELATIVE["float32"] * np.abs(whole).max())
