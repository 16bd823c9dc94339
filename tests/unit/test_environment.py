"""Facts about the machine and when two of them are comparable."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from process_helpers import REPOSITORY

from pytest_llmbench import __version__
from pytest_llmbench.environment import (
    ENGINE_PACKAGES,
    Environment,
    collect_environment,
    command_output,
    differences,
    git_state,
    parse_cpu_model,
    parse_git_status,
    parse_nvidia_smi,
)
from pytest_llmbench.environment_macos import parse_displays_gpu_cores, parse_ioreg_gpu_cores, parse_sysctl

DATA = REPOSITORY / "tests" / "data" / "macos"
MAC = Environment(
    machine="Mac16,11", chip="Apple M4 Pro", cores_physical=14, cores_logical=14, cores_performance=10,
    cores_efficiency=4, gpu_cores=20, memory_bytes=64 * 1024**3, os="macOS", os_version="15.5", python="3.12.1",
    versions={"mlx": "0.32.4", "mlx-lm": "0.32.2", "pytest": "9.2.0"}, git_commit="a" * 40, git_dirty=False,
    power={"power_source": "ac", "low_power_mode": False, "thermal_state": "nominal"},
)  # fmt: skip

COMPARABLE: list[dict[str, Any]] = [
    {"machine": "Mac16,12"},
    {"chip": "Apple M4 Max"},
    {"cores_physical": 12},
    {"cores_performance": 12},
    {"gpu": "NVIDIA H200"},
    {"gpu_cores": 16},
    {"memory_bytes": 1},
    {"os": "Linux"},
    {"os_version": "26.0"},
    {"power": {**MAC.power, "power_source": "battery"}},
    {"power": {**MAC.power, "low_power_mode": True}},
    {"versions": {**MAC.versions, "mlx": "0.33.0"}},
    {"versions": {"mlx-lm": "0.32.2"}},
]
INCIDENTAL: list[dict[str, Any]] = [
    {"os_version": "15.6.1"},
    {"python": "3.13.0"},
    {"swap_used_bytes": 5},
    {"git_commit": None, "git_dirty": None},
    {"power": {**MAC.power, "thermal_state": "heavy"}},
    {"versions": {**MAC.versions, "pytest": "9.3.0", "pytest-llmbench": "2"}},
    {"extra": {"note": "x"}},
]


@pytest.mark.parametrize("change", COMPARABLE, ids=str)
def test_what_decides_comparability_changes_the_fingerprint_and_is_named(change: dict[str, Any]) -> None:
    other = replace(MAC, **change)
    assert other.fingerprint != MAC.fingerprint
    assert len(differences(MAC, other)) == 1


@pytest.mark.parametrize("change", INCIDENTAL, ids=str)
def test_what_does_not_leaves_the_fingerprint(change: dict[str, Any]) -> None:
    other = replace(MAC, **change)
    assert other.fingerprint == MAC.fingerprint
    assert differences(MAC, other) == []


@given(a=st.lists(st.sampled_from(COMPARABLE + INCIDENTAL)), b=st.lists(st.sampled_from(COMPARABLE + INCIDENTAL)))
def test_fingerprints_agree_exactly_when_nothing_differs(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    one, two = MAC, MAC
    for change in a:
        one = replace(one, **change)
    for change in b:
        two = replace(two, **change)
    assert (one.fingerprint == two.fingerprint) == (differences(one, two) == [])


def test_a_difference_says_both_values() -> None:
    assert differences(MAC, replace(MAC, chip="Apple M3")) == ["chip: Apple M4 Pro → Apple M3"]


def test_the_fingerprint_is_twelve_hex_digits_and_the_same_in_another_process() -> None:
    program = (
        "import json, sys\n"
        "from pytest_llmbench.environment import Environment\n"
        "print(Environment.from_json(json.load(sys.stdin)).fingerprint)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(MAC.to_json()), capture_output=True,
                          text=True, check=True, cwd=REPOSITORY)  # fmt: skip
    assert done.stdout.strip() == MAC.fingerprint
    assert len(MAC.fingerprint) == 12
    assert int(MAC.fingerprint, 16) >= 0


def test_json_and_back_is_the_same_and_unknown_keys_are_kept() -> None:
    data = json.loads(json.dumps(MAC.to_json()))
    assert Environment.from_json(data) == MAC
    assert Environment.from_json({**data, "site": "lab"}).extra == {"site": "lab"}


def test_a_missing_field_is_refused() -> None:
    with pytest.raises(TypeError, match="chip"):
        Environment.from_json({"machine": "x"})


def test_this_machine_has_cores_memory_and_our_version() -> None:
    found = collect_environment(root=REPOSITORY, power={"power_source": "ac"})
    assert found.cores_logical
    assert found.memory_bytes > 2**20
    assert found.chip
    assert found.os_version
    assert found.versions.get("pytest-llmbench", __version__) == __version__
    assert found.versions["pytest"] == pytest.__version__
    assert found.power == {"power_source": "ac"}
    assert Environment.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_and_changes_of_tracked_files_are_seen(tmp_path: Path) -> None:
    assert git_state(tmp_path) == (None, None)
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == (None, False)
    (tmp_path / "a.txt").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "untracked.txt").write_text("1")
    assert git_state(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "a.txt").write_text("2")
    assert git_state(tmp_path)[1] is True


def test_without_git_the_state_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(REPOSITORY) == (None, None)


def test_a_detached_head_has_its_commit() -> None:
    text = f"# branch.oid {'b' * 40}\n# branch.head (detached)\n"
    assert parse_git_status(text) == ("b" * 40, False)


def test_a_failing_command_that_printed_something_is_read_and_a_silent_one_is_not() -> None:
    assert command_output(sys.executable, "-c", "print('half'); raise SystemExit(1)") == "half\n"
    assert command_output(sys.executable, "-c", "raise SystemExit(1)") is None
    assert command_output("no-such-program-here") is None


def test_sysctl_lines_become_names_and_values() -> None:
    values = parse_sysctl((DATA / "sysctl_apple_silicon.txt").read_text())
    assert values["machdep.cpu.brand_string"] == "Apple M4 Pro"
    assert values["hw.model"] == "Mac16,11"
    assert (values["hw.perflevel0.physicalcpu"], values["hw.perflevel1.physicalcpu"]) == ("10", "4")
    assert "hw.perflevel0.physicalcpu" not in parse_sysctl((DATA / "sysctl_intel.txt").read_text())


def test_gpu_cores_are_read_from_either_command() -> None:
    assert parse_ioreg_gpu_cores((DATA / "ioreg_gpu.txt").read_text()) == 20
    assert parse_displays_gpu_cores((DATA / "system_profiler_displays.json.txt").read_text()) == 20


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"SPDisplaysDataType": [{"sppci_cores": "many"}]}', "not json"])
def test_gpu_cores_that_arent_said_are_unknown(text: str) -> None:
    assert parse_displays_gpu_cores(text) is None
    assert parse_ioreg_gpu_cores(text) is None


def test_the_first_model_name_is_the_chip() -> None:
    assert parse_cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n\nmodel name\t: other\n") == "AMD EPYC"
    assert parse_cpu_model("Hardware\t: BCM2835\n") is None


def test_equal_gpus_are_counted() -> None:
    assert parse_nvidia_smi("NVIDIA H200\nNVIDIA H200\n") == "2 × NVIDIA H200"
    assert parse_nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n") is None
    assert parse_nvidia_smi("") is None


def test_collecting_imports_no_engine() -> None:
    program = (
        "import sys\n"
        "from pytest_llmbench.environment import collect_environment\n"
        "collect_environment()\n"
        "print(sorted({'mlx', 'numpy', 'httpx', 'transformers', 'mlx_lm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"
    assert "mlx" in ENGINE_PACKAGES
