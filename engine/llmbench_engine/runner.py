"""Runs sequences on a model: one by itself, or those of a scheduler, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered

import mlx.core as mx

from llmbench_engine.batch import Batch, Step, begin
from llmbench_engine.cache import Cache, RecurrentState
from llmbench_engine.gated_delta import CHUNK
from llmbench_engine.generate import decode, prefill, read
from llmbench_engine.kv_cache import KeyValues
from llmbench_engine.prefix import Prefixes
from llmbench_engine.scheduler import Chunk, Scheduler
from llmbench_engine.sequence import Sequence, Token
from llmbench_engine.transformer import Model


class Runner:
    """Holds the tensors: the batch being decoded, and the cache of the group whose prompts are being read."""

    def __init__(self, model: Model, scheduler: Scheduler, prefixes: Prefixes | None = None) -> None:
        self.scheduler = scheduler
        self.model = model
        self._prefixes = prefixes
        self._batch: Batch | None = None
        self._reading: tuple[list[Sequence], Cache] | None = None

    def alone(self, sequence: Sequence) -> Iterator[Token]:
        """All tokens of a sequence that the scheduler doesn't know.

        The first is given out before the next but one is begun, so that it comes as early as it can; from then on the
        accelerator is always one token ahead.
        """
        cache = self._start([sequence])
        rest = mx.array([sequence.request.prompt[cache.lengths[0] :]])
        logits = prefill(self.model, rest, cache, chunk=self.scheduler.limits.columns(1))
        sequence.begun = 1
        batch = Batch(self.model, [sequence], cache, logits)
        mx.eval(batch.tokens)
        finished = False
        while not finished:
            underway = batch.step()
            if sequence.begun < sequence.request.max_tokens:
                sequence.begun += 1
                batch.advance()
            token = next(sequence.give(number, logprob) for _, number, logprob in underway.read())
            finished = token.finish is not None
            if finished:
                self._remember(batch, [sequence])
            yield token

    def step(self) -> list[tuple[int, Token]]:
        """Do what the scheduler plans next; gives out the tokens that the step before began.

        An exception (no memory, Ctrl-C) leaves tensors and plan apart: all that were begun are dropped then.
        """
        try:
            return self._step()
        except BaseException as error:
            dropped = self.scheduler.drop_active()
            self._batch = self._reading = None
            error.add_note(f"llmbench_engine dropped the requests {[s.id for s in dropped]}; those that wait stay")
            raise

    def _step(self) -> list[tuple[int, Token]]:
        plan = self.scheduler.plan()
        if plan.prefill and self._reading is None:
            # At once: what sequences leave behind that end below isn't what the plan counts on.
            self._reading = (list(plan.prefill.rows), self._start(plan.prefill.rows))
        underway = self._batch.step() if self._batch else None
        self._advance(plan.decode)
        fresh = self._read(plan.prefill) if plan.prefill else None
        given = [] if underway is None else self._give(underway)
        if fresh is not None:
            self._join(fresh)
        return given

    def cancel(self, number: int) -> bool:
        """Drop a sequence in whatever state it is. False if there is none of that number."""
        sequence = self.scheduler.remove(number)
        if sequence is None:
            return False
        if self._reading and sequence in self._reading[0]:
            self._drop_reading(sequence)
        self._drop([sequence])
        return True

    def _advance(self, rows: Ordered[Sequence]) -> None:
        """Begin the next token of these; the others of the batch have their last one underway."""
        batch = self._batch
        if batch is None:
            return
        done = [row for row in batch.rows if row not in rows]
        self._remember(batch, done)
        self._drop(done)
        if not rows:
            return
        if batch.first:
            # First tokens alone: nobody else gains if the next step is begun before they are there.
            mx.eval(batch.tokens)
        batch.advance()

    def _read(self, chunk: Chunk) -> Batch | None:
        """Read a chunk of prompts; a batch once they end."""
        assert self._reading is not None
        rows, cache = self._reading
        # One chunk at a time, else the activations of several would be in memory.
        mx.eval(cache.arrays)
        ids = mx.array([row.request.prompt[chunk.start : chunk.stop] for row in rows])
        if chunk.last:
            self._reading = None
            return Batch(self.model, rows, cache, prefill(self.model, ids, cache, chunk=ids.shape[1]))
        read(self.model, ids, cache)
        begin(cache.arrays)
        self._keep(cache, rows)
        return None

    def _give(self, underway: Step) -> list[tuple[int, Token]]:
        """Wait for the tokens; sequences that end with theirs leave."""
        given, ended = [], []
        for row, number, logprob in underway.read():
            token = row.give(number, logprob)
            given.append((row.id, token))
            if token.finish is not None:
                self.scheduler.remove(row.id)
                ended.append(row)
        if self._batch is not None:
            self._remember(self._batch, [row for row in ended if row in self._batch.rows])
        self._drop(ended)
        return given

    def _join(self, fresh: Batch) -> None:
        if self._batch is None:
            self._batch = fresh
        else:
            self._batch.join(fresh)

    def _drop(self, rows: Ordered[Sequence]) -> None:
        """Take these out of the batch, where they are in it."""
        if self._batch is not None and rows:
            kept = [row for row in self._batch.rows if row not in rows]
            self._batch.keep(kept) if kept else self._end_batch()

    def _end_batch(self) -> None:
        self._batch = None

    def _drop_reading(self, sequence: Sequence) -> None:
        assert self._reading is not None
        rows, cache = self._reading
        kept = [i for i, row in enumerate(rows) if row is not sequence]
        if kept:
            cache.select(kept)
        self._reading = ([rows[i] for i in kept], cache) if kept else None

    def _start(self, rows: Ordered[Sequence]) -> Cache:
        """A cache for prompts of one length that hasn't seen them, or only what kept caches have of all of them."""
        room = max(row.request.total for row in rows)
        kept = [self._prefixes.take(row, room) for row in rows] if self._prefixes else []
        first = kept[0] if kept else None
        if first is None:
            cache = self.model.make_cache(len(rows), room)
            cache.expect(room, known=len(rows[0].request.prompt))
            return cache
        for other in kept[1:]:
            assert other is not None
            first.join(other)
        return first

    def _remember(self, batch: Batch, rows: Ordered[Sequence]) -> None:
        if self._prefixes is not None and rows:
            for row in rows:
                index = batch.rows.index(row)
                self._prefixes.put(row.ids[: batch.cache.lengths[index]], batch.cache, index)

    def _keep(self, cache: Cache, rows: Ordered[Sequence]) -> None:
        """Windows and recurrent states can't be cut later: keep them at the end of each chunk."""
        if self._prefixes is not None and not cache.cuttable:
            for i, row in enumerate(rows):
                self._prefixes.put(row.request.prompt[: cache.lengths[i]], cache, i)


def block(model: Model) -> int:
    """Tokens that one computation of the model covers: prompts cut elsewhere would be rounded otherwise."""
    recurrent = any(isinstance(layer, RecurrentState) for layer in model.make_cache(1, 1).layers)
    return CHUNK if recurrent else 1


def cache_sizes(model: Model) -> tuple[int, int, int]:
    """Bytes of cache a token, further bytes a sequence, and the vocabulary's size.

    From the shapes of one step's graph, which is never computed.
    """
    cache = model.make_cache(1, 1)
    logits = decode(model, mx.array([0]), cache)
    growing = sum(a.nbytes for layer in cache.layers if isinstance(layer, KeyValues) for a in layer.arrays)
    return growing, cache.nbytes - growing, logits.shape[-1]
