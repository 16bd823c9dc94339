"""A request, the state of serving it, and what comes out. Nothing here holds a tensor."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from typing import Literal

from llmbench_engine.detokenizer import Detokenizer
from llmbench_engine.errors import InvalidRequest
from llmbench_engine.parameters import GREEDY, LARGEST, Key, Sampling, key, token_ids, whole

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    text: what it completes; "" while a character is unfinished, and for a token that ends the sequence.
    logprob: natural logarithm of its probability under the model; None unless asked for.
    finish: None, or why this token is the last: "stop" (it ends the sequence) or "length" (max_tokens reached).
    """

    id: int
    text: str = ""
    logprob: float | None = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate. InvalidRequest for values that can't be served by any model.

    prompt: token ids, at least one. max_tokens: at most so many new tokens.
    stop: ids that end the sequence besides the checkpoint's own. ignore_eos: the checkpoint's own don't end it.
    logprobs: give each token's log-probability.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 256
    sampling: Sampling = GREEDY
    stop: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", token_ids("the prompt", self.prompt))
        object.__setattr__(self, "stop", frozenset(token_ids("stop", self.stop)))
        if not self.prompt:
            raise InvalidRequest("the prompt has no tokens; give at least one id")
        most = LARGEST - len(self.prompt)
        object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens, 1, most))

    @property
    def total(self) -> int:
        """Tokens that the sequence can come to."""
        return len(self.prompt) + self.max_tokens

    def check_vocabulary(self, size: int) -> None:
        """InvalidRequest where an id of the prompt is none of the model's."""
        if min(self.prompt) < 0 or max(self.prompt) >= size:
            wrong = next(i for i in self.prompt if not 0 <= i < size)
            raise InvalidRequest(f"the prompt holds id {wrong}; this model's ids go from 0 to {size - 1}")


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being served.

    ends: ids after which it ends. reused: prompt tokens that a kept cache had seen. begun: new tokens whose computation
    was started. tokens: those that were given out. detokenizer: None where there is no tokenizer.
    """

    id: int
    request: Request
    ends: frozenset[int] = frozenset()
    seed: int = 0
    detokenizer: Detokenizer | None = None
    reused: int = 0
    begun: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def ids(self) -> Ids[int]:
        """Prompt and tokens given out."""
        return (*self.request.prompt, *self.tokens)

    @property
    def key(self) -> Key:
        """The random key of the token that was begun last."""
        return key(self.seed, self.begun)

    def give(self, token: int, logprob: float | None) -> Token:
        """Note a token that was computed, and make of it what is given out."""
        self.tokens.append(token)
        finish: Finish | None = None
        if token in self.ends:
            finish = "stop"
        elif len(self.tokens) == self.request.max_tokens:
            finish = "length"
        return Token(token, self._text(token, finish), logprob if self.request.logprobs else None, finish)

    def _text(self, token: int, finish: Finish | None) -> str:
        if self.detokenizer is None:
            return ""
        text = "" if finish == "stop" else self.detokenizer.add(token)
        return text if finish is None else text + self.detokenizer.finish()


def start(number: int, request: Request, eos: frozenset[int], detokenizer: Detokenizer | None = None) -> Sequence:
    """The state of a new request; `eos` are the checkpoint's ids that end a sequence."""
    seed = request.sampling.seed
    return Sequence(
        id=number,
        request=request,
        ends=request.stop if request.ignore_eos else request.stop | eos,
        seed=secrets.randbits(64) if seed is None else seed,
        detokenizer=detokenizer,
    )
