"""An engine in our own process as a target: its samples are stamped as a server's are, from messages to text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import __version__
from pytest_llmbench.backends.base import FIRST, TargetInfo, load_seconds
from pytest_llmbench.backends.thinking import Thinking
from pytest_llmbench.counting import why_invalid
from pytest_llmbench.errors import BenchError, RequestError, UsageError
from pytest_llmbench.memory import MemoryPeak, MemorySampler
from pytest_llmbench.prompts import Message, Prompt
from pytest_llmbench.sample import Delta, Kind, Sample

if TYPE_CHECKING:
    from llmbench_engine import Engine, Request, Token
    from llmbench_engine.tokenizer import Tokenizer

    Stamped = tuple[int, Token]


class EngineTarget:
    """A loaded engine, which stays its owner's; `close` frees what was kept beside it."""

    def __init__(self, backend: str, folder: Path, engine: Engine, sampler: MemorySampler) -> None:
        assert engine.tokenizer is not None
        self.tokenizer = EngineTokenizer(engine.tokenizer)
        self.info = TargetInfo(backend=backend, version=__version__, model=str(folder), load_s=None, pid=os.getpid())
        self._engine = engine
        self._reusing: Engine | None = None
        self._thinking = Thinking(self.tokenizer.text_ids, silent=engine.tokenizer.eos_ids)
        self._sampler = sampler

    def answer_first(self, begun_ns: int) -> None:
        """Take `load_s`: from `begun_ns` to a first one-token answer, less what a second one takes to its token."""
        self.stream(FIRST, max_tokens=1, temperature=0.0)
        answered_ns = time.monotonic_ns()
        second = self.stream(FIRST, max_tokens=1, temperature=0.0)
        self.info = replace(self.info, load_s=load_seconds(begun_ns, answered_ns, second))

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        from llmbench_engine import Sampling

        stamped: list[Stamped] = []
        with explained(RequestError, "the engine can't answer"):
            engine = self._engine_for(cached=cached)
            reused = engine.reusable(self.tokenizer.prompt_ids(prompt.messages, think=prompt.think)) if cached else 0
            sampling = Sampling(temperature=temperature)
            start_ns = time.monotonic_ns()
            # A server is sent messages: to make ids of them is part of its answer, and so of ours.
            ids = self.tokenizer.prompt_ids(prompt.messages, think=prompt.think)
            for token in engine.generate(ids, max_tokens=max_tokens, sampling=sampling, ignore_eos=fixed_length):
                stamped.append((time.monotonic_ns() - start_ns, token))
        sample = self._sample(prompt, ids, stamped, max_tokens)
        sample = replace(sample, cached_tokens=reused)
        return replace(sample, invalid=why_invalid(sample, prompt, cached=cached))

    def stream_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int, temperature: float, fixed_length: bool = True
    ) -> tuple[Sample, ...]:
        """See `ServesMany.stream_many`; the engine decodes all of them in one batch."""
        from llmbench_engine import Request, Sampling

        self.close()
        sampling = Sampling(temperature=temperature)
        with explained(RequestError, "the engine can't answer"):
            start_ns = time.monotonic_ns()
            asked = [self.tokenizer.prompt_ids(prompt.messages, think=prompt.think) for prompt in prompts]
            ask = partial(Request, max_tokens=max_tokens, sampling=sampling, ignore_eos=fixed_length)
            stamped = answer_all(self._engine, [ask(prompt=tuple(ids)) for ids in asked], start_ns)
        found = [self._sample(*of_one, max_tokens) for of_one in zip(prompts, asked, stamped, strict=True)]
        return tuple(
            replace(sample, sent_ns=start_ns, invalid=why_invalid(sample, prompt, cached=False))
            for prompt, sample in zip(prompts, found, strict=True)
        )

    def _sample(self, prompt: Prompt, ids: Sequence[int], stamped: Sequence[Stamped], max_tokens: int) -> Sample:
        sample = Sample(
            prompt=prompt.name,
            deltas=(),
            end_ns=stamped[-1][0],
            requested_tokens=max_tokens,
            finish_reason=stamped[-1][1].finish,
            prompt_tokens=len(ids),
            cached_tokens=0,
            answered_by=self.info.model,
        )
        return with_tokens(sample, stamped, self._thinking.kinds(ids, [token.id for _, token in stamped]))

    def reset_peak_memory(self) -> None:
        import mlx.core as mx

        self._sampler.reset()
        mx.reset_peak_memory()

    def peak_memory(self) -> MemoryPeak:
        import mlx.core as mx

        return replace(self._sampler.peak(), mlx_peak_bytes=mx.get_peak_memory())

    def close(self) -> None:
        reusing, self._reusing = self._reusing, None
        if reusing is not None:
            reusing.close()

    def _engine_for(self, *, cached: bool) -> Engine:
        """Keeping caches takes time and memory, so only repetitions get an engine that does, on the same weights.

        It goes when the next new prompt comes, which it would be counted to.
        """
        if not cached:
            self.close()
            return self._engine
        if self._reusing is None:
            from llmbench_engine import Engine

            self._reusing = Engine(self._engine.model, self._engine.tokenizer, prefix_reuse=True)
        return self._reusing


class EngineTokenizer:
    """The engine's own vocabulary and chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        from llmbench_engine import InvalidRequest

        conversation = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return self._tokenizer.apply_chat_template(conversation, enable_thinking=think)
        except InvalidRequest as error:
            raise UsageError(f"{error}; name prompts of another form for this model") from error

    def text_ids(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def answer_all(engine: Engine, requests: Sequence[Request], start_ns: int) -> list[list[Stamped]]:
    """The tokens of each request with their stamps, in nanoseconds since `start_ns`; all are queued at once."""
    stamped: dict[int, list[Stamped]] = {}
    try:
        for request in requests:
            stamped[engine.submit(request)] = []
        while engine.pending:
            given = engine.step()
            at_ns = time.monotonic_ns() - start_ns
            for number, token in given:
                stamped[number].append((at_ns, token))
    finally:
        for number in stamped:
            engine.cancel(number)
    return list(stamped.values())


def with_tokens(sample: Sample, stamped: Sequence[Stamped], kinds: Sequence[Kind | None]) -> Sample:
    """Add the deltas, one for each token with text, and the counts: here every token is seen, none is estimated."""
    shown = [
        (place, Delta(at_ns=at_ns, kind=kind, text=token.text))
        for place, ((at_ns, token), kind) in enumerate(zip(stamped, kinds, strict=True))
        if kind is not None and token.text
    ]
    # A character of several tokens shows with its last one.
    first = [kind for kind in kinds[: shown[0][0] + 1] if kind is not None] if shown else [None]
    return replace(
        sample,
        deltas=tuple(delta for _, delta in shown),
        completion_tokens=len(kinds),
        token_source="engine",
        thinking_tokens=kinds.count("reasoning"),
        visible_tokens=kinds.count("content"),
        silent_tokens=kinds.count(None),
        first_delta_tokens=len(first),
        first_delta_source="engine",
    )


@contextmanager
def explained(kind: type[BenchError], what: str) -> Iterator[None]:
    """The engine's errors as errors of ours: `what`, and the engine's own words."""
    from llmbench_engine.errors import EngineError

    try:
        yield
    except EngineError as error:
        raise kind(f"{what}: {error}") from error
