"""When a server that we started is ready: our own listener on the port, and a first answer from the expected model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pytest_llmbench.backends.base import Report
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import PortInUse, RequestError, ServerStartError, ServerTimeout
from pytest_llmbench.ports import check_port_free
from pytest_llmbench.process import ServerProcess


class FirstAnswer:
    """Asks until the first answer comes. `ask(seconds left)` sends a request that makes the model work.

    `loading_statuses` are HTTP statuses that mean "not yet". A connection that fails means the same; the server's end
    is noticed by `ServerProcess.wait_ready`.
    """

    def __init__(
        self, process: ServerProcess, port: int, *, ask: Callable[[float], Reply], loading_statuses: Collection[int]
    ) -> None:
        self._process = process
        self._port = port
        self._ask = ask
        self._loading_statuses = loading_statuses
        self._answered_ns = 0
        self._last = f"the server didn't listen on port {port}"

    def wait(self, *, timeout_s: float, report: Report) -> int:
        """Our monotonic clock, ns, when the first answer was complete.

        ServerStartError for a server that ends, refuses, is another one or answers as another model; ServerTimeout,
        with what came of the last attempt, after `timeout_s`.
        """
        try:
            self._process.wait_ready(self._probe, timeout_s=timeout_s, report=report)
        except ServerTimeout as error:
            raise ServerTimeout(f"{error}\nlast attempt: {self._process.hide(self._last)}") from error
        return self._answered_ns

    def _probe(self, remaining_s: float) -> bool:
        if not self._process.owns_port(self._port):
            self._refuse_stranger()
            return False
        try:
            self._ask(remaining_s)
        except ServerTimeout as error:
            self._last = str(error)
            return False
        except RequestError as error:
            if error.status is not None and error.status not in self._loading_statuses:
                raise
            self._last = str(error)
            return False
        self._answered_ns = time.monotonic_ns()
        return True

    def _refuse_stranger(self) -> None:
        """A listener that is not ours would answer for the server that we measure."""
        try:
            check_port_free(self._port)
        except PortInUse as error:
            # Between the two looks our own child may have opened the port.
            if not self._process.owns_port(self._port):
                raise ServerStartError(
                    self._process.explain(f"another process took the port while the server started: {error}")
                ) from error
