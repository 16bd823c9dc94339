"""An OpenAI-compatible server that misbehaves as its plan says, and writes down what it is asked.

Run as `fake_server.py PLAN.json [the flags that a backend gives]`. The plan's keys, all optional:

    record        file that gets a JSON line for each event
    output        text to print at once
    exit          end at once with this code
    loading_s     seconds without a model; `/health` and `/v1/models` are 200 from the beginning
    loading       what a chat request gets meanwhile: "503", "hang" (until loaded), "keepalive" (with comments)
    answer_as     the model name in the answers; else the one asked for
    faults        what the chat requests from the third on get, the last one repeated (two are the readiness check):
                  "", "stall", "keepalive", "stall_midway", "endless", "cut", "not_json", "error_event", "echo_key"
    ignore_term   SIGTERM does nothing
    listen        false: never open the port
    says          the text of an answer, in place of "One two"
    calls         what each delta of an answer has as `tool_calls`, where tools are offered
    finish        the answers' finish_reason, in place of "stop"
    answers       what a GET of a path gets; of a list one after another, the last one repeated
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

READINESS_REQUESTS = 2
PAUSE_S = 0.02


class State:
    """The plan, and what has happened so far."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.loaded_ns = time.monotonic_ns() + int(plan.get("loading_s", 0) * 1e9)
        self.chats = itertools.count()
        self.words: dict[str, int] = {}
        self._lock = threading.Lock()

    def note(self, event: str, **facts: Any) -> None:
        if "record" not in self.plan:
            return
        line = json.dumps({"event": event, "ns": time.monotonic_ns(), **facts}) + "\n"
        with self._lock, Path(self.plan["record"]).open("a", encoding="utf-8") as file:
            file.write(line)

    def fault(self) -> str:
        number = next(self.chats) - READINESS_REQUESTS
        faults = self.plan.get("faults") or [""]
        return str(faults[min(number, len(faults) - 1)]) if number >= 0 else ""

    def planned(self, path: str) -> dict[str, Any] | None:
        """The next answer for a GET of `path`."""
        found = self.plan.get("answers", {}).get(path)
        if not isinstance(found, list):
            return found
        with self._lock:
            return found.pop(0) if len(found) > 1 else found[0]

    def ids(self, text: str) -> list[int]:
        """A word is a token, with the space before it."""
        with self._lock:
            return [self.words.setdefault(w, len(self.words)) for w in re.findall(r" ?\w+|[^\w ]| ", text)]


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0, as mlx_lm.server speaks it: the end of an answer is the end of its connection."""

    state: State

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.state.note("get", path=self.path, authorization=self.headers.get("Authorization"))
        self.answer(200, self.state.planned(self.path) or {"status": "ok", "data": [{"id": "already-there"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            self.answer(200, {"prompt": "start " + " ".join(m["content"] for m in body["messages"])})
        elif self.path == "/tokenize":
            self.answer(200, {"tokens": self.state.ids(body["content"])})
        else:
            self.state.note("chat", path=self.path, body=body, authorization=self.headers.get("Authorization"))
            self.chat(body)

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chat(self, body: dict[str, Any]) -> None:
        streaming = False
        while time.monotonic_ns() < self.state.loaded_ns:
            kind = self.state.plan.get("loading", "503")
            if kind == "503":
                self.answer(503, {"error": "Loading model"})
                return
            if kind == "keepalive":
                streaming = streaming or self.start_stream()
                self.send(b": keepalive\n\n")
            time.sleep(PAUSE_S)
        fault = self.state.fault()
        if fault == "echo_key":
            self.answer(500, {"error": f"no idea what {self.headers['Authorization']} and {self.bare_key()} mean"})
            return
        if not streaming:
            self.start_stream()
        model = self.state.plan.get("answer_as") or body["model"]
        calls = self.state.plan.get("calls", []) if body.get("tools") else []
        for delta in calls:
            self.chunk(model, {"role": "assistant", "tool_calls": delta})
        if calls or "says" in self.state.plan:
            self.finish(model, "" if calls else self.state.plan["says"])
        else:
            self.stream(model, fault)
        self.state.note("answered")

    def bare_key(self) -> str:
        return self.headers["Authorization"].removeprefix("Bearer ")

    def start_stream(self) -> bool:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        return True

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def chunk(self, model: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> None:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        self.send(b"data: " + json.dumps({"model": model, "choices": choices, **more}).encode() + b"\n\n")

    def stream(self, model: str, fault: str) -> None:
        self.chunk(model, {"role": "assistant", "content": None})
        if fault == "stall":
            self.forever(b"")
        if fault == "keepalive":
            self.forever(b": keepalive\n\n")
        self.chunk(model, {"content": "One"})
        self.state.note("midway")
        if fault == "stall_midway":
            self.forever(b"")
        while fault == "endless":
            self.chunk(model, {"content": " more"})
            time.sleep(PAUSE_S)
        if fault == "cut":
            return
        if fault == "not_json":
            self.send(b"data: <html>\n\n")
        if fault == "error_event":
            self.send(b'data: {"error": {"message": "out of memory"}}\n\n')
        self.finish(model, " two")

    def finish(self, model: str, text: str) -> None:
        self.chunk(model, {"content": text})
        self.chunk(model, {}, self.state.plan.get("finish", "stop"))
        usage = {"completion_tokens": 3}
        self.send(b"data: " + json.dumps({"model": model, "choices": [], "usage": usage}).encode() + b"\n\n")
        self.send(b"data: [DONE]\n\n")

    def forever(self, data: bytes) -> None:
        while True:
            if data:
                self.send(data)
            time.sleep(PAUSE_S)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no news."""


def main(argv: list[str]) -> int:
    """Serve until a signal."""
    plan = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    state = State(plan)
    state.note("start", argv=argv[1:], loaded_ns=state.loaded_ns)
    sys.stdout.write(plan.get("output", "fake server\n"))
    sys.stdout.flush()
    if "exit" in plan:
        return int(plan["exit"])
    if plan.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if plan.get("listen", True):
        handler = type("Planned", (Handler,), {"state": state})
        Server(("127.0.0.1", int(argv[argv.index("--port") + 1])), handler).serve_forever()
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
