"""mlx-vlm's server, which serves text-only models, too (facts: mlx-vlm 0.7.10).

It listens when it has its model, and lets go of it when a request names another one. It has no switch to go on after
the end token. Its prefix cache is off; `env: {APC_ENABLED: "1"}` turns it on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import tokenizer
from pytest_llmbench.backends import reach
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.llama_dialect import llama_timings
from pytest_llmbench.backends.mlx_lm import MlxLm
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import Launch
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import ServerStartError
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import GREETING, Prompt
from pytest_llmbench.sample import ServerTimings

FIX = "in an environment of its own: pip install mlx-vlm (on Linux: 'mlx[cpu]' mlx-vlm)"
BITS, SCHEME, START, CONTEXT = ("--kv-bits",), ("--kv-quant-scheme",), ("--quantized-kv-start",), ("--max-kv-size",)
THINKING = "--enable-thinking"
UNIFORM, TURBOQUANT = "uniform", "turboquant"

_SAID = re.compile(r"KV cache quantization: bits=(\S+) scheme=(\S+)")


class MlxVlm(MlxLm):
    """`mlx_vlm.server` beside this Python, on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "mlx-vlm"
    unbatched_with: ClassVar[tuple[str, ...]] = ()

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("mlx_vlm.server", entry.server_binary, fix=FIX),)

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        words = [*super().arguments(entry, settings, model=model, port=port)]
        if THINKING not in entry.extra_args and thinks_by_default(model):
            # Where a request says nothing of it, its own default counts, not the template's.
            words.append(THINKING)
        if wanted_scheme(entry.extra_args) == TURBOQUANT and value_of(entry.extra_args, START) is None:
            # Up to 5000 tokens it would keep the usual cache.
            words += [START[0], "0"]
        return words

    def version(self, entry: MatrixEntry) -> str | None:
        return installed_version(self.binary(entry)[0], "mlx-vlm")

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        return {} if prompt.think is None else {"enable_thinking": prompt.think}

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        health = client.json("GET", "/health")
        if (model := reach.part(health, "loaded_model", kind=str)) != str(launch.model):
            raise ServerStartError(f"{launch.model} was to be loaded, but it is {model!r}")
        wanted, told = value_of(entry.extra_args, CONTEXT), reach.part(health, "configured_context_limit", kind=int)
        if wanted is not None and str(told) != wanted:
            raise ServerStartError(f"asked for a cache of {wanted} tokens, but the server says {told}")
        prove_quantization(entry.extra_args, output)

    def timings(self, reply: Reply) -> ServerTimings:
        given = reply.timings
        decoded, rounds, peak_gb = given.get("predicted_n"), given.get("draft_rounds"), given.get("peak_memory")
        return replace(
            llama_timings(given),
            peak_memory_bytes=None if peak_gb is None else round(peak_gb * 1e9),
            # Not every draft is of the kind whose accepted tokens come on top of one for each round.
            tokens_per_step=decoded / rounds if decoded and rounds else None,
        )


def thinks_by_default(model: Path) -> bool:
    """Whether the model's chat template has thinking on where nothing is said of it."""
    found = tokenizer.load(model)
    if found is None:
        return False
    unsaid, on, off = (list(found.prompt_ids([GREETING], think=think)) for think in (None, True, False))
    return unsaid == on != off


def wanted_scheme(words: Sequence[str]) -> str | None:
    """How `extra_args` want the key-value cache quantized; None where they don't. Half bits are always TurboQuant's."""
    bits = value_of(words, BITS)
    if bits is None:
        return None
    return TURBOQUANT if not _is_whole(bits) else value_of(words, SCHEME) or UNIFORM


def prove_quantization(words: Sequence[str], output: str) -> None:
    """ServerStartError unless the server says of its cache what `words` ask for."""
    bits = value_of(words, BITS)
    if bits is None:
        return
    said = _SAID.search(output)
    if said is None:
        raise ServerStartError(f"no line of the server says that its key-value cache is quantized to {bits} bits")
    scheme = value_of(words, SCHEME) or UNIFORM
    if (float(said.group(1)), said.group(2)) != (float(bits), scheme):
        raise ServerStartError(f"asked for a cache of {bits} bits ({scheme}), but the server says: {said.group(0)}")


def _is_whole(bits: str) -> bool:
    try:
        return float(bits).is_integer()
    except ValueError:
        return True  # the server's own usage error says it better
