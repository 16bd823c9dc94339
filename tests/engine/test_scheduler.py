"""The scheduler's promises, whatever is submitted, cancelled and ended in whatever order."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmbench_engine.errors import InvalidRequest
from llmbench_engine.scheduler import Chunk, Limits, Plan, Scheduler
from llmbench_engine.sequence import Request, Sequence, start


def make(number: int, length: int, max_tokens: int = 4) -> Sequence:
    return start(number, Request(prompt=(1,) * length, max_tokens=max_tokens), frozenset({2}))


class Serving(RuleBasedStateMachine):
    """Plays the engine: what a plan begins is given out one step later."""

    @initialize(
        max_batch=st.integers(1, 4),
        chunk=st.integers(1, 12),
        budget=st.none() | st.integers(40, 400),
        token_bytes=st.integers(1, 3),
        sequence_bytes=st.integers(0, 10),
    )
    def begin(self, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.scheduler = Scheduler(self.limits, lambda s: self.kept.get(s.id, 0))
        self.kept: dict[int, int] = {}
        self.accepted: dict[int, Sequence] = {}
        self.covered: dict[int, int] = {}
        self.admitted: list[int] = []
        self.ended: list[int] = []
        self.underway: list[Sequence] = []

    @rule(length=st.integers(1, 30), max_tokens=st.integers(1, 8), kept=st.integers(0, 30))
    def submit(self, length: int, max_tokens: int, kept: int) -> None:
        sequence = make(len(self.accepted), length, max_tokens)
        need = self.limits.sequence_bytes + self.limits.token_bytes * (length + max_tokens)
        if self.limits.budget is not None and need > self.limits.budget:
            with pytest.raises(InvalidRequest, match="memory budget"):
                self.scheduler.submit(sequence)
            return
        if kept % 3 == 0:
            self.kept[sequence.id] = min(kept, length - 1)
        self.accepted[sequence.id] = sequence
        self.scheduler.submit(sequence)

    @rule(ends=st.sets(st.integers(0, 3)))
    def step(self, ends: set[int]) -> None:
        """One step, in which the rows `ends` of those read meet a token that ends them."""
        before = {s.id: s.begun for s in self.accepted.values()}
        plan = self.scheduler.plan()
        self.check_decode(plan, before)
        underway, self.underway = self.underway, list(plan.decode)
        if plan.prefill:
            self.check_chunk(plan.prefill)
        for row, sequence in enumerate(underway):
            if sequence.id not in self.ended and sequence.give(2 if row in ends else 1, None).finish:
                self.end(sequence.id)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.accepted)))
        if number in self.ended:
            assert self.scheduler.remove(number) is None
        else:
            self.end(number)

    def end(self, number: int) -> None:
        assert self.scheduler.remove(number) is self.accepted[number]
        self.ended.append(number)

    def check_decode(self, plan: Plan, before: dict[int, int]) -> None:
        """All that are being decoded get one token each, none more than it asked for."""
        due = [
            s.id for s in self.accepted.values() if s.id not in self.ended and 0 < before[s.id] < s.request.max_tokens
        ]
        assert sorted(s.id for s in plan.decode) == due
        assert all(s.begun == before[s.id] + 1 for s in plan.decode)

    def check_chunk(self, chunk: Chunk) -> None:
        """Prompts are read from where a kept cache ends, without gap or repetition, in chunks of bounded size."""
        assert 0 < (chunk.stop - chunk.start) * len(chunk.rows) <= max(self.limits.chunk, len(chunk.rows))
        assert {s.length for s in chunk.rows} == {chunk.rows[0].length}
        for s in chunk.rows:
            assert chunk.start == self.covered.get(s.id, self.kept.get(s.id, 0))
            self.covered[s.id] = chunk.stop
            assert (chunk.stop == s.length) == chunk.last
            assert s.begun == int(chunk.last)
        unread = [s.id for s in self.scheduler.active if s.begun == 0] + [s.id for s in chunk.rows]
        assert chunk.rows[0].id == min(unread) or chunk.start > chunk.rows[0].reused
        if chunk.last:
            self.underway.extend(chunk.rows)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        active = self.scheduler.active
        assert len({s.id for s in active}) == len(active) <= self.limits.max_batch
        rows = max((s.request.total for s in active), default=0)
        used = len(active) * (self.limits.sequence_bytes + self.limits.token_bytes * rows)
        assert used == self.scheduler.reserved
        assert self.limits.budget is None or used <= self.limits.budget
        assert self.scheduler.pending == len(self.accepted) - len(self.ended)

    @invariant()
    def first_come_is_first_admitted(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        active = {s.id for s in self.scheduler.active}
        self.admitted += sorted(active - set(self.admitted))
        assert self.admitted == sorted(self.admitted)

    def teardown(self) -> None:
        """Nothing starves: with no more requests, all end within as many steps as they have tokens."""
        if not hasattr(self, "scheduler"):
            return
        left = [s for s in self.accepted.values() if s.id not in self.ended]
        for _ in range(sum(s.length + s.request.max_tokens + 2 for s in left)):
            self.step(set())
            self.limits_hold()
            self.first_come_is_first_admitted()
        assert self.scheduler.pending == 0
        assert sorted(self.ended) == sorted(self.accepted)


Serving.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestServing = Serving.TestCase


def test_prompts_of_one_length_that_wait_together_are_one_group() -> None:
    scheduler = Scheduler(Limits(max_batch=4, chunk=100))
    for number, length in enumerate([5, 7, 5, 5]):
        scheduler.submit(make(number, length))
    first, second = scheduler.plan().prefill, scheduler.plan().prefill
    assert first is not None
    assert second is not None
    assert [s.id for s in first.rows] == [0, 2, 3]
    assert [s.id for s in second.rows] == [1]


def test_a_long_prompt_does_not_stall_decoding() -> None:
    scheduler = Scheduler(Limits(chunk=10))
    scheduler.submit(make(0, 1, max_tokens=100))
    scheduler.plan()
    scheduler.submit(make(1, 95))
    plans = [scheduler.plan() for _ in range(10)]
    assert [p.prefill and (p.prefill.start, p.prefill.stop) for p in plans][-2:] == [(80, 90), (90, 95)]
    assert all([s.id for s in p.decode] == [0] for p in plans)


def test_a_large_request_is_not_overtaken_by_small_ones() -> None:
    scheduler = Scheduler(Limits(budget=100, token_bytes=1))
    for number, length in enumerate([50, 90, 1, 1]):
        scheduler.submit(make(number, length))
    scheduler.plan()
    assert [s.id for s in scheduler.active] == [0]
    scheduler.remove(0)
    scheduler.plan()
    assert [s.id for s in scheduler.active] == [1]


def test_rows_of_a_batch_are_counted_as_long_as_the_longest() -> None:
    limits = Limits(budget=100, token_bytes=1)
    scheduler = Scheduler(limits)
    for number, length in enumerate([46, 1, 1]):
        scheduler.submit(make(number, length))
    scheduler.plan()
    assert [s.id for s in scheduler.active] == [0, 1]
    assert scheduler.reserved == 100


@pytest.mark.parametrize("name", ["max_batch", "chunk"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0"):
        Limits(**{name: 0})


def test_the_scheduler_needs_no_mlx() -> None:
    code = "import sys, llmbench_engine.scheduler; sys.exit('mlx' in sys.modules or 'mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
