"""Peak memory of a tree of processes while something is measured.

On macOS it is `phys_footprint` (Activity Monitor's "Memory": Metal buffers count, clean file pages don't). On Linux
it is PSS, in which a page that n processes share counts as 1/n in each, so that the sum over a tree is right;
RSS where PSS may not be read. A CUDA device's own memory is in neither.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pytest_llmbench.environment import swap_used_bytes

PHYS_FOOTPRINT = "phys_footprint"
PSS = "pss"
RSS = "rss"
# Walking the pages of a large model takes the kernel a while: the sampler may use this much of one core.
_DUTY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process. `high_water_bytes`: the most since it started, where the system keeps count of it."""

    current_bytes: int
    source: str
    high_water_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The peak of one window. `peak_bytes` is None where no process could be read.

    `source`: "phys_footprint", "pss", "rss", or "pss+rss" where some processes gave one and some the other;
    "" without any. `swap_delta_bytes`: change of the machine's used swap over the window, None where unknown.
    `mlx_peak_bytes`: the peak of MLX's buffers by its own count; None for what runs in another process.
    """

    peak_bytes: int | None
    source: str
    samples: int
    swap_delta_bytes: int | None
    mlx_peak_bytes: int | None = None


def process_memory(pid: int) -> ProcessMemory | None:
    """What `pid` uses now; None where it is gone or may not be read."""
    if sys.platform == "darwin":
        return _macos_memory(pid)
    return _linux_memory(pid)


def parse_pss(smaps_rollup: str) -> int | None:
    """Bytes of the `Pss:` line of /proc/PID/smaps_rollup (proc_pid_smaps(5)); None without one."""
    for line in smaps_rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


class MemorySampler:
    """Samples the sum over `pids()` every `interval_s` in a thread, while the block runs.

    Processes may come and go. Where one sample takes long the interval grows, so that sampling doesn't slow down
    what is measured.
    """

    def __init__(self, pids: Callable[[], Collection[int]], interval_s: float = 0.2) -> None:
        self._pids = pids
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._window = _Window()
        self._thread = threading.Thread(target=self._run, name="llmbench-memory", daemon=True)

    def __enter__(self) -> Self:
        self.reset()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def reset(self) -> None:
        """Start a new window, with a sample of its own."""
        with self._lock:
            self._window = _Window()
        self._sample()

    def peak(self) -> MemoryPeak:
        """The window's peak up to now, a last sample included while the block runs."""
        if not self._ended.is_set():
            self._sample()
        with self._lock:
            return self._window.peak()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._ended.wait(wait_s):
            started = time.monotonic()
            self._sample()
            wait_s = max(self._interval_s, (time.monotonic() - started) / _DUTY)

    def _sample(self) -> None:
        with self._lock:
            self._window.add((pid, process_memory(pid)) for pid in self._pids())


class _Window:
    """Running maxima between two resets."""

    def __init__(self) -> None:
        self._peak_bytes: int | None = None
        self._sources: set[str] = set()
        self._samples = 0
        self._high_water_before: dict[int, int] = {}
        self._swap_before = swap_used_bytes()
        self._swap_last = self._swap_before

    def add(self, readings: Iterable[tuple[int, ProcessMemory | None]]) -> None:
        read = [(pid, memory) for pid, memory in readings if memory is not None]
        self._swap_last = swap_used_bytes()
        if not read:
            return
        self._samples += 1
        self._sources.update(memory.source for _, memory in read)
        self._raise_to(sum(memory.current_bytes for _, memory in read))
        for pid, memory in read:
            self._see_high_water(pid, memory)

    def peak(self) -> MemoryPeak:
        known = self._swap_before is not None and self._swap_last is not None
        return MemoryPeak(
            peak_bytes=self._peak_bytes,
            source="+".join(sorted(self._sources)),
            samples=self._samples,
            swap_delta_bytes=self._swap_last - self._swap_before if known else None,  # type: ignore[operator]
        )

    def _see_high_water(self, pid: int, memory: ProcessMemory) -> None:
        """A process's own high-water mark that has risen in the window shows a peak between two samples."""
        if memory.high_water_bytes is None:
            return
        before = self._high_water_before.setdefault(pid, memory.high_water_bytes)
        if memory.high_water_bytes > before:
            self._raise_to(memory.high_water_bytes)

    def _raise_to(self, value: int) -> None:
        self._peak_bytes = max(value, self._peak_bytes or 0)


def _linux_memory(pid: int) -> ProcessMemory | None:
    # ProcessLookupError comes from reading: a process may end between open and read.
    with contextlib.suppress(OSError):
        pss = parse_pss(Path(f"/proc/{pid}/smaps_rollup").read_text())
        if pss is not None:
            return ProcessMemory(current_bytes=pss, source=PSS)
    return _resident_memory(pid)


def _macos_memory(pid: int) -> ProcessMemory | None:
    from pytest_llmbench.memory_macos import footprint

    try:
        found = footprint(pid)
    except OSError:
        return _resident_memory(pid)
    if found is None:
        return None
    return ProcessMemory(
        current_bytes=found.phys_footprint_bytes,
        source=PHYS_FOOTPRINT,
        high_water_bytes=found.lifetime_max_phys_footprint_bytes,
    )


def _resident_memory(pid: int) -> ProcessMemory | None:
    import psutil

    try:
        return ProcessMemory(current_bytes=psutil.Process(pid).memory_info().rss, source=RSS)
    except psutil.Error:
        return None
