"""What a backend is: something that opens a matrix entry and gives a target to measure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pytest_llmbench.chat import Reply
from pytest_llmbench.errors import Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemoryPeak
from pytest_llmbench.prompts import GREETING, Prompt, Tokenizer
from pytest_llmbench.sample import Sample

Report = Callable[[str], None]
"""Takes a line that says what is being done."""

OF_A_PROCESS = ("extra_args", "env", "server_binary")
"""What an entry says to a process that is started for it."""

ONE_STREAM = "concurrency: [1] for this entry"

FIRST = Prompt(name="first", messages=(GREETING,), tokens=None, exact=False, shared_tokens=0)
"""What a model is asked first, to see it loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """How a target came up, for the record. No secret is in it."""

    backend: str
    version: str | None
    model: str
    load_s: float | None
    command: str | None = None
    base_url: str | None = None
    pid: int | None = None
    log_path: Path | None = None
    fingerprint: str | None = None


class Target(Protocol):
    """A loaded model that answers prompts; an HTTP server and an in-process engine look the same from here."""

    @property
    def info(self) -> TargetInfo: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        """One request. `cached`: the prompt's repetition, which a prefix cache may answer.

        RequestError, ServerCrashed or ServerTimeout when no whole answer comes.
        """

    def reset_peak_memory(self) -> None:
        """Start a new window for `peak_memory`."""

    def peak_memory(self) -> MemoryPeak:
        """The peak of the serving processes since the window began."""


@runtime_checkable
class ServesMany(Protocol):
    """A target that can be sent several requests at once."""

    def stream_many(
        self, prompts: Sequence[Prompt], *, max_tokens: int, temperature: float, fixed_length: bool = True
    ) -> tuple[Sample, ...]:
        """One request for each prompt, all sent at the same moment, each sample with its `sent_ns`, in their order.

        Errors as those of `Target.stream`, once no request is underway any more.
        """


@runtime_checkable
class TakesTools(Protocol):
    """A target that passes the description of tools on to its model."""

    def call_tools(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]], *, max_tokens: int, temperature: float
    ) -> Reply:
        """One answer to a prompt with `tools`, in OpenAI's form. Errors as those of `Target.stream`.

        Unavailable where this server has no way to pass tools on.
        """


class Backend(ABC):
    """One kind of server or engine. Stateless: what is open lives in the `Target`."""

    name: ClassVar[str]
    one_at_a_time: ClassVar[str] = ""
    """Why several requests at once would only wait for each other; "" where they are answered together."""

    def check_streams(self, entry: MatrixEntry, streams: int) -> None:
        """Return if `streams` requests at once would be answered together; raise Unavailable with the reason if not."""
        if streams > 1 and self.one_at_a_time:
            raise Unavailable(f"{self.name} answers one request at a time: {self.one_at_a_time}", fix=ONE_STREAM)

    @abstractmethod
    def check(self, entry: MatrixEntry) -> None:
        """Return if `entry` could be opened on this machine; raise Unavailable with the fix if not. Starts nothing."""

    @abstractmethod
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> AbstractContextManager[Target]:
        """Start what is needed, wait until it answers from the expected model, and stop it at the end."""


def refuse_fields(entry: MatrixEntry, fields: Iterable[str], *, who: str) -> None:
    """Unavailable where the entry has one of `fields`, which `who` could give to no process."""
    for field in fields:
        if getattr(entry, field):
            raise Unavailable(f"{who} starts no process that could get {field}", fix=f"take out {field}")


def check_each(*checks: Callable[[], object]) -> None:
    """Run all `checks`: one Unavailable tells everything that they miss, and the fixes in their order."""
    missing = []
    for check in checks:
        try:
            check()
        except Unavailable as error:
            missing.append(error)
    if missing:
        fixes = ", then ".join(error.fix for error in missing if error.fix)
        raise Unavailable(", and ".join(error.reason for error in missing), fix=fixes) from missing[0]


def log_path(entry: MatrixEntry, log_dir: Path) -> Path:
    """Where the output of the entry's process goes."""
    return log_dir / f"{entry.path.stem}.{entry.id}.log"


def load_seconds(begun_ns: int, answered_ns: int, second: Reply | Sample) -> float:
    """From the start of a load to a first answer's end, less what a `second` one takes to its first token.

    The first one may have waited for the load itself.
    """
    first_ns = second.deltas[0].at_ns if second.deltas else second.end_ns
    return max(0.0, (answered_ns - begun_ns - first_ns) / 1e9)
