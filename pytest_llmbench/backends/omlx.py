"""oMLX, a server for Macs, and flyto-mlx, which has it as a Python package (facts: flyto-mlx 0.7.0).

It serves the folders of a folder by their names, loads one at the first request for it, and keeps its settings and its
prefix cache on the disk: each server gets a folder of its own, with a link to the one model, which goes with it. It
writes the cache behind its answers, so that a repetition at once may find a part. It always stops at the end token,
which it doesn't count.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import reach
from pytest_llmbench.backends.base import Report
from pytest_llmbench.backends.mlx_lm import MlxLm
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import HOST, Launch, ServerTarget
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.sample import ServerTimings

PACKAGES = ("omlx", "flyto-mlx")
MODELS, STATE, CACHE, NO_CACHE = "--model-dir", "--base-path", "--paged-ssd-cache-dir", "--no-cache"
OWNER, HOMES = "mlx-community", ("~/.omlx/models", "~/.fmlx/models", "~/models")
ON_A_MAC = "brew install jundot/omlx/omlx"
ELSEWHERE = "in an environment of its own, as ci/servers/omlx does: pip install 'mlx[cpu]' flyto-mlx"


class Omlx(MlxLm):
    """`omlx serve` on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "omlx"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        try:
            return (find_program("omlx", entry.server_binary, fix=ON_A_MAC), "serve")
        except Unavailable as missing:
            if sys.platform == "darwin" or entry.server_binary is not None:
                raise
            raise Unavailable(f"oMLX is for macOS, and {missing.reason}", fix=ELSEWHERE) from missing

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        return ("--host", HOST, "--port", str(port))

    def model(self, entry: MatrixEntry) -> Path:
        """A name without an owner is a folder among oMLX's own models, or a model of mlx-community."""
        if "/" in entry.model_id:
            return models.find_folder(entry.model_id, beside=entry.path, reader=self.name)
        own = next(_own_models(entry.model_id), None)
        return models.find(f"{OWNER}/{entry.model_id}", beside=entry.path) if own is None else models.check_whole(own)

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        return entry.model_id.rstrip("/").rpartition("/")[2]

    def version(self, entry: MatrixEntry) -> str | None:
        told = {name: installed_version(self.binary(entry)[0], name) for name in PACKAGES}
        return next((f"{name} {version}" for name, version in told.items() if version is not None), None)

    @contextmanager
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> Iterator[ServerTarget]:
        with TemporaryDirectory(prefix="llmbench-omlx-", ignore_cleanup_errors=True) as folder:
            own = self._own_folders(entry, Path(folder))
            with super().open(
                replace(entry, extra_args=(*own, *entry.extra_args)), settings, log_dir=log_dir, report=report
            ) as target:
                yield target

    def _own_folders(self, entry: MatrixEntry, folder: Path) -> Sequence[str]:
        """Words for the folders that the entry doesn't name itself."""
        model = self.model(entry)
        (served := folder / "models").mkdir()
        (served / self.model_name(entry, model)).symlink_to(model, target_is_directory=True)
        words = {MODELS: served, STATE: folder / "state", CACHE: folder / "cache"}
        given = {CACHE if word == NO_CACHE else word.partition("=")[0] for word in entry.extra_args}
        return [word for flag, path in words.items() if flag not in given for word in (flag, str(path))]

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        told = reach.rows(client.json("GET", "/v1/models/status"), "models")
        loaded = {str(model.get("id")): str(model.get("model_path")) for model in told if model.get("loaded")}
        if Path(loaded.get(launch.model_name, "")).resolve() != launch.model.resolve():
            raise ServerStartError(f"{launch.model} was to be loaded, but it is {loaded or 'none'}")

    def timings(self, reply: Reply) -> ServerTimings:
        return read_timings(reply.usage)


def read_timings(usage: Mapping[str, Any]) -> ServerTimings:
    """From an answer's usage. Its seconds have two decimals, so that ours are of its rates, which are per second."""
    prompt, answer = usage.get("prompt_tokens"), usage.get("completion_tokens")
    prompt_tok_s, decode_tok_s = usage.get("prompt_tokens_per_second"), usage.get("generation_tokens_per_second")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    prompt_s = prompt / prompt_tok_s if prompt and prompt_tok_s else None
    return ServerTimings(
        prompt_tokens=None if prompt is None else prompt - cached,
        prompt_s=prompt_s,
        # Its own rate counts what the cache answered, too.
        prefill_tok_s=(prompt - cached) / prompt_s if prompt and prompt_s else None,
        decode_tokens=answer,
        decode_s=answer / decode_tok_s if answer and decode_tok_s else None,
        decode_tok_s=decode_tok_s,
    )


def _own_models(name: str) -> Iterator[Path]:
    """Folders of that name where oMLX looks for models, also one level deeper, where they are sorted by owner."""
    roots = [Path(home).expanduser() for home in (os.environ.get("OMLX_MODEL_DIR") or HOMES[0], *HOMES)]
    found = (path for root in roots for path in (root / name, *sorted(root.glob(f"*/{name}"))))
    return (path for path in found if (path / "config.json").is_file())
