"""Ollama's words: names, addresses, requests, the lines of an answer, and what its log tells of the cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pytest_llmbench.backends.base import OF_A_PROCESS
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.ports import LOOPBACK
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sample import ServerTimings
from pytest_llmbench.sse import LineDecoder, Wire

PORT = 11434
DEFAULT_PORTS = {"http": 80, "https": 443}
HOST, CACHE_TYPE = "OLLAMA_HOST", "OLLAMA_KV_CACHE_TYPE"
_NAMES = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}


def model_name(entry: MatrixEntry) -> str:
    return entry.model_id.removeprefix("ollama:")


def whole_name(name: str) -> str:
    """As Ollama lists it: with a tag.

    >>> whole_name("glm-4.7-flash"), whole_name("hf.co/a/b:Q4_K_M")
    ('glm-4.7-flash:latest', 'hf.co/a/b:Q4_K_M')
    """
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def host_url(value: str) -> str:
    """Where a client finds the server that `OLLAMA_HOST` names for both: "", "host", ":port", "http://host:port".

    As Ollama reads it: a scheme that is said has its own default port. Unavailable for what is no address.

    >>> host_url("0.0.0.0"), host_url("box:80"), host_url("http://box")
    ('http://127.0.0.1:11434', 'http://box:80', 'http://box:80')
    """
    text = value.strip() or LOOPBACK
    scheme, said, rest = text.partition("://") if "://" in text else ("http", "", text)
    address = rest.partition("/")[0]
    bare = address.count(":") > 1 and not address.startswith("[")  # an IPv6 address by itself
    try:
        parts = urlsplit(f"{scheme}://{f'[{address}]' if bare else address}")
        port = parts.port or (DEFAULT_PORTS[scheme] if said else PORT)
    except (KeyError, ValueError) as error:
        raise Unavailable(f"{HOST} is {value!r}, no address", fix=f"export {HOST}=HOST:PORT") from error
    host = LOOPBACK if parts.hostname in (None, "0.0.0.0", "::", "localhost") else str(parts.hostname)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def needs_own(entry: MatrixEntry) -> bool:
    """Whether the entry says how the server is to be started."""
    return any(getattr(entry, name) for name in OF_A_PROCESS)


def check_fields(entry: MatrixEntry) -> None:
    """Unavailable where the entry's values contradict each other."""
    env = dict(entry.env)
    if HOST in env:
        raise Unavailable(f"env sets {HOST}", fix="use server_url for a server that runs; ours gets a free port")
    if entry.server_url and needs_own(entry):
        raise Unavailable("server_url names a server that runs", fix=f"take out {', '.join(OF_A_PROCESS)}")
    if re.fullmatch(r"q\d_\d", entry.kv_cache) and env.get(CACHE_TYPE) != entry.kv_cache:
        fix = f"env: {{{CACHE_TYPE}: {entry.kv_cache}, OLLAMA_FLASH_ATTENTION: 1}}"
        raise Unavailable(f"kv_cache is {entry.kv_cache}, but nothing tells Ollama", fix=fix)


def body(model: str, prompt: Prompt, options: Mapping[str, Any]) -> dict[str, Any]:
    """A chat request. Without `truncate: false` a prompt that is too long would be cut, and nothing said."""
    found: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        "options": dict(options),
        "keep_alive": -1,
        "truncate": False,
        "shift": False,
    }
    return found if prompt.think is None else {**found, "think": prompt.think}


def _chunk(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line of an answer; the last one has counts, and durations in ns."""
    done = line.get("done") is True
    choice = {"delta": line.get("message"), "finish_reason": line.get("done_reason")}
    found = {"model": line.get("model"), "done": done, "choices": [choice]}
    if not done:
        return found
    usage = {ours: line[theirs] for ours, theirs in _NAMES.items() if theirs in line}
    if "prompt_eval_cached_count" in line:
        usage["prompt_tokens_details"] = {"cached_tokens": line["prompt_eval_cached_count"]}
    return found | {"usage": usage, "timings": {name: value for name, value in line.items() if "_duration" in name}}


WIRE = Wire(decoder=LineDecoder, chunk=_chunk)


def seconds(reply: Reply, name: str) -> float | None:
    """One of the last line's durations; None without it, and for 0, which stands for nothing measured."""
    found = reply.timings.get(f"{name}_duration")
    return found / 1e9 if found else None


def read_timings(reply: Reply, *, cached: int | None, size: int | None) -> ServerTimings:
    """The prompt's duration is that of the tokens which no cache answered. `size`: what Ollama has set aside."""
    prompt_s, decode_s = seconds(reply, "prompt_eval"), seconds(reply, "eval")
    prompt, decoded = reply.usage.get("prompt_tokens"), reply.usage.get("completion_tokens")
    evaluated = None if prompt is None else prompt - (cached or 0)
    return ServerTimings(
        prompt_tokens=evaluated,
        prompt_s=prompt_s,
        prefill_tok_s=evaluated / prompt_s if evaluated and prompt_s else None,
        decode_tokens=decoded,
        decode_s=decode_s,
        decode_tok_s=decoded / decode_s if decoded and decode_s else None,
        peak_memory_bytes=size,
    )


def has_cache(kind: str, log: str) -> bool:
    """Whether the server's log says that a runner was started with a cache of that kind."""
    # The words of its own runner, of its older one, and of llama-server, which newer versions start.
    said = rf"(KvCacheType:|--kv-cache-type[ =]|--cache-type-k[ =]|-ctk[ =]){re.escape(kind)}\b"
    return re.search(said, log) is not None
