"""vllm-mlx (facts: vllm-mlx 0.6.0).

It listens when it has its model and refuses any other name. Without a parser it leaves the thought in the answer, so
that it gets the one that fits the model's chat template. It has no switch to go on after the end token, and tells
neither its timings nor what its prefix cache answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pytest_llmbench import tokenizer
from pytest_llmbench.backends import reach
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.mlx_lm import MlxLm
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import HOST, Launch
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.sample import ServerTimings

FIX = "in an environment of its own: pip install vllm-mlx (on Linux: 'mlx[cpu]' vllm-mlx)"
NAME, PARSER, CONTEXT = ("--served-model-name",), ("--reasoning-parser",), ("--max-kv-size",)
BATCHING = "--continuous-batching"
QUANTIZED, BITS, DEFAULT_BITS = "--kv-cache-quantization", ("--kv-cache-quantization-bits",), "8"
PARSERS = {"<think>": "qwen3", "<|channel|>": "gpt_oss", "<|channel>": "gemma4"}

_SAID_BITS = re.compile(r"^KV cache quantization: (\d+)-bit", re.MULTILINE)
_SAID_CONTEXT = re.compile(r"^Max KV size: (\d+)", re.MULTILINE)


class VllmMlx(MlxLm):
    """`vllm-mlx serve` beside this Python, on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "vllm-mlx"
    unbatched_with: ClassVar[tuple[str, ...]] = ()

    def check_streams(self, entry: MatrixEntry, streams: int) -> None:
        if streams > 1 and BATCHING not in entry.extra_args:
            raise Unavailable(f"{self.name} answers one request at a time", fix=f"extra_args: [{BATCHING}]")

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("vllm-mlx", entry.server_binary, fix=FIX), "serve")

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        words = (str(model), "--host", HOST, "--port", str(port))
        parser = reasoning_parser(model) if value_of(entry.extra_args, PARSER) is None else None
        return words if parser is None else (*words, PARSER[0], parser)

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        return value_of(entry.extra_args, NAME) or str(model)

    def version(self, entry: MatrixEntry) -> str | None:
        program = self.binary(entry)[0]
        found = installed_version(program, "vllm-mlx")
        return None if found is None else f"{found} (mlx-lm {installed_version(program, 'mlx-lm')})"

    def environment(self) -> Mapping[str, str]:
        # Its proof is a line on standard output, which Python keeps to itself when that is a file.
        return {**super().environment(), "PYTHONUNBUFFERED": "1"}

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        asked: list[tuple[str, str | None, re.Pattern[str]]] = []
        if QUANTIZED in entry.extra_args:
            asked.append(("a prefix cache of {} bits", value_of(entry.extra_args, BITS) or DEFAULT_BITS, _SAID_BITS))
        asked.append(("a cache of {} tokens", value_of(entry.extra_args, CONTEXT), _SAID_CONTEXT))
        for what, wanted, line in asked:
            said = line.search(output)
            if wanted is not None and (said is None or said.group(1) != wanted):
                shown = "no line of the server says so" if said is None else f"the server says: {said.group(0)}"
                raise ServerStartError(f"asked for {what.format(wanted)}, but {shown}")

    def ask_timings(self, reply: Reply, client: WatchedClient) -> ServerTimings:
        """Its peak of Metal memory since the start, which it rounds to 10 MB; null without Metal."""
        peak_gb = reach.part(client.json("GET", "/v1/status"), "metal", "peak_memory_gb", kind=float)
        return ServerTimings(peak_memory_bytes=None if peak_gb is None else round(peak_gb * 1e9))


def reasoning_parser(model: Path) -> str | None:
    """The parser for the thoughts of a model, by the first mark of one in its chat template; None without any."""
    template = tokenizer.template_source(model) or ""
    return next((parser for mark, parser in PARSERS.items() if mark in template), None)
