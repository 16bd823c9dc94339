"""What all engines on MLX share as sides."""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, cast

from pytest_llmbench.errors import SideError
from pytest_llmbench.memory_macos import footprint
from pytest_llmbench.secrets import HIDDEN, is_secret_name
from pytest_llmbench.sides.messages import MOST_MARGINS, Fact, MemoryUse
from pytest_llmbench.sides.serve import Served

if TYPE_CHECKING:
    import mlx.core as mx


_OF_NO_MATTER = ("uuid", "pci_bus_id", "free_memory")
"""Of the device: which one of its kind it is, and what changes while we look."""


class MlxServed(Served):
    """Facts, reset and memory by MLX's own count."""

    def setup(self) -> None:
        import mlx.core as mx

        mx.eval(mx.zeros(1))

    def facts(self) -> Mapping[str, Fact]:
        import mlx.core as mx

        info = {name: value for name, value in mx.device_info().items() if name not in _OF_NO_MATTER}
        device = {f"device.{name}": value for name, value in info.items()}
        return {
            "mlx": package_version("mlx"),
            "mlx_lm": package_version("mlx-lm"),
            "python": platform.python_version(),
            "device": str(mx.default_device()),
            **device,
            **_mlx_variables(),
        }

    def reset(self) -> None:
        import mlx.core as mx

        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()

    def memory(self) -> MemoryUse:
        import mlx.core as mx

        active = mx.get_active_memory()
        # A reset puts MLX's peak to 0, where it stays until something is allocated.
        peak = max(mx.get_peak_memory(), active)
        return MemoryUse(
            peak_bytes=peak,
            active_bytes=active,
            os_peak_rss_bytes=peak_rss_bytes(),
            os_peak_footprint_bytes=_peak_footprint_bytes(),
        )


def package_version(name: str) -> str | None:
    """None where it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def bad_checkpoint(error: Exception) -> SideError:
    """To raise where an engine says that it can't load what it was given."""
    return SideError(str(error), kind="refused", refusal="checkpoint")


def nothing_loaded() -> SideError:
    """To raise where a request needs a model and there is none."""
    return SideError("nothing is loaded", kind="refused", refusal="failed")


def best_of(logits: mx.array) -> tuple[tuple[int, float], ...]:
    """The MOST_MARGINS largest of `logits` [vocabulary] as float32, with their places, the largest one first."""
    import mlx.core as mx

    values = logits.astype(mx.float32)
    places = mx.argsort(-values)[:MOST_MARGINS]
    pairs = cast("list[list[float]]", [places.tolist(), values[places].tolist()])
    return tuple((int(place), value) for place, value in zip(*pairs, strict=True))


def peak_rss_bytes() -> int:
    """getrusage(2): bytes on macOS, KiB on Linux."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _peak_footprint_bytes() -> int | None:
    found = footprint(os.getpid()) if sys.platform == "darwin" else None
    return None if found is None else found.lifetime_max_phys_footprint_bytes


def _mlx_variables() -> dict[str, str]:
    """MLX's switches that are set: they change what is measured. No other variable is told."""
    return {
        f"env.{name}": HIDDEN if is_secret_name(name) else value
        for name, value in sorted(os.environ.items())
        if name.startswith("MLX_")
    }
