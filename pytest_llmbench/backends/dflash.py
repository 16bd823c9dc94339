"""dflash-mlx: block-diffusion drafts for speculative decoding (facts: dflash-mlx 0.1.8, on mlx-lm 0.31's server).

It answers to any model's name, so that only `/metrics` tells what it has loaded; there stand its own figures, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import reach
from pytest_llmbench.backends.base import check_each
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.mlx_lm import MlxLm
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import HOST, Launch
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.sample import ServerTimings

DRAFT = ("--draft-model", "--draft")
DISK_CACHE = ("--prefix-cache-l2", "--no-prefix-cache-l2")
SPECULATIVE = "dflash"


class DFlash(MlxLm):
    """`dflash serve` beside this Python, on PATH, or where `server_binary` says; `extra_args` name the draft."""

    name: ClassVar[str] = "dflash"
    one_at_a_time: ClassVar[str] = "a draft is for one sequence"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        # A newer mlx-lm than 0.31 has no SequenceStateMachine, which it imports.
        fix = "in an environment of its own: pip install dflash-mlx==0.1.8 mlx-lm==0.31.3"
        return (find_program("dflash", entry.server_binary, fix=fix), "serve")

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        words = ["--model", str(model), "--host", HOST, "--port", str(port)]
        # What an earlier server left on the disk would answer for this one.
        return words if set(DISK_CACHE) & set(entry.extra_args) else [*words, "--no-prefix-cache-l2"]

    def check(self, entry: MatrixEntry) -> None:
        check_each(partial(super().check, entry), lambda: self._draft(entry))

    def extra_arguments(self, entry: MatrixEntry) -> Sequence[str]:
        """With the draft's folder in the place of its name."""
        words, draft = list(entry.extra_args), str(self._draft(entry))
        at = next(i for i, word in enumerate(words) if word.partition("=")[0] in DRAFT)
        flag, equals, _ = words[at].partition("=")
        words[at : at + 1 + (not equals)] = [flag, draft]
        return words

    def version(self, entry: MatrixEntry) -> str | None:
        return installed_version(self.binary(entry)[0], "dflash-mlx")

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        found = reach.part(client.json("GET", "/metrics"), "server", kind=dict) or {}
        wanted = {"model": str(launch.model), "draft": str(self._draft(entry)), "mode": SPECULATIVE}
        for what, value in wanted.items():
            if found.get(what) != value:
                raise ServerStartError(f"dflash was to have the {what} {value!r}, but says {found.get(what)!r}")

    def ask_timings(self, reply: Reply, client: WatchedClient) -> ServerTimings:
        """Of its last request, which is this one: it answers one at a time, and counts before it ends the stream.

        It counts the whole of the last draft, which may have gone on behind the end token.
        """
        last = reach.part(client.json("GET", "/metrics"), "last_request", kind=dict) or {}
        if last.get("mode_used") != SPECULATIVE:
            raise RequestError(f"dflash answered without its draft: mode {last.get('mode_used')!r}", status=200)
        is_this = last.get("prompt_tokens") == reply.usage.get("prompt_tokens")
        return read_timings(last) if is_this else ServerTimings()

    def _draft(self, entry: MatrixEntry) -> Path:
        given = value_of(entry.extra_args, DRAFT)
        if not given:
            raise Unavailable("no draft model", fix="extra_args: [--draft-model, OWNER/NAME]")
        return models.find_folder(given, beside=entry.path, reader=self.name)


def read_timings(last: Mapping[str, Any]) -> ServerTimings:
    """From `last_request` of `/metrics`. Its acceptance rate is over the answer's tokens, not over those drafted."""
    generated, rate = last.get("generated_tokens"), last.get("acceptance_rate")
    return ServerTimings(
        prompt_tokens=last.get("prefill_tokens_physical"),
        prompt_s=last.get("prefill_s"),
        # What it restored from its cache counts in the "apparent" rate only.
        prefill_tok_s=last.get("prefill_tok_s_physical") or None,
        decode_tokens=generated,
        decode_s=last.get("decode_s"),
        decode_tok_s=last.get("decode_tok_s"),
        accepted_tokens=None if generated is None or rate is None else round(rate * generated),
        tokens_per_step=last.get("tokens_per_cycle"),
    )
