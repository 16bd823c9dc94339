"""Power facts from text. The macOS texts were written from the documented formats: tests/data/macos/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_helpers import REPOSITORY

from pytest_llmbench.power import (
    parse_low_power_mode,
    parse_power_source,
    parse_power_supplies,
    parse_thermal_state,
    read_power,
)

DATA = REPOSITORY / "tests" / "data" / "macos"


@pytest.mark.parametrize(
    ("name", "expected"), [("ac", "ac"), ("desktop", "ac"), ("battery", "battery"), ("ups", "battery")]
)
def test_the_power_source_is_what_is_drawn_from(name: str, expected: str) -> None:
    assert parse_power_source((DATA / f"pmset_batt_{name}.txt").read_text()) == expected


def test_a_battery_line_alone_says_nothing_about_the_source() -> None:
    assert parse_power_source(" -InternalBattery-0 (id=1)\t64%; discharging; 4:37 remaining present: true\n") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lowpowermode_off", False), ("lowpowermode_on", True), ("powermode_low", True), ("powermode_high", False)],
)
def test_low_power_mode_is_one_of_two_settings(name: str, expected: bool) -> None:
    assert parse_low_power_mode((DATA / f"pmset_{name}.txt").read_text()) is expected


@pytest.mark.parametrize(("name", "expected"), [("nominal", "nominal"), ("heavy", "heavy")])
def test_the_thermal_level_gets_its_name(name: str, expected: str) -> None:
    assert parse_thermal_state((DATA / f"notifyutil_thermal_{name}.txt").read_text()) == expected


@pytest.mark.parametrize("text", ["", "com.apple.system.thermalpressurelevel 9\n", "notifyutil: error 7\n"])
def test_what_isnt_understood_is_not_known(text: str) -> None:
    assert parse_thermal_state(text) is None
    assert parse_low_power_mode(text) is None
    assert parse_power_source(text) is None


def supply(root: Path, name: str, **attributes: str) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    for attribute, value in attributes.items():
        (folder / attribute).write_text(value + "\n")


def test_on_linux_an_online_adapter_is_ac_whatever_the_battery_does(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="1")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert parse_power_supplies(tmp_path) == "ac"


def test_on_linux_an_offline_adapter_and_a_discharging_battery_is_battery(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    assert parse_power_supplies(tmp_path) == "battery"


def test_on_linux_the_battery_of_a_mouse_is_not_the_machines(tmp_path: Path) -> None:
    supply(tmp_path, "hid-mouse", type="Battery", scope="Device", status="Discharging", online="1")
    assert parse_power_supplies(tmp_path) is None


def test_on_linux_without_supplies_nothing_is_known(tmp_path: Path) -> None:
    assert parse_power_supplies(tmp_path) is None
    assert parse_power_supplies(tmp_path / "absent") is None


def test_this_machine_answers_with_known_values_or_none() -> None:
    state = read_power()
    assert state.source in {"ac", "battery", None}
    assert state.low_power_mode in {True, False, None}
    assert state.facts()["power_source"] == state.source
    assert state.source_of_facts
