"""Every error that this package raises on purpose.

    BenchError
    ├── UsageError           an option, a file or a command is wrong
    │   ├── MatrixError      … a matrix file (carries path and line)
    │   └── RecordError      … a saved run or parity record
    ├── Unavailable          the machine lacks something (carries the fix)
    ├── ServerError          a server process
    │   ├── ServerStartError     exited or never got ready
    │   ├── ServerTimeout        not ready, or silent, for too long
    │   ├── ServerCrashed        exited while it served
    │   └── PortInUse            somebody else listens there
    ├── RequestError         a server answered with an error or broke the protocol
    ├── SideError            a side of a parity run failed (carries a one-line reason for the record)
    └── MeasurementError     answers came, but no valid sample can be made of them

A message says what happened, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

UNWRITTEN = 6
"""The exit status of pytest where an artefact couldn't be written, and nothing worse happened. Its own end at 5."""

FAULTS_SHOWN = 20
"""Of one file, in one message."""


class BenchError(Exception):
    """Root of this package's errors."""


class UsageError(BenchError):
    """An option, a file or a command line is wrong."""


class MatrixError(UsageError):
    """A matrix file or a parity plan is wrong. `str()` has a line for each of its `faults`, `path:line:` first."""

    faults: tuple[str, ...]

    def __init__(self, message: str, *, path: Path, line: int, others: Iterable[MatrixError] = ()) -> None:
        faults = [f"{path}:{line}: {message}", *(fault for other in others for fault in other.faults)]
        self.faults = tuple(dict.fromkeys(faults))
        unsaid = len(self.faults) - FAULTS_SHOWN
        super().__init__("\n".join([*self.faults[:FAULTS_SHOWN], *([f"… and {unsaid} more"] if unsaid > 0 else [])]))
        self.message = message
        self.path = path
        self.line = line


class RecordError(UsageError):
    """A saved run or parity record can't be read."""


class Unavailable(BenchError):
    """Something isn't on this machine.

    `fix` is what to type to get it ("" where nothing can be typed).
    """

    def __init__(self, reason: str, *, fix: str = "") -> None:
        super().__init__(f"{reason}; fix: {fix}" if fix else reason)
        self.reason = reason
        self.fix = fix


class ServerError(BenchError):
    """A server process failed."""


class ServerStartError(ServerError):
    """The server exited, or answered wrongly, before it was ready; or the engine couldn't load its model."""


class ServerTimeout(ServerError):
    """The server wasn't ready, or said nothing, for too long."""


class ServerCrashed(ServerError):
    """The server exited while it was in use."""


class PortInUse(ServerError):
    """The port that a server was told to use belongs to another process."""


class RequestError(BenchError):
    """The server answered a request with an error, or broke its protocol.

    `status` is the HTTP status where one came; None where the connection or the stream failed.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class MeasurementError(BenchError):
    """Answers came, but no valid measurement can be made of them."""


class SideError(BenchError):
    """A side of a parity run failed.

    `reason` is one line, for the record. `kind`: "start", "crash", "hang", "garbage" (the protocol was broken),
    "refused", "version", "stamps" or "tokens". `refusal` is what a side that refused said: "checkpoint", "memory",
    "unsupported" or "failed"; "" else. `detail` is shown below the reason: which side, which command, its last output.
    """

    def __init__(self, reason: str, *, kind: str, refusal: str = "", detail: str = "") -> None:
        super().__init__(f"{reason}\n{detail}" if detail else reason)
        self.reason = reason
        self.kind = kind
        self.refusal = refusal
