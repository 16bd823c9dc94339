"""Unsloth Studio's one-line server, which runs llama.cpp underneath (read in the wheel unsloth 2026.10.9; not run).

It listens before it has a model, serves its one model to any name, turns its own tools on, and may cut the context to
what fits. A fixed seed is its switch for llama.cpp's prompt cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import reach
from pytest_llmbench.backends.flags import left_open, value_of
from pytest_llmbench.backends.llama_server import LlamaServer
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.room import context_tokens
from pytest_llmbench.backends.server import HOST, Launch
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import ChatClient
from pytest_llmbench.errors import ServerStartError
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt, Tokenizer

FIX = "curl -fsSL https://unsloth.ai/install.sh | sh, then start it once for its key"
CONTEXT = ("--max-seq-length", "--context-length")
PARALLEL = ("--parallel", "--n-parallel", "-np")
SEED = 1


class UnslothStudio(LlamaServer):
    """`unsloth studio run` on PATH, or where `server_binary` says; the key is the one that it prints at its start."""

    name: ClassVar[str] = "unsloth-studio"
    one_at_a_time: ClassVar[str] = "it is started with one slot, since how it divides its context wasn't tried"
    # "No model loaded" and "downloaded but not loaded".
    loading_statuses: ClassVar[frozenset[int]] = frozenset({400, 404, 503})

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("unsloth", entry.server_binary, fix=FIX), "studio", "run")

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        named, variant = split_variant(entry.model_id)
        by_name = models.is_hub_name(named) and not variant.endswith(".gguf")
        shown = f"{named}:{variant}".rstrip(":") if by_name else str(model)
        words = ["--model", shown, "--host", HOST, "--port", str(port), "--api-only", "--disable-tools"]
        defaults = {CONTEXT: str(context_tokens(settings)), PARALLEL: "1"}
        return words + left_open(entry.extra_args, defaults)

    def model(self, entry: MatrixEntry) -> Path:
        return models.find(entry.model_id, beside=entry.path)

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        """Its answers name the repository without the quantization, and a local file by its stem."""
        named, _ = split_variant(entry.model_id)
        return named if models.is_hub_name(named) else model.name.removesuffix(".gguf")

    def version(self, entry: MatrixEntry) -> str | None:
        return installed_version(self.binary(entry)[0], "unsloth")

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        cold = {} if cached else {"seed": SEED}
        return cold if prompt.think is None else {**cold, "enable_thinking": prompt.think}

    def tokenizer(self, model: Path, client: WatchedClient) -> Tokenizer | None:
        return None

    def is_loaded(self, client: ChatClient) -> bool:
        status = client.json("GET", "/api/inference/status")
        return isinstance(status, dict) and bool(status.get("active_model")) and not status.get("loading")

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        status = client.json("GET", "/api/inference/status")
        _, variant = split_variant(entry.model_id)
        told = reach.part(status, "gguf_variant", kind=str)
        if variant and not variant.endswith(".gguf") and told != variant:
            raise ServerStartError(f"asked for the quantization {variant}, but the server says that it has {told}")
        wanted, context = value_of(launch.command, CONTEXT), reach.part(status, "context_length", kind=int)
        if wanted is not None and wanted.isdecimal() and context is not None and context < int(wanted):
            raise ServerStartError(f"asked for a context of {wanted} tokens, but the server made one of {context}")


def split_variant(model_id: str) -> tuple[str, str]:
    """`hf:owner/name:Q4_K_M` → ("owner/name", "Q4_K_M"); without a variant, or for a path, the second is ""."""
    named, _, variant = model_id.removeprefix("hf:").partition(":")
    return (named, variant) if models.is_hub_name(named) else (model_id, "")
