"""Every error that the engine raises on purpose.

EngineError
├── CheckpointError   a file of the checkpoint doesn't fit (carries path and key)
├── InvalidRequest    a request that can't be served as it is
└── EngineClosed      the engine has been closed
"""

from __future__ import annotations

from pathlib import Path


class EngineError(Exception):
    """Root of the engine's errors."""


class CheckpointError(EngineError):
    """A checkpoint can't be loaded. `str()` reads `path: key problem`."""

    def __init__(self, problem: str, *, path: Path, key: str = "") -> None:
        super().__init__(f"{path}: {key} {problem}" if key else f"{path}: {problem}")
        self.path = path
        self.key = key


class InvalidRequest(EngineError):
    """A request can't be served as it is; the message says what to change."""


class EngineClosed(EngineError):
    """The engine was used after `close()`."""
