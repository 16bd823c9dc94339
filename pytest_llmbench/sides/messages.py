"""The messages between a parity run and a side, as `wire` writes and reads them.

Stamps are nanoseconds of the monotonic clock that all processes of one host share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

PROTOCOL: Final = 1
MARGINS: Final = "margins"
BATCH: Final = "batch"
CAPABILITIES: Final = (MARGINS, BATCH)
MOST_MARGINS: Final = 8
REFUSALS: Final = ("checkpoint", "memory", "unsupported", "failed")

Ids = tuple[int, ...]
Fact = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloRequest:
    """Who are you? Always the first request."""

    op: ClassVar[str] = "hello"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Load the checkpoint at `path`, in place of a loaded one; then generate one token after `first_prompt`."""

    op: ClassVar[str] = "load"
    path: str
    first_prompt: Ids | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Greedily generate exactly `max_tokens` after `prompt`, end tokens being tokens like all others."""

    op: ClassVar[str] = "generate"
    prompt: Ids
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """The same for several prompts at once."""

    op: ClassVar[str] = "batch"
    prompts: tuple[Ids, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginsRequest:
    """Which tokens are the likeliest after `prompt`?"""

    op: ClassVar[str] = "margins"
    prompt: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """Drop caches, and forget the peak of memory."""

    op: ClassVar[str] = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """How much memory has it taken?"""

    op: ClassVar[str] = "memory"


Request = (
    HelloRequest | LoadRequest | GenerateRequest | BatchRequest | MarginsRequest | ResetRequest | MemoryRequest
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A side's name and version, facts about it and its machine, and which of CAPABILITIES it has."""

    protocol: int = PROTOCOL
    name: str
    version: str
    facts: Mapping[str, Fact]
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """When loading began, when the model was ready, and when its first token was there (None: none was asked for)."""

    started_ns: int
    ready_ns: int
    first_token_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The tokens, and when each was there."""

    started_ns: int
    token_ns: tuple[int, ...]
    tokens: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """The same, by row of the batch."""

    started_ns: int
    token_ns: tuple[tuple[int, ...], ...]
    tokens: tuple[Ids, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """The best tokens with their logits, the best one first: at least two, at most MOST_MARGINS."""

    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes. Of the engine's own count: the peak since the last reset, and what is in use (None where it keeps none).

    Of the system's, since the process began: the peak of resident memory, and of `phys_footprint` (macOS alone).
    """

    peak_bytes: int | None
    active_bytes: int | None
    os_peak_rss_bytes: int
    os_peak_footprint_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The request couldn't be served. `kind`: one of REFUSALS."""

    kind: str
    message: str


Answer = Hello | Loaded | Generated | Batched | Margins | Reset | MemoryUse | Refusal
