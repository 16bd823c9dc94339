"""Where an engine can be wrong without its tests seeing it: what no other file here covers of docs/engine.md's list."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from engine_kit import KINDS, make_model
from exactness import RELATIVE, as_numpy, prompts

from llmbench_engine import Engine
from llmbench_engine.config import QuantizationTable
from llmbench_engine.generate import decode, prefill
from llmbench_engine.kv_cache import KeyValues, WindowKeyValues
from llmbench_engine.sampling import GREEDY, Sampler
from llmbench_engine.transformer import Model
from llmbench_engine.weights import Weights

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY, STEPS = 512, 8
LENGTHS = {"even": [21] * 8, "ragged": [5, 21, 9, 13, 30, 8, 7, 40]}
EACH_ROW_BY_ITSELF = not (mx.metal.is_available() or mx.cuda.is_available())
"""Whether the matrix kernels add up a row's products in the same order however many rows there are.

MLX's for the CPU do. On Metal one row goes to `qmv_fast`, 2 to about 12 to `qmv_wide`, more to `qmm` or `qmm_splitk`,
each of which adds up in another order; on CUDA kernels go by the number of rows, too. There, what a row gets is bounded
by rounding alone, so that tokens may differ where the margin of the best logit is smaller.
"""


def bound(wanted: np.ndarray) -> float:
    """By how much values may be off that are computed in other company."""
    return 0.0 if EACH_ROW_BY_ITSELF else RELATIVE["bfloat16"] * float(np.abs(wanted).max())


def margin(logits: np.ndarray) -> float:
    second, best = np.sort(logits)[-2:]
    return float(best - second)


def solo(model: Model, prompt: list[int]) -> list[np.ndarray]:
    """Logits [vocabulary] of each step of the greedy continuation."""
    cache = model.make_cache(1, len(prompt) + STEPS)
    logits = [prefill(model, mx.array([prompt]), cache)]
    for _ in range(STEPS - 1):
        logits.append(decode(model, mx.argmax(logits[-1], axis=-1), cache))
    return [as_numpy(step[0]) for step in logits]


def together(model: Model, asked: list[list[int]], tokens: list[list[int]]) -> list[np.ndarray]:
    """Logits [rows, vocabulary] of each step, read as one group where prompts are equally long; fed with `tokens`."""
    room = max(map(len, asked)) + STEPS
    even = len(set(map(len, asked))) == 1
    groups = [asked] if even else [[prompt] for prompt in asked]
    caches = [model.make_cache(len(group), room) for group in groups]
    read = [prefill(model, mx.array(group), cache) for group, cache in zip(groups, caches, strict=True)]
    cache, logits = caches[0], [mx.concatenate(read)]
    for other in caches[1:]:
        cache.join(other)
    for step in range(STEPS - 1):
        logits.append(decode(model, mx.array([row[step] for row in tokens]), cache))
    return [as_numpy(step) for step in logits]


def check_batch(model: Model, lengths: list[int]) -> None:
    asked = prompts(lengths, VOCABULARY)
    alone = [solo(model, prompt) for prompt in asked]
    tokens = [[int(step.argmax()) for step in row] for row in alone]
    assert len({token for row in tokens for token in row}) > 2 * STEPS, "it repeats itself"
    for step, got in enumerate(together(model, asked, tokens)):
        for row, logits in enumerate(got):
            wanted = alone[row][step]
            off = bound(wanted)
            np.testing.assert_allclose(logits, wanted, rtol=0, atol=off, err_msg=f"row {row}, step {step}")
            assert logits.argmax() == wanted.argmax() or margin(wanted) <= 2 * off, f"row {row}, step {step}"


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", [*KINDS, "qwen2"])
def test_a_row_of_a_batch_has_the_logits_of_its_solo_run(kind: str, lengths: str) -> None:
    """To the bit where each row is by itself, else within rounding, and the same tokens where the margin is more."""
    check_batch(make_model(kind, packed="4bit"), LENGTHS[lengths])


def test_so_has_one_whose_batch_sorts_by_expert_as_the_solo_run_does_not() -> None:
    """8 rows of 8 experts each are the 64 pairs from which on they are sorted."""
    check_batch(make_model("qwen3_moe", packed="4bit", num_experts_per_tok=8), LENGTHS["even"])


PACKINGS = {"4bit": (64, 4, "affine"), "6bit": (32, 6, "affine"), "mxfp4": (32, 4, "mxfp4"), "nvfp4": (16, 4, "nvfp4")}
PARTS = (("q", 256), ("k", 64), ("v", 64))
INPUTS, EXPERTS = 128, 4


def weights(packing: str, lead: tuple[int, ...] = ()) -> Weights:
    """Random layers q, k and v."""
    group_size, bits, mode = PACKINGS[packing]
    arrays: dict[str, mx.array] = {}
    for i, (name, outputs) in enumerate(PARTS):
        plain = mx.random.normal((*lead, outputs, INPUTS), key=mx.random.key(i)).astype(mx.bfloat16)
        stored = mx.quantize(plain, group_size, bits, mode=mode)
        arrays |= {f"{name}.{part}": a for part, a in zip(("weight", "scales", "biases"), stored, strict=False)}
    table = {"quantization": {"group_size": group_size, "bits": bits, "mode": mode}}
    return Weights(arrays, QuantizationTable(table, Path()), Path())


def assert_same(fused: mx.array, parts: list[mx.array]) -> None:
    """To the bit on the CPU. A GPU's kernels may split a sum by the number of outputs, which is larger when fused."""
    wanted = as_numpy(mx.concatenate(parts, axis=-1))
    np.testing.assert_allclose(as_numpy(fused), wanted, rtol=0, atol=bound(wanted))


@pytest.mark.parametrize("rows", [1, 2, 8, 12, 13, 40, 100])
@pytest.mark.parametrize("packing", PACKINGS)
def test_fused_layers_give_what_their_parts_give(packing: str, rows: int) -> None:
    x = mx.random.normal((rows, INPUTS), key=mx.random.key(9)).astype(mx.bfloat16)
    split = weights(packing)
    parts = [split.linear(name, outputs, INPUTS)(x) for name, outputs in PARTS]
    assert_same(weights(packing).fused(PARTS, INPUTS)(x), parts)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("packing", PACKINGS)
def test_fused_experts_give_what_their_parts_give(packing: str, rows: int) -> None:
    x = mx.random.normal((rows, 1, INPUTS), key=mx.random.key(9)).astype(mx.bfloat16)
    own, chosen = mx.arange(rows, dtype=mx.uint32), mx.array([(3 * i) % EXPERTS for i in range(rows)], dtype=mx.uint32)
    split = weights(packing, (EXPERTS,))
    parts = [split.experts([(name, outputs)], INPUTS, EXPERTS)(x, own, chosen) for name, outputs in PARTS]
    fused = weights(packing, (EXPERTS,)).experts(PARTS, INPUTS, EXPERTS)
    assert_same(fused(x, own, chosen), parts)


def spread_logits(spread: float, rows: int = 200, vocabulary: int = 4000) -> mx.array:
    return (spread * mx.random.normal((rows, vocabulary), key=mx.random.key(4))).astype(mx.bfloat16)


def choices(logits: mx.array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ours, mlx-lm's, and mlx-lm's rounded log-probabilities."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    ours = Sampler([GREEDY] * len(logits))(logits)
    return np.array(ours), np.array(mx.argmax(logprobs, axis=-1)), as_numpy(logprobs)


def test_peaked_logits_give_the_token_of_mlx_lms_rounded_logprobs() -> None:
    """The tests against mlx-lm have logits of this deviation (oracle.py)."""
    ours, theirs, _ = choices(spread_logits(5.0))
    assert (ours == theirs).all()


def test_where_rounded_logprobs_choose_another_token_rounding_made_the_tie() -> None:
    """Flat logits lie far below 0 as log-probabilities, where bfloat16 is coarser: mlx-lm then takes the first of
    several tokens that only rounding made equal. Ours is the first of those whose logits are the largest."""
    logits = spread_logits(0.25)
    ours, theirs, logprobs = choices(logits)
    exact, rows = as_numpy(logits), np.arange(len(ours))
    assert (exact[rows, ours] == exact.max(axis=-1)).all()
    assert [int(np.flatnonzero(row == row.max())[0]) for row in exact] == ours.tolist()
    other = rows[ours != theirs]
    assert len(other) > 0
    spacing = 2.0 ** (np.floor(np.log2(np.abs(logprobs[other, theirs[other]]))) - 7)
    lost = exact[other, ours[other]] - exact[other, theirs[other]]
    assert (logprobs[other, ours[other]] == logprobs[other, theirs[other]]).all()
    assert ((lost >= 0) & (lost <= spacing)).all()


def test_nothing_is_left_to_read_once_an_engine_is_loaded(tiny_checkpoints: Path, tmp_path: Path) -> None:
    """Weights that were still to be read would fail, or be others. (Files that are deleted could still be read.)"""
    source, copy = tiny_checkpoints / "tiny-scripted-4bit", tmp_path / "copy"
    shutil.copytree(source, copy)
    late = mx.load(str(copy / "model.safetensors"))
    chat = [{"role": "user", "content": "Hello"}]
    with Engine.load(source) as whole, Engine.load(copy) as engine:
        for file in copy.iterdir():
            file.write_bytes(b"")
        assert whole.tokenizer is not None
        assert engine.tokenizer is not None
        ids = engine.tokenizer.apply_chat_template(chat)
        assert ids == whole.tokenizer.apply_chat_template(chat)
        assert list(engine.generate(ids, max_tokens=20)) == list(whole.generate(ids, max_tokens=20))
    with pytest.raises(RuntimeError):
        mx.eval(late)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "gemma4"])
def test_keys_and_values_are_all_there_and_as_wide_as_activations(kind: str) -> None:
    """None are dropped, and none are packed: of 40 tokens full attention has 40, a window the last of them."""
    model = make_model(kind, packed="4bit")
    cache = model.make_cache(1, 48)
    prefill(model, mx.array(prompts([39], VOCABULARY)), cache)
    decode(model, mx.array([3]), cache)
    assert {a.dtype for a in cache.arrays} == {mx.bfloat16}
    for layer in cache.layers:
        assert isinstance(layer, KeyValues | WindowKeyValues)
        assert layer.length == 40
        assert not isinstance(layer, WindowKeyValues) or layer.end - layer.start == layer.window


def test_the_pages_traps_name_tests_that_exist() -> None:
    page = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    section = page.partition("## Known traps\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(re.findall(r"^\| \d+ \|", section, re.MULTILINE)) == 15
    assert named - defined == set()
