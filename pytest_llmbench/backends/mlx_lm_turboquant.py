"""mlx-lm's server with a TurboQuant key-value cache, by either of two packages of PyPI that patch it.

turboquant-mlx-full 0.30.0    turboquant-serve --kv-bits N, or --kv-k-bits N --kv-v-bits N
mlx-turboquant 0.0.2          turboquant serve --kv-bits N, for models whose layers are all full attention

`--tq-bits N`, as matrix files have it, is the `--kv-bits N` of both. Where the patch doesn't reach the server, it
runs on with its usual cache and says nothing, so an entry without the line that names its bits is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.mlx_lm import MlxLm
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import Launch
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry

SERVE, WITH_SUBCOMMAND = "turboquant-serve", "turboquant"
PACKAGES = ("turboquant-mlx-full", "mlx-turboquant")
FIX = "in an environment of its own: pip install turboquant-mlx-full"
USE_SERVE = f"pip install turboquant-mlx-full, server_binary: {SERVE}"
BITS = ("--tq-bits", "--kv-bits")
KEY_BITS, VALUE_BITS = ("--kv-k-bits",), ("--kv-v-bits",)
NOT_WHOLE = """for half bits: turboquant-serve with [--kv-k-bits, "4", --kv-v-bits, "3"], or \
backend mlx-vlm with [--kv-bits, "3.5", --kv-quant-scheme, turboquant]"""

_SAID = re.compile(r"^\[turboquant(?:-serve)?\] .*TurboQuant KV cache\W+(\w.*)$", re.MULTILINE)
_LEFT_OUT = re.compile(r"^.*left at full precision.*$", re.MULTILINE)


class MlxLmTurboQuant(MlxLm):
    """`turboquant-serve` or else `turboquant`, beside this Python, on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "mlx-lm-turboquant"
    one_at_a_time: ClassVar[str] = "mlx-lm makes no batch of such caches"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        try:
            program = find_program(SERVE, entry.server_binary, fix=FIX)
        except Unavailable as missing:
            with suppress(Unavailable):
                return (find_program(WITH_SUBCOMMAND, entry.server_binary, fix=FIX), "serve")
            raise missing
        return (program, "serve") if Path(program).name == WITH_SUBCOMMAND else (program,)

    def check(self, entry: MatrixEntry) -> None:
        wanted = wanted_bits(entry)
        super().check(entry)
        if not self.binary(entry)[1:]:
            return
        if len(wanted) == 2:
            raise Unavailable(f"{WITH_SUBCOMMAND} has one width for keys and values", fix=USE_SERVE)
        if other := other_layers(self.model(entry)):
            # It gives each layer the same cache, and then closes every request's connection without an answer.
            raise Unavailable(f"{WITH_SUBCOMMAND} can't serve a model with {', '.join(other)}", fix=USE_SERVE)

    def extra_arguments(self, entry: MatrixEntry) -> Sequence[str]:
        return [re.sub(r"^--tq-bits(?==|$)", "--kv-bits", word) for word in entry.extra_args]

    def environment(self) -> Mapping[str, str]:
        # Its proof is a line on standard output, which Python keeps to itself when that is a file.
        return {**super().environment(), "PYTHONUNBUFFERED": "1"}

    def version(self, entry: MatrixEntry) -> str | None:
        program = self.binary(entry)[0]
        for package in PACKAGES:
            found = installed_version(program, package)
            if found is not None:
                return f"{package} {found} (mlx-lm {installed_version(program, 'mlx-lm')})"
        return None

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        wanted = wanted_bits(entry)
        shown = " and ".join(wanted)
        said = _SAID.search(output)
        if said is None:
            raise ServerStartError(f"no line of the server says that its cache is TurboQuant's, of {shown} bits")
        if told_bits(said.group(1)) != wanted:
            raise ServerStartError(f"asked for a cache of {shown} bits, but the server says: {said.group(0)}")
        if left := _LEFT_OUT.search(output):
            raise ServerStartError(f"the cache is only in part TurboQuant's: {left.group(0)}")


def wanted_bits(entry: MatrixEntry) -> tuple[str, ...]:
    """What `extra_args` ask for: one width, or those of keys and of values. Unavailable where they ask for none."""
    both = value_of(entry.extra_args, BITS)
    found = (value_of(entry.extra_args, KEY_BITS), value_of(entry.extra_args, VALUE_BITS))
    widths = [both] if both else [width for width in found if width]
    if not widths:
        raise Unavailable("extra_args name no width of the cache", fix="extra_args: [--tq-bits, '4']")
    if not all(width.isdecimal() for width in widths):
        raise Unavailable(f"no TurboQuant server of mlx-lm takes {' and '.join(widths)} bits", fix=NOT_WHOLE)
    return tuple(widths)


def other_layers(folder: Path) -> list[str]:
    """The kinds of layers in a checkpoint's configuration that are no full attention."""
    config = models.read_config(folder)
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    kinds = {str(kind) for part in parts for kind in part.get("layer_types") or ()}
    if any(part.get("full_attention_interval") for part in parts):
        kinds.add("linear_attention")
    return sorted(kinds - {"full_attention"})


def told_bits(text: str) -> tuple[str, ...]:
    """The widths in the server's own line: `bits=4, …`, `K=V=4-bit, …` or `K=8-bit, V=3-bit, …`."""
    return tuple(re.findall(r"\b(?:bits|K=V|K|V)=(\d+)", text))
