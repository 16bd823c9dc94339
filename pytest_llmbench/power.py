"""Where the machine's power comes from, and whether it is being held back. Read without root; None = not known."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_llmbench.environment import command_output

Source = Literal["ac", "battery"]
POWER_SUPPLIES = Path("/sys/class/power_supply")
THERMAL_KEY = "com.apple.system.thermalpressurelevel"
# OSThermalPressureLevel of <libkern/OSThermalNotification.h>, macOS numbering.
_THERMAL_LEVELS = ("nominal", "moderate", "heavy", "trapping", "sleeping")
_DRAWING = re.compile(r"Now drawing from '(AC|Battery|UPS) Power'")
_LOW_POWER = re.compile(r"^\s*(lowpowermode|powermode)\s+(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """Power and thermal facts at one moment. `source_of_facts` names what was asked."""

    source: Source | None
    low_power_mode: bool | None
    thermal_state: str | None
    source_of_facts: str

    def facts(self) -> dict[str, str | bool | None]:
        """The mapping that `environment.collect_environment` takes."""
        return {
            "power_source": self.source,
            "low_power_mode": self.low_power_mode,
            "thermal_state": self.thermal_state,
            "source_of_facts": self.source_of_facts,
        }


def read_power() -> PowerState:
    """The state now. Three short commands on macOS, a few files on Linux."""
    if sys.platform == "darwin":
        return _macos_power()
    return PowerState(
        source=parse_power_supplies(POWER_SUPPLIES),
        low_power_mode=None,
        thermal_state=None,
        source_of_facts=str(POWER_SUPPLIES),
    )


def parse_power_source(pmset_batt: str) -> Source | None:
    """From `pmset -g batt`: "ac" or "battery" by its first line; a UPS is a battery.

    The words of a battery's own line aren't looked at: "discharging" contains "charging".
    """
    match = _DRAWING.search(pmset_batt)
    if match is None:
        return None
    return "ac" if match.group(1) == "AC" else "battery"


def parse_low_power_mode(pmset: str) -> bool | None:
    """From `pmset -g`: `lowpowermode 0|1`, or `powermode` (0 automatic, 1 low, 2 high) of later systems."""
    values = {name: int(value) for name, value in _LOW_POWER.findall(pmset)}
    value = values.get("powermode", values.get("lowpowermode"))
    return None if value is None else value == 1


def parse_thermal_state(notifyutil: str) -> str | None:
    """From `notifyutil -g com.apple.system.thermalpressurelevel`, which prints the key and a number."""
    match = re.search(rf"^{re.escape(THERMAL_KEY)}\s+(\d+)\s*$", notifyutil, re.MULTILINE)
    if match is None or int(match.group(1)) >= len(_THERMAL_LEVELS):
        return None
    return _THERMAL_LEVELS[int(match.group(1))]


def parse_power_supplies(root: Path) -> Source | None:
    """From /sys/class/power_supply (Documentation/ABI/testing/sysfs-class-power): any mains or USB supply that is
    online means "ac"; else a discharging system battery means "battery".
    """
    supplies = sorted(root.glob("*")) if root.is_dir() else []
    # Batteries of mice and keyboards have this scope.
    own = [supply for supply in supplies if _attribute(supply, "scope") != "Device"]
    if any(_attribute(supply, "type") != "Battery" and _attribute(supply, "online") == "1" for supply in own):
        return "ac"
    batteries = [_attribute(supply, "status") for supply in own if _attribute(supply, "type") == "Battery"]
    if "Discharging" in batteries:
        return "battery"
    return None


def _attribute(supply: Path, name: str) -> str | None:
    try:
        return (supply / name).read_text().strip()
    except OSError:
        return None


def _macos_power() -> PowerState:
    return PowerState(
        source=parse_power_source(command_output("pmset", "-g", "batt") or ""),
        low_power_mode=parse_low_power_mode(command_output("pmset", "-g") or ""),
        thermal_state=parse_thermal_state(command_output("notifyutil", "-g", THERMAL_KEY) or ""),
        source_of_facts="pmset, notifyutil",
    )
