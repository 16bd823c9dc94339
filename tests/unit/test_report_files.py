"""Reports in other programs' formats, checked against what those say of them, and the page for a pull request."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import pytest
from record_kit import CSV_FOLDER, PARITY, command, result, run, save

from pytest_llmbench import markdown
from pytest_llmbench.compare import compare, parse_limits
from pytest_llmbench.figures import load
from pytest_llmbench.report_files import RENDER
from pytest_llmbench.summary_page import page
from pytest_llmbench.units import unit_of

SPEED = {"decode_tok_s": [40.0, 41.0, 42.0], "ttft_s": [0.5, 0.6, 0.7]}
NUMBER = {"type": "number"}
BMF = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "propertyNames": {"maxLength": 64, "pattern": "^[a-z0-9-]+$"},
        "additionalProperties": {
            "type": "object",
            "properties": {"value": NUMBER, "lower_value": NUMBER, "upper_value": NUMBER},
            "required": ["value"],
            "additionalProperties": False,
        },
    },
    "propertyNames": {"maxLength": 1024, "minLength": 1},
}
TEXT = {"type": "string"}
GHA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": TEXT, "unit": TEXT, "value": NUMBER, "range": TEXT, "extra": TEXT},
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "run.json", run(result("a", SPEED), result("b", None)))


def report(kind: str, *paths: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command("report", *paths, "--format", kind) == 0
    return capsys.readouterr().out


def test_bmf_is_as_bencher_says(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(report("bmf", saved, PARITY, capsys=capsys))
    jsonschema.validate(data, BMF)
    assert data["a-short"]["decode-tok-s"] == {"value": 41.0, "lower_value": 40.0, "upper_value": 42.0}
    assert data["Qwen3-0.6B-4bit-decode-r1"]["tok-s"]["value"] == 441.145
    assert "b-short" not in data  # not measured is no number


def test_both_directions_of_github_action_benchmark_are_as_it_says(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bigger = json.loads(report("gha", saved, PARITY, capsys=capsys))
    smaller = json.loads(report("gha-smaller", saved, PARITY, capsys=capsys))
    jsonschema.validate([*bigger, *smaller], GHA)
    assert {(e["name"], e["unit"], e["value"]) for e in bigger} >= {("a-short decode_tok_s", "tok/s", 41.0)}
    assert {e["name"] for e in smaller} >= {"a-short ttft_s", "a-short peak_memory_bytes"}
    assert not {e["name"] for e in bigger} & {e["name"] for e in smaller}
    assert not [e["name"] for e in [*bigger, *smaller] if "_tokens" in e["name"]]


@pytest.mark.parametrize("kind", ["bmf", "gha", "gha-smaller"])
def test_two_results_of_one_name_are_refused_rather_than_one_lost(
    kind: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(tmp_path / "other.json", run(result("a", SPEED), chip="Apple M9"))
    assert command("report", saved, other, "--format", kind) == 2
    said = capsys.readouterr().err
    assert "a-short stands twice" in said
    assert f"{saved} and {other}" in said


def test_csv_has_units_in_its_head_and_reads_back(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = csv.DictReader(io.StringIO(report("csv", saved, capsys=capsys)))
    assert float(first["decode_tok_s [tok/s]"]) == 41.0
    assert first["peak_memory_bytes [bytes]"] == "1024"
    assert (second["outcome"], second["decode_tok_s [tok/s]"]) == ("error", "")
    assert second["reason"] == "the server exited with 3"


def test_csv_of_a_parity_record_has_a_row_for_each_side(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(report("csv", PARITY, capsys=capsys))))
    sides = {row["side"]: row for row in rows if row["id"] == "Qwen3-0.6B-4bit-decode-r1"}
    assert sides["candidate"]["backend"] == "nuvec"
    assert (sides["baseline"]["backend"], sides["baseline"]["version"]) == ("mlx-lm", "0.32.2")
    quotient = float(sides["candidate"]["tok_s [tok/s]"]) / float(sides["baseline"]["tok_s [tok/s]"])
    assert quotient == pytest.approx(float(sides["candidate"]["tok_s_ratio [ratio]"]))


def test_a_text_that_a_spreadsheet_would_run_is_only_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "r.json", run(result("a", None, reason="=HYPERLINK(1)\nmore")))
    (row,) = csv.DictReader(io.StringIO(report("csv", path, capsys=capsys)))
    assert row["reason"] == "'=HYPERLINK(1)"


@pytest.mark.parametrize("kind", RENDER)
def test_every_report_is_made_of_every_kind_of_record(kind: str, tmp_path: Path) -> None:
    files = sorted(CSV_FOLDER.glob("*.csv"))
    assert command("import", *files, "--out", tmp_path / "old.json") == 0
    assert command("report", tmp_path / "old.json", PARITY, "--format", kind, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize(("name", "its_unit"), [("tok_s", "tok/s"), ("ttft_s", "s"), ("x_tokens", "tokens"), ("x", "")])
def test_a_metrics_unit_is_in_its_name(name: str, its_unit: str) -> None:
    assert unit_of(name) == its_unit


def test_the_page_says_the_verdict_first(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = report("md", saved, capsys=capsys)
    assert text.startswith("## LLM benchmarks: error\n\n1 error, 1 passed.\n")
    assert text.index("the server exited with 3") < text.index("41.0")


def test_the_page_of_a_parity_record_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    text = report("md", PARITY, capsys=capsys)
    assert text.startswith("## LLM benchmarks: failed")
    assert "| `Qwen3-0.6B-4bit-concurrency-4` | failed |" in text
    assert "ratio 0.9798, gate 0.98" in text


def test_the_page_stays_under_its_size_and_escapes_what_others_wrote(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script> | x\n\n# heading"
    results = [result(f"e{number}", SPEED, outcome="failed", reason=bad * 3) for number in range(600)]
    text = page(load([save(tmp_path / "run.json", run(*results))]))
    assert len(text.encode()) < markdown.MOST_BYTES
    assert "more." in text
    assert "<script>" not in text


def test_the_page_stays_under_its_size_with_a_comparison_and_many_records(tmp_path: Path) -> None:
    names = [f"entry-{number}-with-a-long-name" for number in range(400)]
    slow = {"decode_tok_s": [4.0, 4.1, 4.2]}
    old = load([save(tmp_path / "old.json", run(*(result(name, SPEED) for name in names)))])
    paths = [save(tmp_path / f"new{n}.json", run(*(result(name, slow) for name in names))) for n in range(3)]
    new = load([*paths, PARITY])
    text = page(new, compare(old, new, parse_limits("decode_tok_s:5%")))
    assert len(text.encode()) < markdown.MOST_BYTES < 60_001
    assert "Compared with the saved run: failed" in text
    assert "Parity:" in text


def test_the_page_compares_with_a_saved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = save(tmp_path / "new.json", run(result("a", {"decode_tok_s": [20.0, 20.5, 21.0]})))
    old = save(tmp_path / "old.json", run(result("a", SPEED)))
    assert command("report", new, "--format", "md", "--compare", old) == 0
    assert "## Compared with the saved run: failed" in capsys.readouterr().out


def test_a_report_never_overwrites_what_it_reads(saved: Path) -> None:
    assert command("report", saved, "--format", "md", "--out", saved) == 2
    assert command("report", saved, "--out", saved.with_suffix(".xyz")) == 2


def test_a_report_never_overwrites_a_record_of_the_folder_that_it_reads(tmp_path: Path) -> None:
    record = save(tmp_path / "run.json", run(result("a", SPEED)))
    before = record.read_bytes()
    assert command("report", tmp_path, "--format", "md", "--out", record) == 2
    assert record.read_bytes() == before


def test_a_comparison_that_a_report_has_no_place_for_is_wrong_use(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", saved, "--format", "csv", "--compare", saved) == 2
    assert "there is no comparison in a report csv; use --format md" in capsys.readouterr().err
