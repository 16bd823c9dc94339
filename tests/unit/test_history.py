"""`llmbench history`: a change of level and a slow drift are found, noise isn't."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from record_kit import command, require_report_extra, result, run, save

from pytest_llmbench.cli_records import BARS, sparkline
from pytest_llmbench.figures import Subject
from pytest_llmbench.history import all_series, drift, read_history, shifts
from pytest_llmbench.report.trends import trends

require_report_extra()


def noisy(levels: Sequence[float], *, seed: int = 3, share: float = 0.005) -> list[float]:
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, share)) for level in levels]


def records(
    folder: Path, values: Sequence[float], metric: str = "decode_tok_s", first: int = 1, **machine: Any
) -> Path:
    for day, value in enumerate(values, first):
        created = f"2026-01-{day:02}T00:00:00.000+00:00"
        save(
            folder / f"{len(machine)}-{day}" / "run.json",
            run(result("a", {metric: [value]}), created=created, **machine),
        )
    return folder


def test_a_change_of_level_is_found_where_it_is() -> None:
    (found,) = shifts(noisy([50.0] * 10 + [47.0] * 10))
    assert found.index == 10
    assert found.share == pytest.approx(-0.06, abs=0.01)


def test_noise_alone_is_no_change() -> None:
    found = [shifts(noisy([50.0] * 20, seed=seed)) for seed in range(20)]
    assert sum(map(bool, found)) <= 2  # seeded; the expected share is 2 %
    assert not any(drift(noisy([50.0] * 20, seed=seed)) for seed in range(20))


def test_one_outlier_is_no_change_of_level() -> None:
    values = noisy([50.0] * 20)
    values[9] *= 0.9
    assert shifts(values) == ()


@hypothesis_settings(max_examples=30)
@given(st.floats(1e-3, 1e6))
def test_the_unit_doesnt_matter(scale: float) -> None:
    values = noisy([1.0] * 10 + [0.9] * 10)
    assert [s.index for s in shifts([scale * v for v in values])] == [s.index for s in shifts(values)]


def test_equal_values_have_neither_change_nor_drift() -> None:
    assert shifts([5.0] * 12) == ()
    assert drift([5.0] * 12) is None


def test_a_drift_that_passes_every_single_gate_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = noisy([50.0 * 0.997**day for day in range(24)], share=0.003)
    assert all(b / a > 0.98 for a, b in pairwise(values))
    assert command("history", records(tmp_path, values)) == 1
    out = capsys.readouterr().out
    assert "worse: a-short decode_tok_s" in out
    assert "drifts: -6." in out or "drifts: -7." in out


def test_a_jump_to_the_worse_is_a_fault_and_one_to_the_better_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = records(tmp_path / "worse", noisy([50.0] * 8 + [40.0] * 6))
    better = records(tmp_path / "better", noisy([50.0] * 8 + [60.0] * 6))
    assert command("history", worse) == 1
    assert "from 2026-01-09T00:00:00" in capsys.readouterr().out
    assert command("history", better) == 0
    assert command("history", worse, "--last", 5) == 0  # too few to say anything
    assert command("history", worse, "--fail", 50) == 0


def test_more_seconds_are_the_worse(tmp_path: Path) -> None:
    assert command("history", records(tmp_path, noisy([0.5] * 8 + [0.6] * 8), metric="ttft_s")) == 1


def test_machines_have_series_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path, noisy([50.0] * 9))
    records(tmp_path, noisy([20.0] * 9), chip="Apple M9")
    assert command("history", tmp_path, "--metrics", "decode_tok_s") == 0
    assert "2 series, 2 of them" in capsys.readouterr().out


def upgraded(folder: Path, **changes: Any) -> Path:
    """A slow-down of 10 % that comes with other software on the ninth day."""
    records(folder, noisy([50.0] * 8), versions={"mlx": "0.32.4", "numpy": "2.3.0"}, os_version="6.1")
    after = {"versions": {"mlx": "0.33.0", "numpy": "2.3.0", "mlx-lm": "0.33.0"}, "os_version": "7.0", **changes}
    return records(folder, noisy([45.0] * 8), first=9, **after)


def test_a_slow_down_that_comes_with_an_upgrade_is_seen_and_what_was_upgraded_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("history", upgraded(tmp_path), "--metrics", "decode_tok_s") == 1
    out = capsys.readouterr().out
    assert "1 series, 1 of them" in out
    named = "    upgraded there: mlx: 0.32.4 → 0.33.0, mlx-lm: None → 0.33.0, os_version: 6.1 → 7.0\n"
    assert "from 2026-01-09T00:00:00" in out
    assert named in out
    (found,) = trends(subjects(tmp_path))["found"]
    assert found["shifts"][0]["upgraded"] == named.strip().removeprefix("upgraded there: ").split(", ")


@pytest.mark.parametrize("change", [{"memory_bytes": 1}, {"power": {"power_source": "battery"}}], ids=repr)
def test_another_machine_or_power_source_has_a_series_of_its_own(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("history", upgraded(tmp_path, **change), "--metrics", "decode_tok_s") == 0
    assert "2 series, 2 of them" in capsys.readouterr().out


def test_a_backend_that_was_upgraded_by_itself_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day, value in enumerate(noisy([50.0] * 8 + [45.0] * 8), 1):
        one = result("a", {"decode_tok_s": [value]})
        assert isinstance(one.measurement, dict)
        one.measurement["target"]["version"] = "b1" if day < 9 else "b2"
        save(tmp_path / f"{day}.json", run(one, created=f"2026-01-{day:02}T00:00:00.000+00:00"))
    assert command("history", tmp_path, "--metrics", "decode_tok_s") == 1
    assert "    upgraded there: mlx-lm: b1 → b2\n" in capsys.readouterr().out


def test_other_json_files_are_named_and_no_record_at_all_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("history", tmp_path) == 2
    assert command("history", tmp_path / "no such folder") == 2
    (tmp_path / "package.json").write_text("{}")
    records(tmp_path, [50.0] * 2)
    capsys.readouterr()
    assert command("history", tmp_path) == 0
    assert "not read: " in capsys.readouterr().out


def subjects(folder: Path) -> tuple[Subject, ...]:
    return read_history(folder)[0].subjects


def test_the_page_has_the_changes_that_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("history", records(tmp_path, noisy([50.0] * 8 + [40.0] * 6)), "--metrics", "decode_tok_s") == 1
    printed = capsys.readouterr().out
    (found,) = trends(subjects(tmp_path))["found"]
    (shift,) = found["shifts"]
    assert (found["name"], found["metric"], found["records"], found["worse"]) == ("a-short", "decode_tok_s", 14, True)
    assert f"from {shift['created'][:19]}" in printed
    assert f"({shift['move']['share']:+.1%})" in printed
    assert shift["move"]["worse"]


def test_a_level_that_got_better_is_no_worse_one_on_the_page(tmp_path: Path) -> None:
    (found,) = trends(subjects(records(tmp_path, noisy([0.6] * 8 + [0.5] * 8), metric="ttft_s")))["found"]
    assert not found["worse"]
    assert not found["shifts"][0]["move"]["worse"]


def test_without_the_extra_the_page_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ruptures", None)
    few = trends(subjects(records(tmp_path / "few", [50.0] * 4)))
    assert (few["missing"], few["found"]) == ("", [])  # nothing to look for
    many = trends(subjects(records(tmp_path / "many", noisy([50.0] * 8 + [40.0] * 6))))
    assert 'pip install "pytest-llmbench[report]"' in many["missing"]
    assert command("history", tmp_path / "many") == 1


def test_a_record_and_what_it_was_merged_into_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = records(tmp_path, noisy([50.0] * 9))
    assert command("merge", *sorted(folder.rglob("run.json")), "--out", folder / "merged" / "run.json") == 0
    capsys.readouterr()
    command("history", folder, "--metrics", "decode_tok_s", "--all")
    assert "(n 9, machine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "bars"), [([1, 1], BARS[3] * 2), ([0, 7], BARS[0] + BARS[7]), ([1, 2, 3], BARS[0] + BARS[4] + BARS[7])]
)
def test_a_sparkline_runs_from_the_least_to_the_greatest(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_a_figure_that_stops_being_measured_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_report_extra()
    folder = records(tmp_path / "records", [50.0] * 9)
    save(folder / "late.json", run(result("a", None), created="2026-02-01T00:00:00.000+00:00"))
    skipped = result("a", None, outcome="skipped", reason="not here")
    save(folder / "later.json", run(skipped, created="2026-02-02T00:00:00.000+00:00"))
    assert command("history", folder) == 0
    assert (
        "not measured any more: a-short decode_tok_s, the last time 2026-01-09T00:00:00; "
        "2026-02-01T00:00:00: error the server exited with 3\n"
    ) in capsys.readouterr().out


def test_two_runs_of_one_moment_are_two_points(tmp_path: Path) -> None:
    for value in (50.0, 51.0):
        save(tmp_path / f"{value}.json", run(result("a", {"decode_tok_s": [value]})))
    (found,) = all_series(subjects(tmp_path), ["decode_tok_s"])
    assert sorted(point.value for point in found.points) == [50.0, 51.0]


@pytest.mark.parametrize("share", ["nan", "-1", "inf"])
def test_a_limit_that_no_figure_could_break_is_wrong_use(
    tmp_path: Path, share: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("history", records(tmp_path / "records", [50.0]), "--fail", share) == 2
    assert "give a percentage of 0 or more" in capsys.readouterr().err
