"""A Python side's loop. It is the same for all of them, so that the clock on both sides is this one."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

from pytest_llmbench.errors import SideError
from pytest_llmbench.sides.messages import (
    BATCH,
    MARGINS,
    Answer,
    Batched,
    BatchRequest,
    Fact,
    Generated,
    GenerateRequest,
    Hello,
    Loaded,
    LoadRequest,
    Margins,
    MarginsRequest,
    MemoryRequest,
    MemoryUse,
    Refusal,
    Request,
    Reset,
    ResetRequest,
)
from pytest_llmbench.sides.wire import encode_answer, parse_request

# What MLX and CUDA say in a RuntimeError.
_NO_MEMORY = re.compile(
    r"out of memory|insufficient memory|unable to allocate|attempting to allocate|failed to allocate"
    r"|maximum allowed buffer size|bad_alloc|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
# What a library raises where files are missing, cut short or of another kind.
_BAD_CHECKPOINT = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)


class Served(ABC):
    """An engine as `serve` asks it. An iterator gives a token when it is known, not while it is being computed."""

    name: ClassVar[str]
    capabilities: ClassVar[tuple[str, ...]] = (MARGINS, BATCH)

    @property
    @abstractmethod
    def version(self) -> str:
        """Of the engine."""

    @abstractmethod
    def facts(self) -> Mapping[str, Fact]:
        """Versions, device, settings: what somebody needs to have the same again."""

    def setup(self) -> None:  # noqa: B027  # optional
        """Import the engine and wake the device up: once, before anything else is asked."""

    def prepare(self, path: Path) -> None:  # noqa: B027  # optional
        """Let go of a loaded checkpoint and import what this one needs. Its time isn't part of the load."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Have the checkpoint's weights in memory."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], n: int) -> Iterator[int]:
        """The `n` likeliest tokens, one by one; end tokens are tokens like all others."""

    def batch(self, prompts: Sequence[Sequence[int]], n: int) -> Iterator[tuple[int, int]]:
        """Row and token, as they come; in the end `n` of each row."""
        raise SideError("it doesn't do batches", kind="refused", refusal="unsupported")

    def margins(self, prompt: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens after `prompt` with their logits, at most MOST_MARGINS, the best one first."""
        raise SideError("it doesn't tell logits", kind="refused", refusal="unsupported")

    @abstractmethod
    def reset(self) -> None:
        """Drop caches, and forget the peak of memory."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """What `MemoryUse` says."""


def serve(side: Served) -> None:
    """Answer requests on stdin until it ends. stdout is the protocol's alone: what else is printed goes to stderr."""
    requests, answers = _own_pipes()
    loop = Loop(side)
    # The parent may be gone before it has read the last answer.
    with contextlib.suppress(BrokenPipeError):
        for line in requests:
            answers.write(loop.answer(line))
            answers.flush()


class Loop:
    """Turns a request's line into an answer's line."""

    def __init__(self, side: Served) -> None:
        self._side = side
        self._set_up = False

    def answer(self, line: bytes) -> bytes:
        """Whatever goes wrong becomes an answer of its own; the traceback goes to stderr."""
        try:
            request = parse_request(line)
            self._setup_once()
            return encode_answer(self._handle(request))
        except SideError as error:
            return encode_answer(Refusal(kind=error.refusal or "failed", message=error.reason))
        except Exception as error:  # noqa: BLE001  # the asker gets it, whatever a library raises
            traceback.print_exc()
            return encode_answer(Refusal(kind=_refusal_kind(error), message=_described(error)))

    def _setup_once(self) -> None:
        if not self._set_up:
            self._side.setup()
            self._set_up = True

    def _handle(self, request: Request) -> Answer:
        side = self._side
        match request:
            case LoadRequest():
                return _load(side, request)
            case GenerateRequest():
                return _generate(side, request)
            case BatchRequest():
                return _batch(side, request)
            case MarginsRequest():
                return Margins(top=side.margins(request.prompt))
            case ResetRequest():
                side.reset()
                return Reset()
            case MemoryRequest():
                return side.memory()
            case _:
                facts = side.facts()
                return Hello(name=side.name, version=side.version, facts=facts, capabilities=side.capabilities)


def _load(side: Served, request: LoadRequest) -> Loaded:
    path = Path(request.path)
    if not path.exists():
        raise SideError(f"{path} doesn't exist", kind="refused", refusal="checkpoint")
    try:
        side.prepare(path)
        started_ns = time.monotonic_ns()
        side.load(path)
        ready_ns = time.monotonic_ns()
    except _BAD_CHECKPOINT as error:
        if _is_out_of_memory(error):
            raise
        traceback.print_exc()
        raise SideError(_described(error), kind="refused", refusal="checkpoint") from error
    first_ns = None
    if request.first_prompt is not None:
        first_ns = _generate(side, GenerateRequest(prompt=request.first_prompt, max_tokens=1)).token_ns[0]
    return Loaded(started_ns=started_ns, ready_ns=ready_ns, first_token_ns=first_ns)


def _generate(side: Served, request: GenerateRequest) -> Generated:
    token_ns: list[int] = []
    tokens: list[int] = []
    started_ns = time.monotonic_ns()
    for token in side.generate(request.prompt, request.max_tokens):
        token_ns.append(time.monotonic_ns())
        tokens.append(token)
    return Generated(started_ns=started_ns, token_ns=tuple(token_ns), tokens=tuple(tokens))


def _batch(side: Served, request: BatchRequest) -> Batched:
    token_ns: list[list[int]] = [[] for _ in request.prompts]
    tokens: list[list[int]] = [[] for _ in request.prompts]
    started_ns = time.monotonic_ns()
    for row, token in side.batch(request.prompts, request.max_tokens):
        token_ns[row].append(time.monotonic_ns())
        tokens[row].append(token)
    return Batched(started_ns=started_ns, token_ns=tuple(map(tuple, token_ns)), tokens=tuple(map(tuple, tokens)))


def _refusal_kind(error: BaseException) -> str:
    if _is_out_of_memory(error):
        return "memory"
    return "unsupported" if isinstance(error, ImportError) else "failed"


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )


def _described(error: BaseException) -> str:
    # A file's name may hold half a surrogate pair.
    return f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """stdin and stdout for the protocol. What reads fd 0 from now on gets nothing; what writes to fd 1, stderr."""
    sys.stdout.flush()
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers
