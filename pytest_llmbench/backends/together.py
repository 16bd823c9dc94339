"""Targets that are asked over HTTP, one request at a time or several at once."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sample import Sample

T = TypeVar("T")


class HttpTarget(ABC):
    """Reads each answer whole, and counts its tokens when no request is underway any more."""

    @abstractmethod
    def _answer(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool, cached: bool
    ) -> Reply:
        """One request, read to its end."""

    @abstractmethod
    def _sample(self, prompt: Prompt, reply: Reply, *, max_tokens: int, cached: bool) -> Sample:
        """The answer with its tokens counted."""

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        """See `Target.stream`."""
        reply = self._answer(
            prompt, max_tokens=max_tokens, temperature=temperature, fixed_length=fixed_length, cached=cached
        )
        return self._sample(prompt, reply, max_tokens=max_tokens, cached=cached)

    def stream_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int, temperature: float, fixed_length: bool = True
    ) -> tuple[Sample, ...]:
        """See `ServesMany.stream_many`; each request has a connection of its own."""
        ask = partial(
            self._answer, max_tokens=max_tokens, temperature=temperature, fixed_length=fixed_length, cached=False
        )
        replies = together([partial(ask, prompt) for prompt in prompts])
        return tuple(
            replace(self._sample(prompt, reply, max_tokens=max_tokens, cached=False), sent_ns=reply.sent_ns)
            for prompt, reply in zip(prompts, replies, strict=True)
        )


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, each made in a thread of its own, all at the same moment.

    The first error is raised when all of them have ended; KeyboardInterrupt doesn't wait for them, nor does the
    interpreter's end. MeasurementError where this process can't have so many threads.
    """
    gate = threading.Barrier(len(calls))
    answers: list[Future[T]] = [Future() for _ in calls]

    def run(call: Callable[[], T], answer: Future[T]) -> None:
        try:
            gate.wait()
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the answers are read
            answer.set_exception(error)

    try:
        # No pool's: its threads are waited for when the interpreter ends, as long as a server is silent.
        _start([threading.Thread(target=run, args=each, daemon=True) for each in zip(calls, answers, strict=True)])
        wait(answers)
        return [answer.result() for answer in answers]
    finally:
        gate.abort()  # those that wait for one that never came


def _start(threads: Sequence[threading.Thread]) -> None:
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        raise MeasurementError(
            f"this process can't have {len(threads)} threads for as many requests at once ({error}); raise its limits, "
            "or ask for fewer at once"
        ) from error
