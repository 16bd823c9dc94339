"""The backends that a matrix entry can name, in one explicit table."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.backends.base import Backend


def builtin_backends() -> Mapping[str, Backend]:
    """A fresh table, by name; the plugin adds what its hook is given."""
    from pytest_llmbench.backends.dflash import DFlash
    from pytest_llmbench.backends.diffusion_cli import DiffusionCli
    from pytest_llmbench.backends.docker_model_runner import DockerModelRunner
    from pytest_llmbench.backends.engine import EngineBackend
    from pytest_llmbench.backends.litert_lm import LiteRtLm
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
        LiteRtLm(),
        DiffusionCli(),
    ]
    return {b.name: b for b in built}
