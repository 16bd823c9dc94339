"""A side's process as the parity run sees it: asked, checked, described when it fails, stopped whatever happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from pytest_llmbench.errors import ServerError, ServerStartError, SideError
from pytest_llmbench.process import ServerProcess, describe_exit
from pytest_llmbench.sides import wire
from pytest_llmbench.sides.check import Window, check_batched, check_generated, check_loaded
from pytest_llmbench.sides.messages import (
    BATCH,
    MARGINS,
    Batched,
    BatchRequest,
    Generated,
    GenerateRequest,
    HelloRequest,
    Loaded,
    LoadRequest,
    Margins,
    MarginsRequest,
    MemoryRequest,
    MemoryUse,
    Request,
    ResetRequest,
)
from pytest_llmbench.sides.pipes import Closed, LinePipes, Silent, TooLong
from pytest_llmbench.sides.reading import one_line, shown
from pytest_llmbench.sides.spec import SideSpec

GRACE_S = 2.0
_END_S = 2.0
T = TypeVar("T")


class SideProcess:
    """A running side. Entering the block starts it and asks who it is; leaving it ends it.

    Attributes: `hello`, its answer; `spawned_ns`, our monotonic clock just before the spawn; `pid`; `spec`; `log_path`,
    the file that gets its stderr; `timeout_s`, which may be changed between requests. Whatever it does wrong is a
    SideError. One that refused a request may be asked again; after anything else it has been stopped, and every further
    request raises the same error.
    """

    def __init__(
        self, spec: SideSpec, log_path: Path, *, timeout_s: float = 600.0, start_timeout_s: float = 120.0
    ) -> None:
        """`timeout_s`: the longest that an answer may take; `start_timeout_s`: the first one, imports included."""
        self.spec = spec
        self.log_path = log_path
        self.timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._process: ServerProcess | None = None
        self._failed: SideError | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
            self.hello = self._ask(HelloRequest(), wire.parse_hello, timeout_s=self._start_timeout_s)
            if self.spec.version not in (None, self.hello.version):
                found = f"{one_line(self.hello.name)}: {one_line(self.hello.version)}"
                self._fail(f"wrong version of {found}, wanted is {self.spec.version}", kind="version")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._failed is None:
            self._pipes.close_out()
            self._running().wait_exit(_END_S)
        self._stop()
        self._failed = self._failed or SideError("has been ended already", kind="crash")

    def load(self, path: Path | str, first_prompt: Sequence[int] | None = None) -> Loaded:
        """Load a checkpoint, in place of a loaded one; generate one token after `first_prompt`, if there is one."""
        first = None if first_prompt is None else tuple(first_prompt)
        request = LoadRequest(path=str(path), first_prompt=first)
        return self._ask(request, wire.parse_loaded, lambda got, at: check_loaded(request, got, at))

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Generated:
        """Exactly `max_tokens` tokens."""
        request = GenerateRequest(prompt=tuple(prompt), max_tokens=max_tokens)
        return self._ask(request, wire.parse_generated, lambda got, at: check_generated(request, got, at))

    def batch(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Batched:
        """Exactly `max_tokens` tokens of each row."""
        request = BatchRequest(prompts=tuple(map(tuple, prompts)), max_tokens=max_tokens)
        self._need(BATCH)
        return self._ask(request, wire.parse_batched, lambda got, at: check_batched(request, got, at))

    def margins(self, prompt: Sequence[int]) -> Margins:
        """The likeliest tokens after `prompt`, with their logits."""
        self._need(MARGINS)
        return self._ask(MarginsRequest(prompt=tuple(prompt)), wire.parse_margins)

    def reset(self) -> None:
        """Have it drop its caches and forget its peak of memory."""
        self._ask(ResetRequest(), wire.parse_reset)

    def memory(self) -> MemoryUse:
        """Its use of memory."""
        return self._ask(MemoryRequest(), wire.parse_memory)

    def _start(self) -> None:
        self._pipes = LinePipes()
        try:
            self._process = ServerProcess.start(
                self.spec.command,
                env=self.spec.env,
                log_path=self.log_path,
                grace_s=GRACE_S,
                stdio=self._pipes.theirs,
            )
        except ServerStartError as error:
            text = one_line(str(error.__cause__ or error))
            raise SideError(f"couldn't be started: {text}", kind="start", detail=str(error)) from error
        finally:
            self._pipes.close_theirs()
        self.pid = self._process.pid
        self.spawned_ns = self._process.spawned_ns

    def _need(self, capability: str) -> None:
        self._check_usable()
        if capability not in self.hello.capabilities:
            reason = f"refused {capability}: unsupported: not among its capabilities"
            self._fail(reason, kind="refused", refusal="unsupported")

    def _ask(
        self,
        request: Request,
        parse: Callable[[bytes], T],
        check: Callable[[T, Window], None] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> T:
        self._check_usable()
        line, window = self._exchange(request, timeout_s or self.timeout_s)
        try:
            answer = parse(line)
            if check is not None:
                check(answer, window)
        except SideError as error:
            self._fail(error.reason, kind=error.kind, refusal=error.refusal, cause=error)
        return answer

    def _exchange(self, request: Request, timeout_s: float) -> tuple[bytes, Window]:
        """Send the request and wait for the answer's line."""
        if self._pipes.unasked():
            self._fail(f"broke the protocol: wrote what nobody asked for: {self._pending()}", kind="garbage")
        line = wire.encode_request(request)
        sent_ns = time.monotonic_ns()
        deadline = time.monotonic() + timeout_s
        try:
            self._pipes.send(line, deadline)
            answer = self._pipes.receive(deadline, self._has_ended)
        except Silent as error:
            self._fail(f"no answer to {request.op} within {timeout_s:g} s", kind="hang", cause=error)
        except TooLong as error:
            self._fail(f"broke the protocol: an endless line: {self._pending()}", kind="garbage", cause=error)
        except Closed as error:
            self._fail_closed(request.op, error)
        return answer, Window(sent_ns=sent_ns, received_ns=time.monotonic_ns())

    def _fail_closed(self, op: str, cause: Closed) -> NoReturn:
        """It has closed a pipe: most likely by its end."""
        code = self._running().wait_exit(_END_S)
        said = f", after {self._pending()}" if self._pipes.pending() else ""
        if code is None:
            self._fail(
                f"broke the protocol: closed its pipes in {op}, and still runs{said}", kind="garbage", cause=cause
            )
        killed = ": out of memory?" if code == -signal.SIGKILL else ""
        self._fail(f"ended in {op}: {describe_exit(code)}{killed}{said}", kind="crash", cause=cause)

    def _fail(self, reason: str, *, kind: str, refusal: str = "", cause: Exception | None = None) -> NoReturn:
        """Raise the error, with what is known of the process. One that only refused goes on."""
        process = self._running()
        if kind != "refused":
            self._stop()
        detail = process.explain(f"side: {self.spec.name}, process {self.pid}")
        error = SideError(process.hide(reason), kind=kind, refusal=refusal, detail=detail)
        if kind != "refused":
            self._failed = error
        raise error from cause

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _running(self) -> ServerProcess:
        assert self._process is not None, "a SideProcess is used as a context manager"
        return self._process

    def _has_ended(self) -> bool:
        return self._running().poll() is not None

    def _pending(self) -> str:
        return shown(self._pipes.pending())

    def _stop(self) -> None:
        """End the process and its group: at once where it ends by itself, else TERM, GRACE_S, KILL."""
        self._pipes.close()
        if self._process is None:
            return
        try:
            self._process.stop()
        except ServerError as error:
            raise SideError("didn't end, not even after SIGKILL", kind="hang", detail=str(error)) from error
