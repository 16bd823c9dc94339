"""An HTTP server in a thread that answers each request with the bytes that it is told, piece by piece."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from pytest_llmbench.chat import ChatClient, Reply
from pytest_llmbench.errors import RequestError

EVENT_STREAM = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class StreamServer:
    """`script` holds bytes to send and numbers of seconds to wait; `requests` what came in."""

    script: Sequence[bytes | float]
    accept_delay_s: float = 0.0
    requests: list[bytes] = field(default_factory=list)
    url: str = ""

    def serve(self, listener: socket.socket) -> None:
        time.sleep(self.accept_delay_s)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.requests.append(_read_request(connection))
                for step in self.script:
                    time.sleep(step) if isinstance(step, float) else connection.sendall(step)


@contextmanager
def stream_server(*script: bytes | float, accept_delay_s: float = 0.0) -> Iterator[StreamServer]:
    """Serve `script` on a free port of the loopback interface; each connection gets it from its start."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = StreamServer(script, accept_delay_s)
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked coding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def status(code: int, body: bytes, kind: str = "application/json") -> bytes:
    """A whole answer."""
    head = f"HTTP/1.1 {code} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < int(lengths[0] if lengths else 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


BODY = {"messages": [{"role": "user", "content": "Hi"}]}


def ask(server: StreamServer, *, timeout_s: float = 20.0) -> Reply:
    with ChatClient(server.url, timeout_s=timeout_s) as client:
        return client.stream(BODY)


def reply_to(*script: bytes | float) -> Reply:
    with stream_server(EVENT_STREAM, *script) as server:
        return ask(server)


def error_from(*script: bytes | float) -> RequestError:
    with stream_server(*script) as server, pytest.raises(RequestError) as caught:
        ask(server)
    return caught.value


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def text_event(text: str, **more: object) -> bytes:
    return event({"choices": [{"delta": {"content": text}}], **more})


FINISH = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"
