"""mlx-lm's own server, `mlx_lm.server` (facts: mlx-lm 0.32.2).

It says it is healthy before it has a model, has no switch to keep its prompt cache from answering (each prompt is
new), none to go on after the end token, and gives no timings of its own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import tokenizer
from pytest_llmbench.backends.server import HOST, ServerBackend
from pytest_llmbench.chat import ChatClient
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt, Tokenizer


class MlxLm(ServerBackend):
    """`mlx_lm.server` beside this Python, on PATH, or where `server_binary` says."""

    name: ClassVar[str] = "mlx-lm"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("mlx_lm.server", entry.server_binary, fix="pip install 'pytest-llmbench[mlx]'"),)

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        return ("--model", str(model), "--host", HOST, "--port", str(port))

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        return {} if prompt.think is None else {"chat_template_kwargs": {"enable_thinking": prompt.think}}

    def tokenizer(self, model: Path, client: ChatClient) -> Tokenizer | None:
        return tokenizer.load(model)


def find_program(name: str, given: str | None, *, fix: str) -> str:
    """`given` if it is a program, else `name` beside this Python or on PATH; Unavailable with `fix`."""
    if given is not None:
        path = shutil.which(Path(given).expanduser())
        if path is None:
            raise Unavailable(
                f"server_binary {given} is no program", fix=f"build it, or correct server_binary {given!r}"
            )
        return path
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.is_file() else shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not installed", fix=fix)
    return path
