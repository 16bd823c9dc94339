"""The gate judges only on a machine that runs as it should. The texts: tests/data/macos/README.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gate_kit import RECORD_FILE, ROOT, Repository

from gate.cli import main
from pytest_llmbench.power import PowerState, parse_low_power_mode, parse_power_source, parse_thermal_state

DATA = ROOT / "tests" / "data" / "macos"
GOOD = ("pmset_batt_ac", "pmset_lowpowermode_off", "notifyutil_thermal_nominal")
ENVIRONMENT: dict[str, str] = {}


def state(source: str, mode: str, thermal: str) -> PowerState:
    """What the commands' saved outputs say; "" for a command that said nothing."""
    texts = [(DATA / f"{name}.txt").read_text() if name else "" for name in (source, mode, thermal)]
    return PowerState(
        source=parse_power_source(texts[0]),
        low_power_mode=parse_low_power_mode(texts[1]),
        thermal_state=parse_thermal_state(texts[2]),
        source_of_facts="pmset, notifyutil",
    )


def in_turn(*states: PowerState) -> Callable[[], PowerState]:
    """Gives one state after the other, then the last one again."""
    left: Iterator[PowerState] = iter(states)
    return lambda: next(left, states[-1])


@pytest.fixture
def measuring(repository: Repository, tmp_path: Path) -> Repository:
    """A repository whose run is green."""
    junit, record = tmp_path / "junit.xml", tmp_path / "parity.json"
    junit.write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
    record.write_bytes(RECORD_FILE.read_bytes())
    repository.script(junit, record)
    return repository


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("pmset_batt_battery", *GOOD[1:]), "the machine runs on battery: plug it in"),
        (("pmset_batt_ups", *GOOD[1:]), "the machine runs on battery"),
        ((GOOD[0], "pmset_lowpowermode_on", GOOD[2]), "Low Power Mode is on: switch it off"),
        ((GOOD[0], "pmset_powermode_low", GOOD[2]), "Low Power Mode is on: switch it off"),
        ((*GOOD[:2], "notifyutil_thermal_heavy"), "thermal pressure is heavy: let the machine cool down"),
    ],
)
def test_a_machine_that_is_held_back_doesnt_judge(
    measuring: Repository, capfd: pytest.CaptureFixture[str], texts: tuple[str, str, str], said: str
) -> None:
    assert main(["--all"], measuring.path, ENVIRONMENT, in_turn(state(*texts)), "darwin") == 3
    assert said in capfd.readouterr().out
    assert not measuring.was_called


@pytest.mark.parametrize("source", ["pmset_batt_ac", "pmset_batt_desktop"])
def test_a_machine_in_good_order_measures(measuring: Repository, source: str) -> None:
    power = in_turn(state(source, *GOOD[1:]))
    assert main(["--all", "--strict-power"], measuring.path, ENVIRONMENT, power, "darwin") == 0
    assert "--llmbench-require" in measuring.called


def test_what_cant_be_read_is_said_and_only_strictly_a_reason(
    measuring: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    power = in_turn(state(GOOD[0], "", ""))
    assert main(["--all", "--strict-power"], measuring.path, ENVIRONMENT, power, "darwin") == 3
    assert not measuring.was_called
    assert main(["--all"], measuring.path, ENVIRONMENT, power, "darwin") == 0
    assert "- thermal pressure can't be read (pmset, notifyutil)\n" in capfd.readouterr().out


def test_elsewhere_than_on_macos_power_isnt_judged(measuring: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    power = in_turn(state("pmset_batt_battery", *GOOD[1:]))
    assert main(["--all", "--strict-power"], measuring.path, ENVIRONMENT, power, "linux") == 3
    assert main(["--all"], measuring.path, ENVIRONMENT, power, "linux") == 0
    assert "- power is only looked at on macOS, and this is linux\n" in capfd.readouterr().out


@pytest.mark.parametrize("later", [("pmset_batt_battery", *GOOD[1:]), (GOOD[0], "pmset_lowpowermode_on", GOOD[2])])
def test_a_machine_that_was_held_back_meanwhile_hasnt_judged(
    measuring: Repository, capfd: pytest.CaptureFixture[str], later: tuple[str, str, str]
) -> None:
    power = in_turn(state(*GOOD), state(*later))
    assert main(["--all"], measuring.path, ENVIRONMENT, power, "darwin") == 3
    assert "## Parity gate: error\n\nNot judged; 1 passed; after the run: " in capfd.readouterr().out


def test_measuring_may_warm_the_machine(measuring: Repository) -> None:
    power = in_turn(state(*GOOD), state(*GOOD[:2], "notifyutil_thermal_heavy"))
    assert main(["--all"], measuring.path, ENVIRONMENT, power, "darwin") == 0


def test_without_anything_to_measure_power_doesnt_matter(measuring: Repository) -> None:
    measuring.commit()
    measuring.change("docs/engine.md")
    power = in_turn(state("pmset_batt_battery", *GOOD[1:]))
    assert main(["--base", "HEAD~1"], measuring.path, ENVIRONMENT, power, "darwin") == 0
