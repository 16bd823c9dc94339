"""What an answer must be, beyond its form: the asked number of tokens, and stamps that can be true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_llmbench.errors import SideError
from pytest_llmbench.sides.messages import Batched, BatchRequest, Generated, GenerateRequest, Loaded, LoadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Our own clock: when the request was sent, and when the answer was here."""

    sent_ns: int
    received_ns: int


def check_loaded(request: LoadRequest, got: Loaded, window: Window) -> None:
    """SideError ("stamps" or "tokens") for an answer that isn't one to the request."""
    if (request.first_prompt is None) != (got.first_token_ns is None):
        what = "a stamp of a token that wasn't asked for" if request.first_prompt is None else "no stamp of its token"
        raise SideError(f"wrong number of tokens: {what}", kind="tokens")
    first = [] if got.first_token_ns is None else [got.first_token_ns]
    _check_stamps([got.started_ns, got.ready_ns, *first], window)


def check_generated(request: GenerateRequest, got: Generated, window: Window) -> None:
    """As `check_loaded`."""
    _check_row(request.max_tokens, got.tokens, got.token_ns, got.started_ns, window)


def check_batched(request: BatchRequest, got: Batched, window: Window) -> None:
    """As `check_loaded`, for each row."""
    wanted = len(request.prompts)
    if not len(got.tokens) == len(got.token_ns) == wanted:
        raise SideError(f"wrong number of tokens: {len(got.tokens)} rows, asked were {wanted}", kind="tokens")
    for tokens, token_ns in zip(got.tokens, got.token_ns, strict=True):
        _check_row(request.max_tokens, tokens, token_ns, got.started_ns, window)


def _check_row(wanted: int, tokens: Sequence[int], token_ns: Sequence[int], started_ns: int, window: Window) -> None:
    if len(tokens) != wanted:
        raise SideError(f"wrong number of tokens: {len(tokens)}, asked were {wanted}", kind="tokens")
    if len(token_ns) != wanted:
        raise SideError(f"wrong number of tokens: {len(token_ns)} stamps for {wanted}", kind="tokens")
    _check_stamps([started_ns, *token_ns], window)
    if token_ns[0] == started_ns:
        raise SideError("stamps don't rise: the first token has that of the request", kind="stamps")
    # Several tokens may come at once, but not all: that is no stream, and its rate is infinite.
    if wanted > 1 and token_ns[0] == token_ns[-1]:
        raise SideError(f"stamps don't rise: all {wanted} tokens have the same one", kind="stamps")


def _check_stamps(stamps: Sequence[int], window: Window) -> None:
    """In order, and not outside of the request."""
    if any(later < earlier for earlier, later in pairwise(stamps)):
        raise SideError("stamps don't rise: one is earlier than the one before it", kind="stamps")
    if stamps[0] < window.sent_ns:
        early = (window.sent_ns - stamps[0]) / 1e9
        raise SideError(f"stamps outside of the request: the first is {early:.3f} s before it", kind="stamps")
    if stamps[-1] > window.received_ns:
        late = (stamps[-1] - window.received_ns) / 1e9
        raise SideError(f"stamps outside of the request: the last is {late:.3f} s after the answer", kind="stamps")
