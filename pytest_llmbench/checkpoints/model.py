"""Weights of the tiny Qwen3 models.

`random_weights` makes a model that babbles; `scripted_weights` one that knows a single answer by heart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_llmbench.checkpoints import script
from pytest_llmbench.checkpoints.bpe import byte_alphabet
from pytest_llmbench.checkpoints.tokenizer import CHAT_TOKENS, VOCAB_SIZE, Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Weights = dict[str, NDArray[np.float32]]

_RANDOM_LOGIT_STD = 4.0
_HIGH_BYTE_GAIN = 1.25
_RANDOM_EMBEDDING_STD = 0.25
_RANDOM_GAINS: Mapping[str, float] = {"q_norm": 3.0, "k_norm": 3.0, "o_proj": 2.0}
_SCRIPT_LOGIT_GAIN = 2.0
_DEFAULT_SHARE = 0.8
_SCRIPT_DEFAULT_SHARE = 0.3
_SCRIPT_GAINS: Mapping[str, float] = {"o_proj": 0.01, "down_proj": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the model. `head_dim` is the smallest that a quantized KV cache with groups of 64 takes."""

    hidden: int = 128
    layers: int = 2
    intermediate: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    context_tokens: int = 32768


class Normals:
    """Nearly normal numbers that are the same bit for bit on every platform and version of NumPy.

    A value is the sum of four 16-bit uniforms, scaled to variance 1. NumPy promises the stream of PCG64's
    raw bits only; its `standard_normal` may change, and calls the C library's `exp` and `log`.
    """

    def __init__(self, seed: int) -> None:
        import numpy as np

        self._bits = np.random.PCG64(seed)

    def draw(self, *shape: int) -> NDArray[np.float32]:
        """Array of `shape`, mean 0, standard deviation 1."""
        import numpy as np

        raw = self._bits.random_raw(math.prod(shape))
        uniforms = (raw[:, None] >> np.array([0, 16, 32, 48], np.uint64)) & np.uint64(0xFFFF)
        centred = uniforms.sum(axis=1).astype(np.float64) - 2 * 0xFFFF
        values: NDArray[np.float64] = centred / (0x10000 * math.sqrt(4 / 12))
        return values.astype(np.float32).reshape(shape)


def config(shape: Shape, vocabulary: Vocabulary, *, dtype: str) -> dict[str, Any]:
    """`config.json` of a Qwen3 model; `dtype` as in `float32`."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": vocabulary.token_id(script.IM_END),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context_tokens,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": vocabulary.token_id(script.ENDOFTEXT),
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCAB_SIZE,
    }


def random_weights(shape: Shape, vocabulary: Vocabulary, *, seed: int) -> Weights:
    """Random layers and head: text without end, much of it broken UTF-8.

    The head's rows are scaled so that logits have a standard deviation of 4: the best one leads by far more
    than the float32 rounding in which two backends differ. Attention is sharp (scores have a deviation of 9) and
    writes as much as the embeddings: flat attention over a long or repetitive prompt ends in a short loop, where
    the best two logits pass each other slowly.
    """
    normals = Normals(seed)
    weights = _layers(shape, normals, gains=_RANDOM_GAINS)
    weights["model.embed_tokens.weight"] = normals.draw(VOCAB_SIZE, shape.hidden) * _RANDOM_EMBEDDING_STD
    head = _linear(normals, VOCAB_SIZE, shape.hidden) * _RANDOM_LOGIT_STD
    head[_high_byte_ids(vocabulary)] *= _HIGH_BYTE_GAIN
    # A row of zeros gives the logit 0, far below the best of 2000: the text never ends and never calls a tool.
    head[: len(CHAT_TOKENS)] = 0
    weights["lm_head.weight"] = head
    return weights


def scripted_weights(shape: Shape, vocabulary: Vocabulary, *, seed: int) -> Weights:
    """A table from each token to the next one; attention and MLP run, but add almost nothing.

    Each token of the script has a direction of its own, which is its successor's row in the head. Direction 0
    is in every embedding and leads to `<think>`: after any token outside the script, and where the end token
    is forbidden. Rows of at most three values survive 4 bits.
    """
    normals = Normals(seed)
    weights = _layers(shape, normals, gains=_SCRIPT_GAINS)
    weights["model.embed_tokens.weight"] = _scripted_embeddings(shape, vocabulary, normals)
    weights["lm_head.weight"] = _scripted_head(shape, vocabulary, normals)
    return weights


def _transitions(vocabulary: Vocabulary) -> list[tuple[int, int]]:
    """(token, next token) of the script; the place in the list + 1 is the token's direction."""
    texts = [script.PROMPT_END, *script.WITH_THINKING]
    steps = [*pairwise(texts), (script.NO_THINK_PROMPT_END, script.ANSWER[0])]
    return [(vocabulary.token_id(before), vocabulary.token_id(after)) for before, after in steps]


def _scripted_embeddings(shape: Shape, vocabulary: Vocabulary, normals: Normals) -> NDArray[np.float32]:
    """(vocabulary, hidden), every row of length √hidden, as after RMSNorm."""
    import numpy as np

    steps = _transitions(vocabulary)
    rows = normals.draw(VOCAB_SIZE, shape.hidden)
    rows[:, : len(steps) + 1] = 0
    # NumPy's sum rounds as its vector unit does; `fsum` is exact, so the bytes are the same on every chip.
    lengths = [math.sqrt(math.fsum(value * value for value in row)) for row in rows.tolist()]
    rows /= np.array(lengths)[:, None]
    rows *= math.sqrt(1 - _DEFAULT_SHARE**2)
    rows[:, 0] = _DEFAULT_SHARE
    for direction, (before, _) in enumerate(steps, start=1):
        rows[before] = 0
        rows[before, 0] = _SCRIPT_DEFAULT_SHARE
        rows[before, direction] = math.sqrt(1 - _SCRIPT_DEFAULT_SHARE**2)
    return (rows * math.sqrt(shape.hidden)).astype(np.float32)


def _scripted_head(shape: Shape, vocabulary: Vocabulary, normals: Normals) -> NDArray[np.float32]:
    """(vocabulary, hidden): small random logits, with the script's far above them."""
    steps = _transitions(vocabulary)
    head = _linear(normals, VOCAB_SIZE, shape.hidden)
    head[:, : len(steps) + 1] = 0
    head[: len(CHAT_TOKENS)] = 0
    for after in {after for _, after in steps}:
        head[after] = 0
    for direction, (_, after) in enumerate(steps, start=1):
        head[after, direction] = _SCRIPT_LOGIT_GAIN
    head[vocabulary.token_id(script.THINK), 0] = _SCRIPT_LOGIT_GAIN
    return head


def _high_byte_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids of the single bytes ≥ 0x80, which are no text alone."""
    return [vocabulary.tokens.index(char) for char in byte_alphabet()[0x80:]]


def _linear(normals: Normals, out_features: int, in_features: int) -> NDArray[np.float32]:
    """(out, in), scaled so that an input of variance 1 gives an output of variance 1."""
    import numpy as np

    draw: NDArray[np.float32] = normals.draw(out_features, in_features)
    return np.divide(draw, np.float32(math.sqrt(in_features)))


def _layers(shape: Shape, normals: Normals, *, gains: Mapping[str, float]) -> Weights:
    """All weights but the embeddings and the head; `gains` by the module's last name."""
    import numpy as np

    weights: Weights = {"model.norm.weight": np.ones(shape.hidden, np.float32)}
    for index in range(shape.layers):
        layer = _layer(shape, normals)
        for name, value in layer.items():
            gain = np.float32(gains.get(name.rpartition(".")[2], 1.0))
            weights[f"model.layers.{index}.{name}.weight"] = value * gain
    return weights


def _layer(shape: Shape, normals: Normals) -> Weights:
    import numpy as np

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "input_layernorm": np.ones(shape.hidden, np.float32),
        "post_attention_layernorm": np.ones(shape.hidden, np.float32),
        "self_attn.q_proj": _linear(normals, queries, shape.hidden),
        "self_attn.k_proj": _linear(normals, keys, shape.hidden),
        "self_attn.v_proj": _linear(normals, keys, shape.hidden),
        "self_attn.o_proj": _linear(normals, shape.hidden, queries),
        "self_attn.q_norm": np.ones(shape.head_dim, np.float32),
        "self_attn.k_norm": np.ones(shape.head_dim, np.float32),
        "mlp.gate_proj": _linear(normals, shape.intermediate, shape.hidden),
        "mlp.up_proj": _linear(normals, shape.intermediate, shape.hidden),
        "mlp.down_proj": _linear(normals, shape.hidden, shape.intermediate),
    }
