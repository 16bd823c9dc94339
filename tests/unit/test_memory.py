"""Memory of real processes, and the layout of the macOS structure."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_helpers import python, wait_gone

from processes import wait_until
from pytest_llmbench import memory
from pytest_llmbench.memory import MemorySampler, ProcessMemory, parse_pss, process_memory
from pytest_llmbench.memory_macos import RusageInfoV4, footprint

MIB = 1024**2
# Allocates argv[1] MiB for each line that comes, frees them for the next.
HOLD = """
import sys
for line in sys.stdin:
    held = bytearray(int(line) * 1024**2)
    held[::4096] = b"x" * len(held[::4096])
    print("done", flush=True)
"""


class Holder:
    """A child that holds as many MiB as it is told."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(python(HOLD), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.child.pid

    def hold(self, mib: int) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(b"%d\n" % mib)
        self.child.stdin.flush()
        self.child.stdout.readline()

    def end(self) -> None:
        self.child.communicate()


@pytest.fixture
def holders() -> Iterator[tuple[Holder, Holder]]:
    pair = (Holder(), Holder())
    yield pair
    for holder in pair:
        holder.child.kill()
        holder.end()


def test_the_peak_is_that_of_the_sum_over_the_processes(holders: tuple[Holder, Holder]) -> None:
    first, second = holders
    with MemorySampler(lambda: [first.pid, second.pid], interval_s=0.01) as sampler:
        first.hold(64)
        second.hold(32)
        both = sampler.peak().peak_bytes
        first.hold(1)
        second.hold(1)
    peak = sampler.peak()
    assert both is not None
    assert both >= 96 * MIB
    assert peak.peak_bytes is not None
    # While one list of bytes is replaced, old and new may both be there.
    assert both <= peak.peak_bytes < 96 * MIB + 64 * MIB
    assert peak.samples >= 3


def test_the_thread_sees_a_peak_that_no_call_asked_for(holders: tuple[Holder, Holder]) -> None:
    first, _ = holders
    with MemorySampler(lambda: [first.pid], interval_s=0.001) as sampler:
        first.hold(48)
        wait_until(lambda: (sampler._window.peak().peak_bytes or 0) >= 48 * MIB, "the thread has sampled")


def test_a_reset_forgets_the_peak(holders: tuple[Holder, Holder]) -> None:
    first, _ = holders
    with MemorySampler(lambda: [first.pid], interval_s=30) as sampler:
        first.hold(64)
        before = sampler.peak()
        first.hold(1)
        sampler.reset()
        after = sampler.peak()
    assert before.peak_bytes is not None
    assert after.peak_bytes is not None
    assert before.peak_bytes - after.peak_bytes >= 50 * MIB
    assert after.samples == 2


def test_processes_may_vanish_while_they_are_sampled(holders: tuple[Holder, Holder]) -> None:
    first, second = holders
    with MemorySampler(lambda: [first.pid, second.pid], interval_s=0.001) as sampler:
        first.end()
        second.hold(32)
        peak = sampler.peak()
    assert peak.peak_bytes is not None
    assert peak.peak_bytes >= 32 * MIB


def test_without_a_readable_process_there_is_no_peak(holders: tuple[Holder, Holder]) -> None:
    first, _ = holders
    first.end()
    wait_gone(first.pid)
    with MemorySampler(lambda: [first.pid], interval_s=0.01) as sampler:
        pass
    peak = sampler.peak()
    assert (peak.peak_bytes, peak.source, peak.samples) == (None, "", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is Linux's")
def test_the_source_on_linux_is_pss_and_pages_shared_by_two_count_half() -> None:
    program = (
        "import mmap, os, sys\n"
        "m = mmap.mmap(-1, 64 * 1024**2); m[:] = b'x' * len(m)\n"
        "pid = os.fork()\n"
        "s = sum(m[::4096])\n"
        "print(os.getpid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(python(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pids = [int(child.stdout.readline()) for _ in range(2)]
        with MemorySampler(lambda: pids) as sampler:
            pass
        child.communicate()
    peak = sampler.peak()
    assert peak.source == "pss"
    assert peak.peak_bytes is not None
    assert 64 * MIB <= peak.peak_bytes < 100 * MIB


def test_where_pss_may_not_be_read_rss_is_taken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(memory.Path, "read_text", refused)
    found = process_memory(os.getpid())
    assert found is not None
    assert found.source == "rss"
    assert found.current_bytes > MIB


def test_a_high_water_mark_that_rises_in_the_window_is_a_peak_between_samples() -> None:
    window = memory._Window()
    for current, high in ((10, 900), (20, 900), (15, 1000)):
        window.add([(1, ProcessMemory(current_bytes=current, source="phys_footprint", high_water_bytes=high))])
        seen = window.peak().peak_bytes
        assert seen == (1000 if high == 1000 else current)


def test_swap_change_is_known_where_swap_is() -> None:
    with MemorySampler(lambda: [os.getpid()]) as sampler:
        pass
    assert isinstance(sampler.peak().swap_delta_bytes, int)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("555 [rollup]\nRss:    1884 kB\nPss:     385 kB\nPss_Dirty:  68 kB\nSwapPss: 7 kB\n", 385 * 1024),
        ("", None),
        ("555 [rollup]\nRss:    1884 kB\n", None),
    ],
)
def test_pss_is_its_own_line_in_kib(text: str, expected: int | None) -> None:
    assert parse_pss(text) == expected


def test_the_macos_structure_has_the_published_size_and_offsets() -> None:
    # 16 bytes of UUID, then 10 counters of v0, 6 of v1, 2 of v2, 9 of v3 and 8 of v4, in the SDK's sys/resource.h.
    assert ctypes.sizeof(RusageInfoV4) == 16 + 8 * (10 + 6 + 2 + 9 + 8) == 296
    assert RusageInfoV4.ri_user_time.offset == 16
    assert RusageInfoV4.ri_resident_size.offset == 64
    assert RusageInfoV4.ri_phys_footprint.offset == 72
    assert RusageInfoV4.ri_proc_exit_abstime.offset == 88
    assert RusageInfoV4.ri_child_elapsed_abstime.offset == 136
    assert RusageInfoV4.ri_diskio_byteswritten.offset == 152
    assert RusageInfoV4.ri_serviced_system_time.offset == 224
    assert RusageInfoV4.ri_lifetime_max_phys_footprint.offset == 240
    assert RusageInfoV4.ri_runnable_time.offset == 288


@pytest.mark.skipif(sys.platform != "darwin", reason="needs macOS")
def test_the_footprint_of_this_process_is_plausible() -> None:
    found = footprint(os.getpid())
    assert found is not None
    assert MIB < found.phys_footprint_bytes <= found.lifetime_max_phys_footprint_bytes
