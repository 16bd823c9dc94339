"""Parsers for what macOS's own commands say about the machine."""

from __future__ import annotations

import json
import re

SYSCTL_NAMES = (
    "machdep.cpu.brand_string",
    "hw.model",
    "hw.perflevel0.physicalcpu",
    "hw.perflevel1.physicalcpu",
    "iogpu.wired_limit_mb",
)
_GPU_CORES = re.compile(r'"gpu-core-count"\s*=\s*(\d+)')


def parse_sysctl(text: str) -> dict[str, str]:
    """`name: value` lines. Names that the system doesn't have are simply missing."""
    pairs = (line.partition(": ") for line in text.splitlines())
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def parse_ioreg_gpu_cores(text: str) -> int | None:
    """From `ioreg -rc AGXAccelerator -d 1`."""
    match = _GPU_CORES.search(text)
    return int(match.group(1)) if match else None


def parse_displays_gpu_cores(text: str) -> int | None:
    """From `system_profiler SPDisplaysDataType -json`: the most cores of any GPU; None where none says."""
    try:
        displays = json.loads(text)["SPDisplaysDataType"]
        cores = [int(display["sppci_cores"]) for display in displays if "sppci_cores" in display]
    except (ValueError, KeyError, TypeError):
        return None
    return max(cores, default=None)
