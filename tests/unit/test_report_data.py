"""The report page's data: escaped for its place, complete, and nothing made up for what wasn't measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.figures import load
from pytest_llmbench.report.page import embedded, html
from pytest_llmbench.report.rows import page_data

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "matrix" / "records" / "parity_m4_pro.json"


@given(st.recursive(st.text() | st.just("</script><!--"), lambda inner: st.dictionaries(st.text(), inner)))
def test_embedded_data_cannot_end_its_element_and_reads_back_the_same(data: Any) -> None:
    text = embedded(data)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == data


def test_a_parity_point_gives_a_row_for_each_side_under_common_names() -> None:
    rows = page_data(load([RECORD]))["rows"]
    sides = [row for row in rows if row["id"] == "Qwen3-0.6B-4bit-decode-r40"]
    assert [(row["side"], row["backend"], row["context"]) for row in sides] == [
        ("candidate", "nuvec", 961),
        ("baseline", "mlx-lm", 961),
    ]
    assert all(row["metrics"]["decode_tok_s"][0] > 0 for row in sides)
    assert sides[1]["status"] == "reference"


def test_an_unmeasured_metric_is_absent_and_no_row_holds_a_zero_speed() -> None:
    rows = page_data(load([RECORD]))["rows"]
    assert all(figure[0] > 0 for row in rows for figure in row["metrics"].values())
    assert any("decode_tok_s" not in row["metrics"] for row in rows)


def test_low_power_mode_off_and_no_thermal_state_is_not_called_throttled() -> None:
    data = page_data(load([RECORD]))
    assert data["sources"][0]["power"] == {"source": "ac", "low_power_mode": False, "thermal_state": None}
    assert {row["conditions"]["held_back"] for row in data["rows"]} == {False}


def test_the_page_names_no_address_to_fetch_from() -> None:
    head = html(load([RECORD])).partition('<script type="application/json"')[0]
    assert "default-src 'none'" in head
    assert "http" not in head.replace("http-equiv", "")


def test_the_command_writes_the_page_and_says_what_is_in_it(tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    command = [sys.executable, "-m", "pytest_llmbench", "report", str(RECORD), "--out", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"{page}: html of 1 records")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_times_of_a_record_made_elsewhere_are_utc(tmp_path: Path) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) | {"created": "2026-10-31T23:30:00-05:00"}
    (tmp_path / "parity.json").write_text(json.dumps(record), encoding="utf-8")
    assert load([tmp_path / "parity.json"]).sources[0].created == "2026-11-01T04:30:00.000+00:00"
