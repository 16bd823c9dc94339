"""The engine: a loaded checkpoint that generates, one sequence by itself or many together.

An engine is used from the thread that loaded it. It has no global state: several engines may live in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from pathlib import Path
from types import TracebackType

import mlx.core as mx

from llmbench_engine.errors import EngineClosed
from llmbench_engine.loading import load_beside
from llmbench_engine.parameters import GREEDY, WORD, Sampling, whole
from llmbench_engine.prefix import Prefixes
from llmbench_engine.runner import Runner, block, cache_sizes
from llmbench_engine.scheduler import Limits, Scheduler
from llmbench_engine.sequence import Request, Sequence, Token, start
from llmbench_engine.tokenizer import Tokenizer
from llmbench_engine.transformer import Model
from llmbench_engine.wired import WIRED_LIMIT

KEPT_SHARE = 4
"""With `prefix_reuse`, one part in so many of the memory budget is for kept caches."""


REHEARSED = (0,) * 16
"""A prompt long enough for the kernels that read prompts."""


class Engine:
    """One checkpoint. `tokenizer` is None for an engine made without one; its tokens then have no text."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        *,
        memory_budget: int | None = None,
        max_batch: int = 8,
        prefix_reuse: bool = False,
        chunk: int = 2048,
    ) -> None:
        self.tokenizer = tokenizer
        if memory_budget is not None:
            memory_budget = whole("memory_budget", memory_budget, 0, WORD)
        token_bytes, sequence_bytes, self.vocabulary = cache_sizes(model)
        kept = memory_budget // KEPT_SHARE if prefix_reuse and memory_budget is not None else None
        limits = Limits(
            max_batch=max_batch,
            chunk=chunk,
            budget=None if memory_budget is None else memory_budget - (kept or 0),
            token_bytes=token_bytes,
            sequence_bytes=sequence_bytes,
            block=block(model),
        )
        prefixes = Prefixes(capacity=kept) if prefix_reuse else None
        scheduler = Scheduler(limits) if prefixes is None else Scheduler(limits, prefixes.common)
        self._runner: Runner | None = Runner(model, scheduler, prefixes)
        self._next_id = 0
        self._wired = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        memory_budget: int | None = None,
        max_batch: int = 8,
        prefix_reuse: bool = False,
        chunk: int = 2048,
    ) -> Engine:
        """The checkpoint in the folder `path`, its weights in memory. CheckpointError where it doesn't fit.

        memory_budget: bytes for the caches of submitted requests, None for no limit. max_batch: sequences at once.
        prefix_reuse: keep the caches of ended sequences for prompts that begin alike. chunk: prompt tokens a step.
        """
        model, tokenizer = load_beside(Path(path), cls.rehearse)
        return cls(
            model,
            tokenizer,
            memory_budget=memory_budget,
            max_batch=max_batch,
            prefix_reuse=prefix_reuse,
            chunk=chunk,
        )

    @classmethod
    def rehearse(cls, excerpt: Model) -> None:
        """Generate with a part of the model: libraries are set up and kernels compiled before a prompt comes."""
        with cls(excerpt) as engine:
            list(engine.generate(REHEARSED, max_tokens=2))

    def generate(
        self,
        ids: Ordered[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling = GREEDY,
        stop: Iterable[int] = (),
        ignore_eos: bool = False,
        logprobs: bool = False,
    ) -> Iterator[Token]:
        """The tokens after the prompt `ids`, each given out while the next one is computed.

        The last token says why it is (`finish`). InvalidRequest, at once, for what can't be served. Submitted requests
        wait meanwhile.
        """
        request = Request(
            prompt=ids,  # type: ignore[arg-type]
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,  # type: ignore[arg-type]
            ignore_eos=ignore_eos,
            logprobs=logprobs,
        )
        return self._generate(self._accept(request))

    def _generate(self, sequence: Sequence) -> Iterator[Token]:
        with WIRED_LIMIT:
            for token in self._opened().alone(sequence):
                yield token
                self._opened()

    def submit(self, request: Request) -> int:
        """Queue a request; the number names it in `step` and `cancel`. InvalidRequest for what can't be served."""
        sequence = self._accept(request)
        self._opened().scheduler.submit(sequence)
        return sequence.id

    def step(self) -> list[tuple[int, Token]]:
        """Begin one more token of every running request and one chunk of waiting prompts; give out what is ready.

        At most one token a request, and none while only prompts are being read: call it while `pending`. An exception
        (no memory, Ctrl-C) drops the requests that were begun; a note of it names them.
        """
        runner = self._opened()
        self._hold_wired(self.pending > 0)
        try:
            return runner.step()
        finally:
            self._hold_wired(self.pending > 0)

    def cancel(self, number: int) -> bool:
        """Drop a request in whatever state it is; no more tokens of it come. False if it isn't there (any more)."""
        cancelled = self._opened().cancel(number)
        self._hold_wired(self._wired and self.pending > 0)
        return cancelled

    def reusable(self, ids: Ordered[int]) -> int:
        """Tokens of the prompt `ids` that kept caches spare it; 0 without `prefix_reuse`."""
        return self._opened().scheduler.reusable(start(0, Request(prompt=tuple(ids)), frozenset()))

    @property
    def model(self) -> Model:
        """The loaded model. Another engine can be made of it, with other parameters and the same weights in memory."""
        return self._opened().model

    @property
    def closed(self) -> bool:
        return self._runner is None

    @property
    def pending(self) -> int:
        """Submitted requests that haven't ended."""
        return self._opened().scheduler.pending

    def close(self) -> None:
        """Free weights and caches. A second call does nothing; any other use raises EngineClosed."""
        self._runner = None
        self._hold_wired(False)
        mx.clear_cache()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _opened(self) -> Runner:
        if self._runner is None:
            raise EngineClosed("this engine has been closed; load another one")
        return self._runner

    def _accept(self, request: Request) -> Sequence:
        """The request's state. InvalidRequest where this model or this budget can't serve it."""
        scheduler = self._opened().scheduler
        request.check_vocabulary(self.vocabulary)
        tokenizer = self.tokenizer
        eos = frozenset[int]() if tokenizer is None else tokenizer.eos_ids
        sequence = start(self._next_id, request, eos, None if tokenizer is None else tokenizer.detokenizer())
        scheduler.check(sequence)
        self._next_id += 1
        return sequence

    def _hold_wired(self, wanted: bool) -> None:
        if wanted != self._wired:
            self._wired = wanted
            WIRED_LIMIT.acquire() if wanted else WIRED_LIMIT.release()
