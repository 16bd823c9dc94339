"""How a request wants its tokens chosen, and where its randomness comes from. Without tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

from llmbench_engine.errors import InvalidRequest

WORD = (1 << 64) - 1
LARGEST = (1 << 31) - 1
"""Positions and counts are 32-bit integers with a sign in MLX's operations."""
COLDEST = 1e-5
"""Below it logits divided by the temperature leave float32's range, and chance has long lost its say."""
Key = tuple[int, int]
"""Two unsigned 32-bit words, as `mx.random` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen. Filters apply in the order min_p, top_k, top_p, each to what the one before it left.

    temperature: 0, and anything below COLDEST, takes the likeliest token; else logits are divided by it, before the
    filters.
    top_k: keep the k likeliest (0: all). top_p: keep the likeliest until their probabilities add up to p (1: all).
    min_p: keep those at least this many times as likely as the likeliest (0: all).
    seed: the same seed gives the same tokens; None draws one for each request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """InvalidRequest for a value out of range."""
        for name in ("temperature", "top_p", "min_p"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        _check("temperature", self.temperature, 0 <= self.temperature < float("inf"), "a finite number from 0 on")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        object.__setattr__(self, "top_k", whole("top_k", self.top_k, 0))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed, 0, WORD))

    @property
    def greedy(self) -> bool:
        return self.temperature < COLDEST


def whole(name: str, value: object, least: int, most: int = LARGEST) -> int:
    """`value` as an int, NumPy's integers too. InvalidRequest for what is none, or out of range."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"{name} is {value!r}; it has to be an integer") from None
    _check(name, number, least <= number <= most, f"an integer from {least} to {most}")
    return number


def token_ids(name: str, values: Iterable[object]) -> tuple[int, ...]:
    """`values` as ints, at C's speed: prompts are long. InvalidRequest where one is no integer."""
    try:
        return tuple(map(operator.index, values))  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRequest(f"{name} has to hold token ids, which are integers: {error}") from None


def _number(name: str, value: object) -> float:
    _check(name, value, isinstance(value, Real), "a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf")


def _check(name: str, value: object, good: bool, wanted: str) -> None:
    if not good:
        raise InvalidRequest(f"{name} is {value!r}; it has to be {wanted}")


GREEDY = Sampling()


def key(seed: int, position: int) -> Key:
    """The key of a request's token number `position` (splitmix64 of Steele, Lea & Flood 2014 over both)."""
    mixed = _mix((_mix(seed & WORD) + position) & WORD)
    return mixed >> 32, mixed & 0xFFFFFFFF


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)
