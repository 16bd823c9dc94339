"""The two sides of a parity run while a section is measured: started when needed, and again after a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from pytest_llmbench.errors import SideError
from pytest_llmbench.parity_same import SameSides, fit_together
from pytest_llmbench.sides.messages import Hello
from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import SideSpec

Who = Literal["candidate", "baseline"]
BOTH: Final[tuple[Who, Who]] = ("candidate", "baseline")
T = TypeVar("T")


class Pair:
    """Candidate and baseline. Leaving the block ends their processes.

    Where both together wouldn't fit into memory, only one of them is there at a time. `hellos` keeps what each said of
    itself; `same` refuses one that says otherwise than before.
    """

    def __init__(
        self,
        specs: Mapping[Who, SideSpec],
        checkpoint: Path,
        *,
        log_dir: Path,
        timeout_s: float,
        same: SameSides,
    ) -> None:
        self.hellos: dict[Who, Hello] = {}
        self.checkpoint = checkpoint
        self._specs, self._log_dir, self._timeout_s, self._same = specs, log_dir, timeout_s, same
        self._open: dict[Who, tuple[SideProcess, ExitStack, int]] = {}
        self._hopeless: dict[Who, SideError] = {}
        self._starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for who in list(self._open):
            self._close(who)

    def generation(self, who: Who) -> int:
        """A number that changes whenever the side is started anew: what was warm then is cold."""
        self.loaded(who)
        return self._open[who][2]

    def loaded(self, who: Who) -> SideProcess:
        """The side's process with the checkpoint loaded. SideError; one that can't be started isn't tried again."""
        if who in self._hopeless:
            raise self._hopeless[who]
        if who not in self._open:
            try:
                self.fresh(who).load(self.checkpoint)
            except SideError as error:
                self._close(who)
                self._hopeless[who] = error
                raise
        return self._open[who][0]

    def fresh(self, who: Who) -> SideProcess:
        """A new process that has loaded nothing yet, in place of the one before. MeasurementError for another side."""
        self._close(who)
        self._make_room(who)
        self._starts += 1
        log = self._log_dir / f"{who}-{self._starts}.log"
        stack = ExitStack()
        side = stack.enter_context(SideProcess(self._specs[who], log, timeout_s=self._timeout_s))
        self.hellos[who] = side.hello
        self._open[who] = (side, stack, self._starts)
        self._same.check(who, side.hello)
        self._make_room(who)  # it may be the first one to tell how much memory there is
        return side

    def ask(self, who: Who, what: Callable[[SideProcess], T]) -> T:
        """`what` of the loaded side. After a SideError the next call starts it anew, unless it only refused."""
        side = self.loaded(who)
        try:
            return what(side)
        except SideError as error:
            if error.kind != "refused" or error.refusal == "memory":
                self._close(who)
            raise

    def _make_room(self, who: Who) -> None:
        if not fit_together(self.checkpoint, self.hellos.values()):
            for other in set(BOTH) - {who}:
                self._close(other)

    def _close(self, who: Who) -> None:
        if who in self._open:
            self._open.pop(who)[1].close()
