"""Whether two outputs that should be equal are, and if not, whether rounding alone can have parted them.

Greedy decoding takes the best logit. Kernels for other matrix shapes sum in another order, so that the best two may
change places where they are nearly equal; from there on the outputs have nothing in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_llmbench.sides.messages import Margins

NEAR_TIE: Final = 2**-5
"""Two logits are a near tie within this share of the better one: four to eight units in the last place of bfloat16."""
LARGEST_PLAIN: Final = 1e6

Ids = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCheck:
    """`equal`: every token; None where there was nothing to compare with. `excused`: the first different ones were a
    near tie. `note` says where and by how much, or why nothing is known.
    """

    equal: bool | None
    excused: bool = False
    note: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.equal) or self.excused


def compare(
    found: Ids, wanted: Ids, *, names: tuple[str, str], margins: Sequence[tuple[str, Callable[[int], Margins | None]]]
) -> TokenCheck:
    """Compare two outputs. `margins` are asked, by engine, for the best two logits before token i, if they differ.

    A difference is excused only where all of those engines know their logits, and all see the same near tie.
    """
    at = first_difference(found, wanted)
    if at is None:
        return TokenCheck(equal=True)
    seen = [(name, ask(at)) for name, ask in margins]
    pair = [ids[at] for ids in (found, wanted) if at < len(ids)]
    excused = len(pair) == 2 and bool(seen) and all(margin is not None and _is_tie(margin, pair) for _, margin in seen)
    said = "; ".join(_margin_text(name, margin) for name, margin in seen)
    tokens = " and ".join(f"{name} {_token(ids, at)}" for name, ids in zip(names, (found, wanted), strict=True))
    verdict = "a near tie, which rounding decides" if excused else "no near tie"
    return TokenCheck(equal=False, excused=excused, note=f"token {at} is {tokens}: {verdict}; {said}")


def first_difference(one: Ids, other: Ids) -> int | None:
    """Index of the first token that isn't in both; None for equal outputs."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def _is_tie(margins: Margins, tokens: Ids) -> bool:
    """Whether all of these are as good as the best one, but for rounding."""
    logits, high = dict(margins.top), margins.top[0][1]
    return all(token in logits and high - logits[token] <= NEAR_TIE * abs(high) for token in tokens)


def _margin_text(name: str, margins: Margins | None) -> str:
    if margins is None:
        return f"{name} can't tell its logits"
    (best, high), (second, low), *_ = margins.top
    first, other, apart = _figure(high), _figure(low), _figure(high - low)
    return f"{name}'s best logits are {first} (token {best}) and {other} (token {second}), margin {apart}"


def _figure(logit: float) -> str:
    """Four decimals, but for what no logit is: a side may say anything that a double holds."""
    return f"{logit:.4f}" if abs(logit) < LARGEST_PLAIN else f"{logit:.4g}"


def _token(ids: Ids, at: int) -> str:
    return str(ids[at]) if at < len(ids) else "nothing"
