"""LiteRT-LM's own server, `litert-lm serve` (facts: litert-lm 0.18.1).

It makes its engine at the first request and serves one request after another, whoever asks. It ignores `max_tokens`
(its name for that is `max_completion_tokens`), has no prefix cache, no switch to go on after the end token, no
timings, and sends no thinking, though it counts it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends.programs import find_program, installed_version
from pytest_llmbench.backends.server import HOST, Launch, ServerBackend
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.errors import ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.prompts import Prompt

MAGIC = b"LITERTLM"
PROCESSORS = ("", "cpu", "gpu", "npu")
HOME = "LITERT_LM_DIR"
NO_GPU = re.compile(r"Failed to initialize WebGPU environment|Failed to get or create delegate")
"""What its log says where it found no GPU; older releases then went on with the CPU."""


class LiteRtLm(ServerBackend):
    """`litert-lm` on PATH, or where `server_binary` says.

    `model_id` is, as the server takes it, `MODEL[,PROCESSOR[,CONTEXT TOKENS]]`; MODEL is the name under which
    `litert-lm import` has put a model away, or a .litertlm file.
    """

    name: ClassVar[str] = "litert-lm"
    one_at_a_time: ClassVar[str] = "its HTTP server has one thread"
    length_field: ClassVar[str] = "max_completion_tokens"

    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        return (find_program("litert-lm", entry.server_binary, fix="pip install litert-lm"), "serve")

    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        return ("--host", HOST, "--port", str(port))

    def model(self, entry: MatrixEntry) -> Path:
        named, _ = split_model_id(entry.model_id)
        imported = _home(entry) / "models" / named.replace("/", "--") / "model.litertlm"
        fetch = f"litert-lm import --from-huggingface-repo OWNER/NAME FILE.litertlm {named}"
        if imported.is_file():
            return _check_file(imported, fix=fetch)
        if not named.endswith(".litertlm"):
            raise Unavailable(f"litert-lm has no model {named}", fix=fetch)
        return _check_file(models.find(named, beside=entry.path), fix="fetch it again")

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        named, rest = split_model_id(entry.model_id)
        if not named.endswith(".litertlm"):
            return entry.model_id
        if "," in str(model):
            raise Unavailable(f"litert-lm takes the comma in {model} for its own", fix="move the file")
        return f"{model}{rest}"

    def version(self, entry: MatrixEntry) -> str | None:
        return installed_version(self.binary(entry)[0], "litert-lm")

    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        return {} if prompt.think is None else {"reasoning_effort": "medium" if prompt.think else "none"}

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        _, rest = split_model_id(entry.model_id)
        found = NO_GPU.search(output)
        if found is not None and rest.startswith(",gpu"):
            raise ServerStartError(f"a GPU was asked for, but the server answers without one: {found.group()}")


def split_model_id(model_id: str) -> tuple[str, str]:
    """`("gemma4-e2b", ",gpu")` from `gemma4-e2b,gpu`; Unavailable for a processor that there isn't."""
    named, comma, rest = model_id.partition(",")
    processor, _, tokens = rest.partition(",")
    if processor not in PROCESSORS or not (tokens or "1").isdecimal():
        raise Unavailable(f"model_id {model_id!r} is no MODEL[,cpu|gpu|npu[,TOKENS]]", fix="correct model_id")
    return named, comma + rest


def _home(entry: MatrixEntry) -> Path:
    """Where litert-lm keeps its models; the entry's own environment comes first, as it does for the server."""
    said = dict(entry.env).get(HOME) or os.environ.get(HOME)
    return Path(said) if said else Path("~/.litert-lm").expanduser()


def _check_file(path: Path, *, fix: str) -> Path:
    """`path` again, if it is a model of this kind."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Unavailable(f"{path} is no .litertlm file", fix=fix)
    return path
