"""Requests to a server whose process we watch: when one fails, the error tells what became of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_llmbench.chat import ChatClient, Reply
from pytest_llmbench.errors import RequestError, ServerTimeout
from pytest_llmbench.process import ServerProcess
from pytest_llmbench.secrets import hide_secrets

CRASH_NOTICE_S = 1.0
"""How long after a broken connection the server's end may still be on its way to us."""


class WatchedClient:
    """A `ChatClient` and the process behind it.

    Its errors, for both kinds of request: ServerCrashed where the process ended; ServerTimeout with command and last
    output; RequestError with the log's path, the server's secrets hidden.
    """

    def __init__(self, client: ChatClient, process: ServerProcess) -> None:
        self._client = client
        self._process = process

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
        """One plain JSON exchange (see `ChatClient.json`)."""
        with self._explained():
            return self._client.json(method, path, body, timeout_s=timeout_s)

    def stream(
        self, body: Mapping[str, Any], *, max_tokens: int | None = None, timeout_s: float | None = None
    ) -> Reply:
        """One streamed answer (see `ChatClient.stream`)."""
        with self._explained():
            return self._client.stream(body, max_tokens=max_tokens, timeout_s=timeout_s)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ServerTimeout as error:
            self._process.check_alive()
            raise ServerTimeout(self._process.explain(str(error))) from error
        except RequestError as error:
            if error.status is None:
                self._process.check_alive(within_s=CRASH_NOTICE_S)
            text = self._process.hide(f"{error} (server log: {self._process.log_path})")
            raise RequestError(text, status=error.status) from error


class OpenClient:
    """A `ChatClient` of a server that isn't ours, as `WatchedClient` is one of ours: no key in its errors."""

    def __init__(self, client: ChatClient, key: str | None) -> None:
        self._client = client
        self._secrets = [key] if key else []

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 30.0) -> Any:
        with self._hidden():
            return self._client.json(method, path, body, timeout_s=timeout_s)

    def stream(
        self, body: Mapping[str, Any], *, max_tokens: int | None = None, timeout_s: float | None = None
    ) -> Reply:
        with self._hidden():
            return self._client.stream(body, max_tokens=max_tokens, timeout_s=timeout_s)

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            raise RequestError(hide_secrets(str(error), self._secrets), status=error.status) from error
