"""Who is read and who is decoded, step by step. No tensors here: the engine does what a plan says.

A request waits, is admitted, its prompt is read in chunks, then it is decoded until it ends; it can be cancelled at
any time. Admission is strictly first come, first served, so that nothing is starved: while the head of the queue
doesn't fit, nobody passes it. Among the admitted, prompts of one length are read together, as one group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmbench_engine.errors import InvalidRequest
from llmbench_engine.parameters import whole
from llmbench_engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be in memory and in a step at once.

    max_batch: sequences. chunk: prompt tokens of one step, over all rows of a group. budget: bytes of caches, None for
    no limit. token_bytes, sequence_bytes: what a cache needs for each token and, besides, for each sequence. block:
    prompts are read in multiples of so many tokens, the end apart.
    """

    max_batch: int = 8
    chunk: int = 2048
    budget: int | None = None
    token_bytes: int = 0
    sequence_bytes: int = 0
    block: int = 1

    def __post_init__(self) -> None:
        for name in ("max_batch", "chunk"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))

    def columns(self, rows: int) -> int:
        """Prompt tokens of each of so many rows in one step."""
        return max(self.block, self.chunk // rows // self.block * self.block)

    def need(self, totals: Iterable[int]) -> int:
        """Bytes for sequences that may come to these lengths: rows of a batch are all as long as the longest."""
        totals = list(totals)
        return len(totals) * (self.sequence_bytes + self.token_bytes * max(totals, default=0))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Columns `start` to `stop` of the prompts of a group, all of one length. `last`: they end with these."""

    rows: tuple[Sequence, ...]
    start: int
    stop: int
    last: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: one more token for each of `decode`, and at most one chunk of prompts."""

    decode: tuple[Sequence, ...]
    prefill: Chunk | None


@dataclass(slots=True)
class Group:
    """Prompts of one length, of which the first `seen` tokens have been read."""

    rows: list[Sequence]
    seen: int


@dataclass(slots=True)
class Scheduler:
    """Holds every request that hasn't ended. `reusable` says how many tokens of a prompt a kept cache has seen."""

    limits: Limits
    reusable: Callable[[Sequence], int] = lambda _: 0
    _waiting: deque[Sequence] = field(default_factory=deque)
    _admitted: list[Sequence] = field(default_factory=list)
    _group: Group | None = None
    _running: list[Sequence] = field(default_factory=list)

    def submit(self, sequence: Sequence) -> None:
        """Queue it. InvalidRequest where it wouldn't fit even alone."""
        self.check(sequence)
        self._waiting.append(sequence)

    def check(self, sequence: Sequence) -> None:
        """InvalidRequest where the budget is too small for this sequence alone."""
        need, budget = self.limits.need([sequence.request.total]), self.limits.budget
        if budget is not None and need > budget:
            raise InvalidRequest(
                f"prompt and max_tokens come to {sequence.request.total} tokens, which need {need:,} bytes of cache; "
                f"the memory budget has {budget:,}: lower max_tokens or raise memory_budget"
            )

    def plan(self) -> Plan:
        """The next step. What it holds counts as begun."""
        self._admit()
        decode = tuple(s for s in self._running if s.begun < s.request.max_tokens)
        for sequence in decode:
            sequence.begun += 1
        return Plan(decode, self._next_chunk())

    def remove(self, number: int) -> Sequence | None:
        """Forget a request that has ended or is cancelled, wherever it is. None if there is none of that number."""
        reading = self._group.rows if self._group else []
        for place in (self._running, reading, self._admitted, self._waiting):
            for sequence in place:
                if sequence.id == number:
                    place.remove(sequence)
                    if self._group and not self._group.rows:
                        self._group = None
                    return sequence
        return None

    def drop_active(self) -> tuple[Sequence, ...]:
        """Forget all that were begun; those that wait stay, admitted or not. Returns the forgotten."""
        dropped = (*self._running, *(self._group.rows if self._group else ()))
        self._waiting.extendleft(reversed(self._admitted))
        self._running, self._admitted, self._group = [], [], None
        return dropped

    @property
    def active(self) -> tuple[Sequence, ...]:
        """Those that count against the limits: admitted, being read or decoded."""
        return (*self._running, *(self._group.rows if self._group else ()), *self._admitted)

    @property
    def pending(self) -> int:
        """Requests that haven't ended."""
        return len(self._waiting) + len(self.active)

    @property
    def reserved(self) -> int:
        """Bytes set aside for the active ones."""
        return self.limits.need(s.request.total for s in self.active)

    def _admit(self) -> None:
        totals = [s.request.total for s in self.active]
        while self._waiting and len(totals) < self.limits.max_batch:
            totals.append(self._waiting[0].request.total)
            if self.limits.budget is not None and self.limits.need(totals) > self.limits.budget:
                return
            self._admitted.append(self._waiting.popleft())

    def _next_chunk(self) -> Chunk | None:
        group = self._group or self._form_group()
        if group is None:
            return None
        length, start = group.rows[0].length, group.seen
        group.seen = min(start + self.limits.columns(len(group.rows)), length)
        chunk = Chunk(tuple(group.rows), start, group.seen, group.seen == length)
        if chunk.last:
            self._start_decoding(group.rows)
        return chunk

    def _form_group(self) -> Group | None:
        """The first of the admitted, and all others that can be read in the same columns."""
        if not self._admitted:
            return None
        head = self._admitted[0]
        head.reused = self.reusable(head)
        rows = [head, *(s for s in self._admitted[1:] if s.length == head.length and self._reuses(s, head.reused))]
        self._admitted = [s for s in self._admitted if s not in rows]
        self._group = Group(rows, head.reused)
        return self._group

    def _reuses(self, sequence: Sequence, tokens: int) -> bool:
        sequence.reused = self.reusable(sequence)
        return sequence.reused == tokens

    def _start_decoding(self, rows: list[Sequence]) -> None:
        for sequence in rows:
            sequence.begun = 1
        self._running.extend(rows)
        self._group = None
