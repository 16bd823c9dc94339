"""An in-process LLM inference engine on MLX: see docs/engine.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbench_engine.engine import Engine as Engine
    from llmbench_engine.errors import CheckpointError as CheckpointError
    from llmbench_engine.errors import EngineClosed as EngineClosed
    from llmbench_engine.errors import EngineError as EngineError
    from llmbench_engine.errors import InvalidRequest as InvalidRequest
    from llmbench_engine.parameters import Sampling as Sampling
    from llmbench_engine.sequence import Request as Request
    from llmbench_engine.sequence import Token as Token

_HOMES = {
    "CheckpointError": "errors",
    "Engine": "engine",
    "EngineClosed": "errors",
    "EngineError": "errors",
    "InvalidRequest": "errors",
    "Request": "sequence",
    "Sampling": "parameters",
    "Token": "sequence",
}
__all__ = ["CheckpointError", "Engine", "EngineClosed", "EngineError", "InvalidRequest", "Request", "Sampling", "Token"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are used: MLX isn't needed to read a configuration."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
