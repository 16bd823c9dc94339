"""Whether the machine's power lets figures be judged: on battery, slowed down or hot it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_llmbench.power import PowerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """`problems`: why not, each with what to do. `unknown`: what couldn't be read."""

    problems: tuple[str, ...]
    unknown: tuple[str, ...]


def check(state: PowerState, platform: str) -> Power:
    """What `state` means; `platform` as in `sys.platform`: only macOS says all three."""
    if platform != "darwin":
        return Power(problems=(), unknown=(f"power is only looked at on macOS, and this is {platform}",))
    return Power(problems=tuple(_problems(state)), unknown=tuple(_unknown(state)))


def lasting(state: PowerState, platform: str) -> tuple[str, ...]:
    """What makes a run that is over invalid: measuring itself warms the machine, so heat doesn't."""
    return check(replace(state, thermal_state=None), platform).problems


def _problems(state: PowerState) -> list[str]:
    found = []
    if state.source == "battery":
        found.append("the machine runs on battery: plug it in")
    if state.low_power_mode:
        found.append("Low Power Mode is on: switch it off (System Settings, Battery; or sudo pmset -a lowpowermode 0)")
    if state.thermal_state not in (None, "nominal"):
        found.append(f"thermal pressure is {state.thermal_state}: let the machine cool down, then run again")
    return found


def _unknown(state: PowerState) -> list[str]:
    facts = {
        "power source": state.source,
        "Low Power Mode": state.low_power_mode,
        "thermal pressure": state.thermal_state,
    }
    return [f"{name} can't be read ({state.source_of_facts})" for name, value in facts.items() if value is None]
