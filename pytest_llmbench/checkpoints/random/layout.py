"""Parameters of a model before quantization: name, shape, and the law that its random values follow.

A linear layer has the shape (out, in), experts (experts, out, in), as MLX stores them. An input of variance 1
through a linear layer of gain 1 gives an output of variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_llmbench.checkpoints.tokenizer import CHAT_TOKENS

Config = Mapping[str, Any]

LOGIT_STD = 4.0
"""Standard deviation of the logits, at any depth: the head's input has been through a norm."""

SCORE_GAIN = 2.0
"""Gain of queries and of keys: attention scores get a deviation of about its square."""

WRITE_SHARE = 1.0
TIED_WRITE_SHARE = 1.5
"""Gain of what all blocks together add to the residual stream, against the embeddings in it.

Measured with 24 layers: rounding in bfloat16 moves logits by 0.1 to 0.8 with these, by 0.4 to 3 with 3. A tied table
needs more than another: alone, it would make b follow a wherever a follows b, and the text a loop of two tokens.
"""

BIAS_SHARE = 0.1
"""Deviation of a layer's bias, against that of its output."""

ROUTER_GAIN = 4.0
"""Gain of routers: the last of the chosen experts weighs little, so that one taken for another does too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Distribution of a parameter's values.

    `uniform` has this mean and standard deviation; `signs` (of a vector) is `mean` in one half of the places and its
    negative in the others; `log` is the logarithm of a uniform variable with this mean and deviation. The first
    `quiet_rows` rows are a twentieth of the others.
    """

    mean: float = 0.0
    std: float = 1.0
    kind: Literal["uniform", "signs", "log"] = "uniform"
    quiet_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One array of the model. `quantizable` says whether MLX has a quantized form of its layer."""

    name: str
    shape: tuple[int, ...]
    law: Law
    quantizable: bool = False


def linear(
    name: str, outputs: int, inputs: int, *, gain: float = 1.0, bias: bool = False, experts: int | None = None
) -> Iterator[Parameter]:
    """A linear layer, or `experts` of them in one array."""
    lead = () if experts is None else (experts,)
    law = Law(std=gain / math.sqrt(inputs))
    yield Parameter(name=f"{name}.weight", shape=(*lead, outputs, inputs), law=law, quantizable=True)
    if bias:
        yield Parameter(name=f"{name}.bias", shape=(*lead, outputs), law=Law(std=BIAS_SHARE * gain))


def norm(name: str, size: int, *, gain: float = 1.0) -> Parameter:
    """An RMSNorm. Its weights differ, so that leaving one out shows."""
    return Parameter(name=f"{name}.weight", shape=(size,), law=Law(mean=gain, std=0.1 * gain))


def final_norm(name: str, size: int) -> Parameter:
    """The norm before the head, with as many negative weights as positive.

    Where the head is the embedding too, they keep the last token's own row from having the best logit.
    """
    return Parameter(name=f"{name}.weight", shape=(size,), law=Law(mean=1.0, kind="signs"))


def embedding(name: str, rows: int, width: int, *, std: float, quiet_rows: int = 0) -> Parameter:
    """A table (rows, width): embeddings, or a head."""
    law = Law(std=std, quiet_rows=quiet_rows)
    return Parameter(name=f"{name}.weight", shape=(rows, width), law=law, quantizable=True)


def embedding_std(config: Config, *, tied: bool, scale: float = 1.0) -> float:
    """Such that logits have their deviation if the table is the head too, else that the stream starts with 1.

    `scale` is what the model multiplies embeddings by.
    """
    return LOGIT_STD / math.sqrt(config["hidden_size"]) if tied else 1 / scale


def write_gain(config: Config, *, tied: bool, scale: float = 1.0, blocks: int = 2) -> float:
    """Gain of what one of the `blocks` of each layer adds to the residual stream.

    It falls with depth as in GPT-2 (Radford et al. 2019), so that rounding doesn't grow from layer to layer until
    two right implementations disagree.
    """
    stream = scale * embedding_std(config, tied=tied, scale=scale)
    share = TIED_WRITE_SHARE if tied else WRITE_SHARE
    return share * stream / math.sqrt(blocks * config["num_hidden_layers"])


def ends(prefix: str, config: Config, *, tied: bool, scale: float = 1.0) -> Iterator[Parameter]:
    """Embedding, final norm and, unless it is tied to the embedding, head.

    The chat's tokens have quiet rows: their logits are never the best, so the text doesn't end by itself.
    """
    rows, width = config["vocab_size"], config["hidden_size"]
    quiet = len(CHAT_TOKENS)
    std = embedding_std(config, tied=tied, scale=scale)
    yield embedding(f"{prefix}model.embed_tokens", rows, width, std=std, quiet_rows=quiet)
    yield final_norm(f"{prefix}model.norm", width)
    if not tied:
        yield embedding(f"{prefix}lm_head", rows, width, std=LOGIT_STD / math.sqrt(width), quiet_rows=quiet)


def mlp(prefix: str, width: int, inner: int, *, write: float, bias: bool = False) -> Iterator[Parameter]:
    """gate_proj, up_proj and down_proj."""
    yield from linear(f"{prefix}.gate_proj", inner, width, bias=bias)
    yield from linear(f"{prefix}.up_proj", inner, width, bias=bias)
    yield from linear(f"{prefix}.down_proj", width, inner, gain=write, bias=bias)


def experts(
    prefix: str, width: int, inner: int, count: int, *, write: float, bias: bool = False
) -> Iterator[Parameter]:
    """The same three for `count` experts."""
    yield from linear(f"{prefix}.gate_proj", inner, width, bias=bias, experts=count)
    yield from linear(f"{prefix}.up_proj", inner, width, bias=bias, experts=count)
    yield from linear(f"{prefix}.down_proj", width, inner, gain=write, bias=bias, experts=count)


def projections(
    prefix: str,
    width: int,
    sizes: tuple[int, int],
    *,
    gain: float,
    write: float,
    bias: bool = False,
    output_bias: bool = False,
) -> Iterator[Parameter]:
    """q_proj, k_proj, v_proj, o_proj; `sizes` are heads × head_dim of queries and of keys.

    `gain` is that of queries and keys where no norm follows.
    """
    queries, keys = sizes
    yield from linear(f"{prefix}.q_proj", queries, width, gain=gain, bias=bias)
    yield from linear(f"{prefix}.k_proj", keys, width, gain=gain, bias=bias)
    yield from linear(f"{prefix}.v_proj", keys, width, bias=bias)
    yield from linear(f"{prefix}.o_proj", width, queries, gain=write, bias=output_bias)


def score_norms(prefix: str, head_dim: int) -> Iterable[Parameter]:
    """q_norm and k_norm of attention that divides its scores by √head_dim."""
    return (norm(f"{prefix}.q_norm", head_dim, gain=SCORE_GAIN), norm(f"{prefix}.k_norm", head_dim, gain=SCORE_GAIN))


def block_norms(prefix: str, width: int) -> Iterable[Parameter]:
    """The two norms that every kind of layer has."""
    return (norm(f"{prefix}.input_layernorm", width), norm(f"{prefix}.post_attention_layernorm", width))
