"""The backends that a matrix entry can name, in one explicit table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_llmbench.backends.base import Backend, Report, Target
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings

PLANNED = (
    "litert-lm",
    "diffusion-cli",
)
"""Known by name, so that matrix files with them are read and listed; not built yet."""


class Planned(Backend):
    """A backend that this version knows only by name."""

    def __init__(self, name: str) -> None:
        self.planned = name

    def check(self, entry: MatrixEntry) -> None:
        raise Unavailable(
            f"this version of pytest-llmbench can't run {self.planned} yet",
            fix="use backend mlx-lm, llama-server or engine, or register your own (pytest_llmbench_register_backends)",
        )

    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> AbstractContextManager[Target]:
        self.check(entry)
        raise AssertionError("check always raises")


def builtin_backends() -> Mapping[str, Backend]:
    """A fresh table, by name; the plugin adds what its hook is given."""
    from pytest_llmbench.backends.dflash import DFlash
    from pytest_llmbench.backends.docker_model_runner import DockerModelRunner
    from pytest_llmbench.backends.engine import EngineBackend
    from pytest_llmbench.backends.llama_server import LlamaServer
    from pytest_llmbench.backends.lm_studio import LmStudio
    from pytest_llmbench.backends.mlx_lm import MlxLm
    from pytest_llmbench.backends.mlx_lm_turboquant import MlxLmTurboQuant
    from pytest_llmbench.backends.mlx_vlm import MlxVlm
    from pytest_llmbench.backends.ollama import Ollama
    from pytest_llmbench.backends.omlx import Omlx
    from pytest_llmbench.backends.openai import OpenAi
    from pytest_llmbench.backends.unsloth_studio import UnslothStudio
    from pytest_llmbench.backends.vllm_mlx import VllmMlx

    built: list[Backend] = [
        MlxLm(),
        LlamaServer(),
        EngineBackend(),
        MlxLmTurboQuant(),
        DFlash(),
        UnslothStudio(),
        MlxVlm(),
        VllmMlx(),
        Omlx(),
        Ollama(),
        LmStudio(),
        DockerModelRunner(),
        OpenAi(),
    ]
    return {b.name: b for b in built} | {name: Planned(name) for name in PLANNED}
