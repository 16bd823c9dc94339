"""mlx-lm's own server, `mlx_lm.server` (facts: mlx-lm 0.32.2).

It says it is healthy before it has a model, has no switch to keep its prompt cache from answering (each prompt is
new), none to go on after the end token, and gives no timings of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models, tokenizer
from pytest_llmbench.backends import answers
from pytest_llmbench.backends.base import ONE_STREAM
from pytest_llmbench.backends.flags import value_of
from pytest_llmbench.backends.programs import find_program, version_beside
from pytest_llmbench.backends.server import HOST, ServerBackend
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt, Tokenizer


class MlxLm(ServerBackend):
    """`mlx_lm.server` beside this Python, on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "mlx-lm"
    unbatched_with: ClassVar[tuple[str, ...]] = ("--kv-bits", "--draft-model")
    """Flags with which requests wait for each other."""

    def check_streams(self, entry: MatrixEntry, streams: int) -> None:
        super().check_streams(entry, streams)
        alone = [flag for flag in self.unbatched_with if value_of(entry.extra_args, (flag,)) is not None]
        if streams > 1 and alone:
            raise Unavailable(f"with {alone[0]} {self.name} answers one request at a time", fix=ONE_STREAM)

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("mlx_lm.server", entry.server_binary, fix="pip install 'pytest-llmbench[mlx]'"),)

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        return ("--model", str(model), "--host", HOST, "--port", str(port))

    def model(self, entry: MatrixEntry) -> Path:
        return models.find_folder(entry.model_id, beside=entry.path, reader=self.name)

    def version(self, entry: MatrixEntry) -> str | None:
        return version_beside(self.binary(entry)[0], "mlx-lm")

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        return answers.thinking_kwargs(think=prompt.think)

    def tokenizer(self, model: Path, client: WatchedClient) -> Tokenizer | None:
        return tokenizer.load(model)
