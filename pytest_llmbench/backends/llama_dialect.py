"""What llama.cpp's programs say beyond OpenAI's API, wherever they run: fields, counts, times, tokens, files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmbench import models
from pytest_llmbench.backends import answers, reach
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import RequestError, Unavailable
from pytest_llmbench.matrix import MatrixEntry
from pytest_llmbench.prompts import Message, Prompt
from pytest_llmbench.sample import ServerTimings
from pytest_llmbench.whole_files import GGUF_MAGIC

T = TypeVar("T")


def llama_fields(prompt: Prompt, *, fixed_length: bool, cached: bool) -> dict[str, Any]:
    """What llama.cpp's server has beyond OpenAI's chat, wherever it runs."""
    return {"cache_prompt": cached, "ignore_eos": fixed_length, **answers.thinking_kwargs(think=prompt.think)}


def llama_cached(reply: Reply) -> int | None:
    """By the `timings` of its answers, else by their usage."""
    found: int | None = reply.timings.get("cache_n")
    return answers.cached_tokens(reply) if found is None else found


def llama_timings(given: Mapping[str, Any]) -> ServerTimings:
    """From the `timings` of llama.cpp's answers, which other servers have taken over."""
    decoded, accepted = given.get("predicted_n"), given.get("draft_n_accepted")
    return ServerTimings(
        prompt_tokens=given.get("prompt_n"),
        prompt_s=_seconds(given.get("prompt_ms")),
        prefill_tok_s=given.get("prompt_per_second"),
        decode_tokens=decoded,
        decode_s=_seconds(given.get("predicted_ms")),
        # With one token the server divides by nothing and says 0.
        decode_tok_s=given.get("predicted_per_second") or None,
        drafted_tokens=given.get("draft_n"),
        accepted_tokens=accepted,
        # Each pass of the model gives one token of its own, and those of the draft that it accepts.
        tokens_per_step=None if accepted is None or not decoded else decoded / max(1, decoded - accepted),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def gguf_file(entry: MatrixEntry) -> Path:
    """The entry's model, for programs that read GGUF files alone. Unavailable with the fix."""
    path = models.find(entry.model_id, beside=entry.path)
    if path.is_dir() or not _is_gguf(path):
        raise Unavailable(f"{entry.model_id} is no GGUF file", fix="name a .gguf file, or fetch it again")
    return path


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def parse_version(text: str) -> str | None:
    """From `llama-server --version`: "version: 0.6.0-dev (build 0, commit unknown)" on a line of its own."""
    found = re.search(r"^version:\s*(\S.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


class ServedTokenizer:
    """The model's tokenizer and chat template as the server itself applies them."""

    def __init__(self, client: WatchedClient) -> None:
        self._client = client

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        body = {"messages": conversation, **answers.thinking_kwargs(think=think)}
        return self._ids(self._told("/apply-template", body, "prompt", str), add_special=True)

    def text_ids(self, text: str) -> Sequence[int]:
        return self._ids(text, add_special=False)

    def _ids(self, text: str, *, add_special: bool) -> Sequence[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return self._told("/tokenize", body, "tokens", list)

    def _told(self, path: str, body: Mapping[str, Any], key: str, kind: type[T]) -> T:
        answer = self._client.json("POST", path, body)
        if (found := reach.part(answer, key, kind=kind)) is None:
            raise RequestError(f"{path}: no {key} in the answer {answer!r:.200}; is it another server?", status=200)
        return found
