"""What has to hold of the sides of a parity run: the same ones throughout a record, and room for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.sides.messages import Fact, Hello

MEMORY_SHARE: Final = 0.6
"""Both sides are loaded together where their weights take no more than this share of the device's memory."""
DEVICE_MEMORY: Final = ("device.total_memory", "device.memory_size")
"""What MLX calls it on CUDA, where it is the device's own, and on Metal, where it is the machine's."""
UNKNOWN_VERSION: Final = "unknown"


class SameSides:
    """Remembers what the sides of one record said of themselves, and refuses to mix in another version's readings.

    Texts among the facts (versions of libraries, the device) count, numbers don't: those may be of the moment.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def expect(self, sides: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what the record already says of its sides (`section_facts`)."""
        for who, side in sides.items():
            if side["version"] != UNKNOWN_VERSION:
                self._known.setdefault(who, _texts(side["version"], side["facts"]))

    def check(self, who: str, hello: Hello) -> None:
        """MeasurementError where the side is another one than it was."""
        now = _texts(hello.version, hello.facts)
        known = self._known.setdefault(who, now)
        if other := sorted(name for name in {*known, *now} if known.get(name) != now.get(name)):
            changes = ", ".join(f"{name} {now.get(name)} (was {known.get(name)})" for name in other)
            raise MeasurementError(
                f"{who}: not the side that the record's other sections were measured with: {changes}; "
                "have the same one again, or start anew: without --llmbench-resume "
                "(a fact that changes from start to start must be no text: docs/sides.md)"
            )


def fit_together(checkpoint: Path, hellos: Iterable[Hello]) -> bool:
    """Whether the weights fit twice into the memory that the sides have to share."""
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors") if path.exists())
    return 2 * weights <= MEMORY_SHARE * device_memory_bytes(hellos)


def device_memory_bytes(hellos: Iterable[Hello]) -> int:
    """The smallest device's memory that a side told of; the machine's where none did (a CPU has no other)."""
    facts = [hello.facts.get(name) for hello in hellos for name in DEVICE_MEMORY]
    return min((fact for fact in facts if type(fact) is int), default=psutil.virtual_memory().total)


def _texts(version: str, facts: Mapping[str, Fact]) -> dict[str, str]:
    return {"version": version} | {name: fact for name, fact in facts.items() if isinstance(fact, str)}
