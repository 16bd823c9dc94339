"""Servers that run anyway, as their documentation has them: Ollama, LM Studio, Docker Model Runner, and OpenAI's chat.

Run as `protocol_server.py PLAN.json [serve]`. It listens at the plan's port, or where OLLAMA_HOST says, and writes down
what it is asked. The plan's keys:

    dialect     "ollama", "lm-studio", "docker-model-runner" or "openai"
    models      names that it has
    record      file that gets a JSON line for each request
    port        where it listens
    log         text to print at its start
    load_s      what a load takes
    unload_s    what an unload takes
    loaded      what somebody has loaded before: context tokens by model
    listen      false: never open the port
    most_context, least_context   bounds of the context length that it really gives
    token       the key that it wants
    fault       what a chat request gets: "", "error", "cut", "load_inside", "other_model", "echo_key", "hang_up",
                "silent", "overcounts" (Ollama: ten times as many tokens as it was asked for)
    faultless   how many chat requests come before those with the fault
    reasoning   LM Studio: the settings of thinking that its models have
    format      LM Studio: its models' format
    keeps       says that it has unloaded, but doesn't
    flags       Docker Model Runner: takes runtime flags
    odd         JSON that it answers in place of its own, by path
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LLAMA_STREAM = Path(__file__).parents[1] / "data" / "streams" / "llama-server.sse"
PAUSE_S = 0.002
ANSWER = (("thinking", "Hm"), ("thinking", "."), ("content", "Paris"), ("content", " it"), ("content", " is"))
NS = 1_000_000_000


class State:
    """The plan, and what is loaded: context tokens by model."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.loaded: dict[str, int] = dict(plan.get("loaded", {}))
        self.configured: dict[str, dict[str, Any]] = {}
        self.seen: set[str] = set()
        self.chats = 0
        self.lock = threading.Lock()

    def note(self, **facts: Any) -> None:
        line = json.dumps(facts) + "\n"
        with self.lock, Path(self.plan["record"]).open("a", encoding="utf-8") as file:
            file.write(line)

    def load(self, model: str, context: int) -> None:
        if self.loaded.get(model) != context:
            time.sleep(self.plan.get("load_s", 0.0))
        self.loaded[model] = context

    def unload(self, model: str) -> bool:
        if model in self.loaded:
            time.sleep(self.plan.get("unload_s", 0.0))
        return not self.plan.get("keeps") and self.loaded.pop(model, None) is not None

    def context(self, model: str) -> int:
        """What it really gives."""
        most = self.plan.get("most_context", 1 << 30)
        return int(min(self.loaded[model], most))

    def fault(self) -> str:
        self.chats += 1
        return str(self.plan.get("fault", "")) if self.chats > self.plan.get("faultless", 0) else ""


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: the end of an answer is the end of its connection."""

    state: State

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.handle_one(None)

    def do_POST(self) -> None:
        self.handle_one(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def handle_one(self, body: dict[str, Any] | None) -> None:
        key = self.headers.get("Authorization")
        self.state.note(method=self.command, path=self.path, body=body, authorization=key)
        wanted = self.state.plan.get("token")
        if wanted and key != f"Bearer {wanted}":
            self.answer(
                401, {"error": {"message": "Malformed LM Studio API token provided", "type": "invalid_request"}}
            )
            return
        route = ROUTES[self.state.plan["dialect"]].get((self.command, self.path))
        if self.path in (odd := self.state.plan.get("odd", {})):
            self.answer(200, odd[self.path])
        elif route is None:
            self.answer(404, {"error": "not found"})
        else:
            route(self, body or {})

    def answer(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def start(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def send(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()
        time.sleep(PAUSE_S)

    def send_event(self, data: dict[str, Any], *, named: bool = False) -> None:
        name = f"event: {data['type']}\n" if named else ""
        self.send(f"{name}data: {json.dumps(data)}\n\n")

    def has(self, model: str) -> bool:
        return model in self.state.plan["models"]


def pieces(tokens: int, *, think: bool) -> Iterator[tuple[str, str]]:
    """Kind and text of an answer's tokens."""
    return (piece for piece in ANSWER[:tokens] if think or piece[0] == "content")


def prompt_tokens(messages: list[dict[str, str]]) -> int:
    return sum(len(m["content"].split()) for m in messages)


# Ollama: lines of JSON, durations in ns.


def whole(name: str) -> str:
    return name if ":" in name else f"{name}:latest"


def ollama_tags(http: Handler, _: dict[str, Any]) -> None:
    names = [whole(name) for name in http.state.plan["models"]]
    http.answer(200, {"models": [{"name": n, "model": n, "size": 1000, "digest": "d"} for n in names]})


def ollama_ps(http: Handler, _: dict[str, Any]) -> None:
    rows = [
        {"name": whole(n), "model": whole(n), "size": 1000, "size_vram": 900, "context_length": http.state.context(n)}
        for n in http.state.loaded
    ]
    http.answer(200, {"models": rows})


def ollama_generate(http: Handler, body: dict[str, Any]) -> None:
    model = body["model"]
    if not http.has(model):
        http.answer(404, {"error": f"model '{model}' not found"})
        return
    if body["keep_alive"] == 0:
        http.state.unload(model)
    else:
        http.state.load(model, body["options"]["num_ctx"])
    reason = "load" if body["keep_alive"] else "unload"
    http.answer(200, {"model": model, "response": "", "done": True, "done_reason": reason})


def ollama_chat(http: Handler, body: dict[str, Any]) -> None:
    state, model, count = http.state, body["model"], prompt_tokens(body["messages"])
    fault = state.fault()
    if count > state.context(model):
        if body.get("truncate", True) is False:
            http.answer(400, {"error": "the input length exceeds the context length"})
            return
        count = state.context(model)
    reloads = state.loaded.get(model) != body["options"]["num_ctx"] or fault == "load_inside"
    state.load(model, body["options"]["num_ctx"])
    http.start("application/x-ndjson")
    wanted = 0 if fault == "silent" else body["options"]["num_predict"]
    sent = list(pieces(wanted, think=body.get("think", True)))
    name = "other:7b" if fault == "other_model" else model
    for kind, text in sent:
        message = {"role": "assistant", "content": "", kind: text}
        http.send(
            json.dumps({"model": name, "created_at": "2026-01-31T00:00:00Z", "message": message, "done": False}) + "\n"
        )
        if fault == "error":
            http.send(json.dumps({"error": "an error was encountered while running the model"}) + "\n")
        if fault in ("error", "cut"):
            return
        if fault == "hang_up":
            os._exit(3)
    text = body["messages"][-1]["content"]
    cached = count - 1 if text in state.seen else 0
    state.seen.add(text)
    last = {
        "model": name,
        "created_at": "2026-01-31T00:00:00Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop" if len(sent) < body["options"]["num_predict"] else "length",
        "total_duration": 9 * NS,
        "load_duration": 3 * NS if reloads else NS // 20,
        "prompt_eval_count": count,
        "prompt_eval_cached_count": cached,
        "prompt_eval_duration": NS // 2,
        "eval_count": 10 * body["options"]["num_predict"] if fault == "overcounts" else len(sent),
        "eval_duration": NS // 4,
    }
    http.send(json.dumps(last) + "\n")


# LM Studio: named events.


def lm_list(http: Handler, _: dict[str, Any]) -> None:
    plan = http.state.plan
    capabilities: dict[str, Any] = {"vision": False, "trained_for_tool_use": True}
    if plan.get("reasoning"):
        capabilities["reasoning"] = {"allowed_options": plan["reasoning"], "default": plan["reasoning"][-1]}
    rows = [
        {
            "type": "llm",
            "key": key,
            "format": plan.get("format", "mlx"),
            "max_context_length": 262144,
            "capabilities": capabilities,
            "loaded_instances": [
                {"id": i, "config": {"context_length": http.state.context(i)}}
                for i in http.state.loaded
                if i.partition(":")[0] == key
            ],
        }
        for key in plan["models"]
    ]
    http.answer(200, {"models": [*rows, {"type": "embedding", "key": "embed", "loaded_instances": []}]})


def lm_load(http: Handler, body: dict[str, Any]) -> None:
    if not http.has(body["model"]):
        http.answer(404, {"error": {"type": "model_not_found", "message": f"Model '{body['model']}' not found"}})
        return
    http.state.load(body["model"], body["context_length"])
    config = {"context_length": http.state.context(body["model"]), "flash_attention": True}
    http.answer(
        200,
        {
            "type": "llm",
            "instance_id": body["model"],
            "load_time_seconds": 0.1,
            "status": "loaded",
            "load_config": config,
        },
    )


def lm_unload(http: Handler, body: dict[str, Any]) -> None:
    if http.state.unload(body["instance_id"]):
        http.answer(200, {"instance_id": body["instance_id"]})
    else:
        http.answer(404, {"error": {"type": "model_not_found", "message": "no such instance"}})


def lm_chat(http: Handler, body: dict[str, Any]) -> None:
    fault = http.state.fault()
    if fault == "echo_key":
        http.answer(500, {"error": {"message": f"what does {http.headers['Authorization'].split()[1]} mean?"}})
        return
    http.start("text/event-stream")
    name = "other" if fault == "other_model" else body["model"]
    http.send_event({"type": "chat.start", "model_instance_id": name}, named=True)
    if fault == "load_inside":
        http.send_event({"type": "model_load.start", "model_instance_id": name}, named=True)
    http.send_event({"type": "prompt_processing.progress", "progress": 0.5}, named=True)
    wanted = 0 if fault == "silent" else body["max_output_tokens"]
    sent = list(pieces(wanted, think=body.get("reasoning") != "off"))
    for kind, text in sent:
        kind_of = {"thinking": "reasoning", "content": "message"}[kind]
        http.send_event({"type": f"{kind_of}.delta", "content": text}, named=True)
        if fault == "error":
            error = {"type": "internal_error", "message": "the worker has crashed"}
            http.send_event({"type": "error", "error": error}, named=True)
        if fault == "cut":
            return
    stats = {
        "input_tokens": len((body["input"] + " " + body.get("system_prompt", "")).split()),
        "total_output_tokens": len(sent),
        "reasoning_output_tokens": sum(kind == "thinking" for kind, _ in sent),
        "tokens_per_second": 43.5,
        "time_to_first_token_seconds": 0.01,
    }
    http.send_event(
        {"type": "chat.end", "result": {"model_instance_id": name, "output": [], "stats": stats}}, named=True
    )


# Docker Model Runner: llama.cpp's stream, as it was once recorded.


def docker_ps(http: Handler, _: dict[str, Any]) -> None:
    rows = [{"backend_name": "llama.cpp", "model_name": n, "mode": "completion"} for n in http.state.loaded]
    http.answer(200, rows)


def docker_configure(http: Handler, body: dict[str, Any]) -> None:
    if body["model"] in http.state.loaded:
        http.answer(409, {"error": "runner already active"})
        return
    http.state.configured[body["model"]] = body
    http.answer(202, None)


def docker_configured(http: Handler, _: dict[str, Any]) -> None:
    kept = ("context-size", *(("runtime-flags",) if http.state.plan.get("flags", True) else ()))
    rows = [
        {"Backend": "llama.cpp", "Model": name, "Mode": 0, "Config": {k: body[k] for k in kept if k in body}}
        for name, body in http.state.configured.items()
    ]
    http.answer(200, rows)


def docker_unload(http: Handler, body: dict[str, Any]) -> None:
    http.answer(200, {"unloaded_runners": sum(http.state.unload(name) for name in body["models"])})


def docker_chat(http: Handler, body: dict[str, Any]) -> None:
    if not http.has(body["model"]):
        http.answer(404, {"error": "model not found"})
        return
    http.state.load(body["model"], 4096)
    openai_chat(http, body)


def openai_chat(http: Handler, body: dict[str, Any]) -> None:
    fault = http.state.fault()
    name = {"other_model": "other"}.get(fault, http.state.plan.get("answers_as", body["model"]))
    if fault == "echo_key":
        http.answer(500, {"error": {"message": f"what does {http.headers['Authorization'].split()[1]} mean?"}})
        return
    http.start("text/event-stream")
    for event in LLAMA_STREAM.read_text(encoding="utf-8").strip().split("\n\n"):
        http.send(event.replace('"model":"tiny"', f'"model":{json.dumps(name)}') + "\n\n")
        if fault == "cut":
            return


def openai_models(http: Handler, _: dict[str, Any]) -> None:
    if http.state.plan.get("lists", True):
        http.answer(200, {"object": "list", "data": [{"id": name} for name in http.state.plan["models"]]})
    else:
        http.answer(404, {"error": "not found"})


def says(body: Any) -> Callable[[Handler, dict[str, Any]], None]:
    return lambda http, _: http.answer(200, body)


Route = Callable[[Handler, dict[str, Any]], None]
ROUTES: dict[str, dict[tuple[str, str], Route]] = {
    "ollama": {
        ("GET", "/api/version"): says({"version": "0.40.12"}),
        ("GET", "/api/tags"): ollama_tags,
        ("GET", "/api/ps"): ollama_ps,
        ("POST", "/api/generate"): ollama_generate,
        ("POST", "/api/chat"): ollama_chat,
    },
    "lm-studio": {
        ("GET", "/api/v1/models"): lm_list,
        ("POST", "/api/v1/models/load"): lm_load,
        ("POST", "/api/v1/models/unload"): lm_unload,
        ("POST", "/api/v1/chat"): lm_chat,
    },
    "docker-model-runner": {
        ("GET", "/models"): lambda http, _: http.answer(
            200, [{"id": "sha256:1", "tags": [name], "created": 1} for name in http.state.plan["models"]]
        ),
        ("GET", "/version"): says({"version": "1.2.3"}),
        ("GET", "/engines/ps"): docker_ps,
        ("GET", "/engines/_configure"): docker_configured,
        ("POST", "/engines/_configure"): docker_configure,
        ("POST", "/engines/unload"): docker_unload,
        ("POST", "/engines/v1/chat/completions"): docker_chat,
    },
    "openai": {
        ("GET", "/v1/models"): openai_models,
        ("POST", "/v1/chat/completions"): openai_chat,
    },
}


def main(argv: list[str]) -> int:
    """Serve until a signal."""
    plan = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    state = State(plan)
    state.note(method="START", path="", body={"argv": argv[1:], "env": dict(os.environ)}, authorization=None)
    sys.stdout.write(plan.get("log", "") + "\n")
    sys.stdout.flush()
    while not plan.get("listen", True):
        time.sleep(1)
    port = plan.get("port") or int(os.environ["OLLAMA_HOST"].rpartition(":")[2])
    handler = type("Planned", (Handler,), {"state": state})
    ThreadingHTTPServer.allow_reuse_address = True
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
