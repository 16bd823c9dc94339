"""What a matrix file says, as types: entries, settings, gates, and the values that a run really uses.

Reading the YAML is `matrix_file`; nothing here touches a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

CONTEXT_TOKENS: Mapping[str, int] = MappingProxyType(
    {f"context-{size}k": size * 1024 for size in (4, 8, 16, 32, 64, 128, 256)}
)
CONTEXT_PROMPTS: tuple[str, ...] = tuple(CONTEXT_TOKENS)
DEFAULT_PROMPTS: tuple[str, ...] = ("short", "long", "code")
BUILTIN_PROMPTS: tuple[str, ...] = DEFAULT_PROMPTS + CONTEXT_PROMPTS

METRICS: tuple[str, ...] = (
    "load_s",
    "ttft_s",
    "ttft_cached_s",
    "ttfv_s",
    "prefill_tok_s",
    "decode_tok_s",
    "itl_p50_s",
    "itl_p95_s",
    "itl_p99_s",
    "peak_memory_bytes",
    "diffusion_step_s",
)
"""What a gate on an entry's prompts can be put on; the unit is the end of the name."""

ROUND_METRICS: tuple[str, ...] = (
    "wall_s",
    "aggregate_tok_s",
    "decode_aggregate_tok_s",
    "fairness_ratio",
    "ttft_spread_s",
    "streams_at_once",
)
"""What one round of several requests at once gives."""

CONCURRENCY_METRICS: tuple[str, ...] = (*ROUND_METRICS, "ttft_p95_s", "total_p95_s")
"""What there is of several requests at once and of no single one; the last two are over the requests of all rounds."""

GATED_METRICS: tuple[str, ...] = (*METRICS, *CONCURRENCY_METRICS)
"""What a gate in a matrix file may name."""

CONCURRENCY_PREFIX = "concurrency-"

MOST_STREAMS = 1024
"""Requests at once, each with a thread and a connection of its own."""

REQUIREMENTS: tuple[str, ...] = ("platform", "memory_gb", "binary", "package", "env", "file")
"""Kinds of `requires`, each written `kind:value`."""


def concurrency_prompt(level: int) -> str:
    """The name under which what `level` requests at once gave is recorded and compared."""
    return f"{CONCURRENCY_PREFIX}{level}"


def concurrency_level(prompt: str) -> int | None:
    """Back from such a name; None for another prompt's."""
    number = prompt.removeprefix(CONCURRENCY_PREFIX)
    return int(number) if number != prompt and number.isdecimal() else None


def slug(text: str) -> str:
    """Letters, digits and `-` of `text`, as `-k` can take them.

    >>> slug("P — Qwen3.6-27B (Dense, VLM)")
    'P-Qwen3-6-27B-Dense-VLM'
    """
    return re.sub(r"[\W_]+", "-", text).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Bounds for one metric, in that metric's unit; at least one bound is set.

    `level`: only where that many requests run at once. Without it one of `METRICS` is for every prompt, one of
    `CONCURRENCY_METRICS` for every level.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    level: int | None = None

    def applies_to(self, level: int | None) -> bool:
        """Whether it is for a measurement of `level` requests at once; None: of one prompt by itself."""
        if self.level is not None:
            return self.level == level
        return (self.metric in CONCURRENCY_METRICS) == (level is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPrompt:
    """A prompt that a matrix file brings itself."""

    name: str
    text: str
    system: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The machine that a file's author had in mind: information, never a condition."""

    name: str | None = None
    memory_gb: float | None = None
    platform: str | None = None
    chip: str | None = None
    os: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A file's `settings`: what holds for each entry that says nothing else.

    `server_timeout` and `cooldown` are seconds; `bench_port` None means a free port.
    """

    runs: int = 3
    warmup: int = 1
    max_tokens: int = 512
    temperature: float = 0.0
    server_timeout: float = 600.0
    cooldown: float = 0.0
    bench_port: int | None = None
    fixed_length: bool = True
    concurrency: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixEntry:
    """One item of `tests`: a model on a backend, with every value as the file has it.

    `path` and `line` are where it stands. None means that the file gives no value, and "" the same for text
    that is only shown. `server_timeout` is in seconds. Secrets (`api_key`, `env`) stay out of `repr`.
    """

    id: str
    backend: str
    model_id: str
    path: Path
    line: int
    model: str = ""
    name: str = ""
    group: str = ""
    fmt: str = ""
    quant: str = ""
    kv_cache: str = "default"
    enabled: bool = True
    reason: str = ""
    known_issue: str = ""
    prereq: str = ""
    extra_args: tuple[str, ...] = ()
    prompts: tuple[str, ...] | None = None
    no_think: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    server_timeout: float | None = None
    fixed_length: bool | None = None
    server_binary: str | None = None
    server_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    gates: tuple[Gate, ...] = ()
    concurrency: tuple[int, ...] | None = None
    requires: tuple[str, ...] = ()

    @property
    def keywords(self) -> tuple[str, ...]:
        """The names under which `-k` finds this entry; those without a value are left out."""
        pairs = (
            ("backend", self.backend),
            ("quant", self.quant),
            ("kv", self.kv_cache),
            ("group", slug(self.group)),
        )
        return (self.id, self.model_id, *(f"{kind}:{value}" for kind, value in pairs if value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A whole matrix file. `prompts` are the names used by entries that name none."""

    path: Path
    entries: tuple[MatrixEntry, ...]
    hardware: Hardware = Hardware()
    settings: Settings = Settings()
    prompts: tuple[str, ...] = DEFAULT_PROMPTS
    custom_prompts: tuple[CustomPrompt, ...] = ()

    @property
    def prompt_names(self) -> tuple[str, ...]:
        """Every prompt name that is valid for this file."""
        return BUILTIN_PROMPTS + tuple(prompt.name for prompt in self.custom_prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the command line, the environment or the ini file said; None: nothing. 0 is a value."""

    runs: int | None = None
    warmup: int | None = None
    max_tokens: int | None = None
    prompts: tuple[str, ...] | None = None
    think: bool | None = None
    fixed_length: bool | None = None
    concurrency: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The values that one entry's tests run with.

    `think` None leaves the choice to the model's chat template. `prompt_max_tokens` holds the custom prompts
    that bring a length of their own; it is empty where the entry or the command line fixes the length.
    `concurrency`: how many requests run at once, a test for each number.
    """

    runs: int
    warmup: int
    max_tokens: int
    temperature: float
    server_timeout: float
    cooldown: float
    bench_port: int | None
    prompts: tuple[str, ...]
    think: bool | None
    fixed_length: bool
    concurrency: tuple[int, ...] = ()
    prompt_max_tokens: tuple[tuple[str, int], ...] = ()
    custom_prompts: tuple[CustomPrompt, ...] = ()

    def max_tokens_for(self, prompt: str) -> int:
        """How many tokens to ask for with the prompt of that name."""
        return dict(self.prompt_max_tokens).get(prompt, self.max_tokens)


def resolve(matrix: Matrix, entry: MatrixEntry, overrides: Overrides) -> RunSettings:
    """The values in force: overrides, then the entry, then the file's settings, then the defaults.

    An explicit `overrides.think` beats the entry's `no_think` too: who types `--llmbench-think` means it.
    `max_tokens` of a custom prompt comes after the entry's and before the settings'.
    """
    settings = matrix.settings
    return RunSettings(
        runs=_first(settings.runs, overrides.runs),
        warmup=_first(settings.warmup, overrides.warmup),
        max_tokens=_first(settings.max_tokens, overrides.max_tokens, entry.max_tokens),
        temperature=_first(settings.temperature, entry.temperature),
        server_timeout=_first(settings.server_timeout, entry.server_timeout),
        cooldown=settings.cooldown,
        bench_port=settings.bench_port,
        prompts=_first(matrix.prompts, overrides.prompts, entry.prompts),
        think=_think(entry, overrides),
        fixed_length=_first(settings.fixed_length, overrides.fixed_length, entry.fixed_length),
        concurrency=_first(settings.concurrency, overrides.concurrency, entry.concurrency),
        prompt_max_tokens=_prompt_lengths(matrix, entry, overrides),
        custom_prompts=matrix.custom_prompts,
    )


def _first(default: T, *values: T | None) -> T:
    return next((value for value in values if value is not None), default)


def _think(entry: MatrixEntry, overrides: Overrides) -> bool | None:
    if overrides.think is not None or entry.no_think is None:
        return overrides.think
    return not entry.no_think


def _prompt_lengths(matrix: Matrix, entry: MatrixEntry, overrides: Overrides) -> tuple[tuple[str, int], ...]:
    if overrides.max_tokens is not None or entry.max_tokens is not None:
        return ()
    return tuple((p.name, p.max_tokens) for p in matrix.custom_prompts if p.max_tokens is not None)
