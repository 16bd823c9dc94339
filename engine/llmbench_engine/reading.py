"""How a checkpoint's tensors come into memory, layer after layer, while the model is built.

Until a fused weight is there, its parts lie beside it. What is read last, the embeddings, leaves room for them: where
it is as large as the parts of one layer, loading needs no more memory than the loaded weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx

READERS = 4
"""Threads of `Readers`; docs/engine.md says what they are good for."""

Arrays = dict[str, mx.array]


@dataclass(slots=True)
class Part:
    """What belongs together, a layer say: `tensors` of the checkpoint and the `results` that are made of them.

    `fused`: bytes of those tensors that lie beside a weight while it is made of them.
    """

    tensors: Arrays = field(default_factory=dict)
    results: list[mx.array] = field(default_factory=list)
    fused: int = 0


def spread(sizes: Mapping[str, int], readers: int) -> dict[str, int]:
    """Which reader each tensor is for, so that all have about as many bytes of the checkpoint to read.

    In the order of their names: one thread alone read fastest so. Large and small ones take turns then; MLX reads each
    into memory that it frees at once, and after large ones in a row glibc gives theirs back, to have it anew page by
    page.
    """
    loads, owners = [0] * readers, {}
    for name in sorted(sizes):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners


class Reading(Protocol):
    """Reads parts in the order in which they are begun."""

    def tensors(self, load: Callable[[mx.Stream | None], Arrays]) -> Arrays:
        """The checkpoint's, by `load(stream)`, which reads nothing yet."""

    def begin(self, part: Part, unread: int) -> None:
        """Begin to read a part; `unread`: bytes of the checkpoint that are for later parts."""

    def wait(self, parts: int | None = None) -> None:
        """Wait for the first `parts` of those that have been begun, or for all. What can't be read, raises."""

    def close(self) -> None:
        """Wait for what is being read right now; the rest isn't read."""


class Behind:
    """Reading by MLX's own threads, as on the CPU and on Metal: one part at a time beside the one that is being begun.

    So the files are read without a pause, and the parts of two layers' weights at most lie beside these; those of one
    layer towards the end, when what is still unread wouldn't be larger.
    """

    def __init__(self) -> None:
        self._underway: list[mx.array] = []
        self._fused = 0

    def tensors(self, load: Callable[[mx.Stream | None], Arrays]) -> Arrays:
        return load(None)

    def begin(self, part: Part, unread: int) -> None:
        part.tensors.clear()
        if part.fused + self._fused > unread:
            self.wait()
        mx.async_eval(part.results)  # type: ignore[no-untyped-call]
        self.wait()
        self._underway, self._fused = part.results, part.fused

    def wait(self, parts: int | None = None) -> None:
        underway, self._underway, self._fused = self._underway, [], 0
        mx.eval(underway)

    def close(self) -> None:
        """Before it is read, it must not be freed: its memory is still written to."""
        self.wait()


class Readers:
    """Reading by threads of its own, for CUDA: there MLX reads a tensor in the thread that evaluates it.

    They read all that has been begun, without regard to what is made of it; `wait` makes it, a part at a time. A tensor
    can be read only by the thread whose stream it has: `tensors` shares them out.
    """

    def __init__(self, count: int = READERS) -> None:
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix="llmbench-reader") for _ in range(count)]
        device = mx.default_device()
        self._streams = [thread.submit(mx.new_stream, device).result() for thread in self._threads]
        self._owners: dict[str, int] = {}
        self._begun: deque[tuple[list[Future[None]], Part]] = deque()

    def tensors(self, load: Callable[[mx.Stream | None], Arrays]) -> Arrays:
        copies = [load(stream) for stream in self._streams]
        self._owners = spread({name: array.nbytes for name, array in copies[0].items()}, len(copies))
        return {name: copies[owner][name] for name, owner in self._owners.items()}

    def begin(self, part: Part, unread: int) -> None:
        shares: dict[int, list[mx.array]] = {}
        for name in sorted(part.tensors):
            shares.setdefault(self._owners[name], []).append(part.tensors.pop(name))
        self._begun.append(([self._threads[i].submit(mx.eval, share) for i, share in shares.items()], part))

    def wait(self, parts: int | None = None) -> None:
        for _ in range(len(self._begun) if parts is None else min(parts, len(self._begun))):
            read, part = self._begun.popleft()
            for future in read:
                future.result()
            mx.eval(part.results)

    def close(self) -> None:
        # All are told before one is waited for: who interrupts that wait must not wait for the others' reading.
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.shutdown()
        self._begun.clear()
