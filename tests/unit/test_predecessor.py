"""`llmbench import`: the predecessor's CSV becomes a valid run, its unsound figures are marked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import CSV_FOLDER, command, save

from pytest_llmbench.errors import RecordError
from pytest_llmbench.predecessor import NUMBERS, TEXT, import_csv, read_rows
from pytest_llmbench.record import Run, read_run

FILES = sorted(CSV_FOLDER.glob("*.csv"))
WITHOUT_MODEL = CSV_FOLDER / "bench_20260402_005026.csv"
CONTEXT = CSV_FOLDER / "bench_20260403_154616.csv"
VLLM = CSV_FOLDER / "bench_20260514_112658.csv"


def suspicions(run: Run) -> dict[str, list[str]]:
    return {
        f"{r.entry['id']}-{r.prompt}": r.measurement["suspicions"]
        for r in run.results
        if r.entry is not None and r.measurement is not None
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_becomes_a_valid_run_that_reads_back(path: Path, tmp_path: Path) -> None:
    assert command("import", path, "--out", tmp_path / "run.json") == 0
    run = read_run(tmp_path / "run.json")
    save(tmp_path / "checked.json", run)
    rows = read_rows(path)
    assert sum(len(r.measurement["samples"]) for r in run.results if r.measurement) == len(rows)


def test_each_column_gets_the_name_that_it_deserves() -> None:
    run = import_csv([WITHOUT_MODEL])
    metrics = run.results[0].measurement["metrics"] if run.results[0].measurement else {}
    assert metrics["ttft_s"] == pytest.approx(6.0413)  # the first, cold one
    assert metrics["ttft_cached_s"] == pytest.approx(0.2167, abs=0.02)
    assert metrics["load_s"] == 16.0
    assert metrics["peak_memory_bytes"] == pytest.approx(1417 * 2**20, rel=0.01)
    assert run.created == "2026-04-02T00:50:26.000+00:00"


def test_zero_is_not_measured() -> None:
    (first, *_) = import_csv([CONTEXT]).results
    assert first.measurement is not None
    assert first.measurement["metrics"]["ttft_s"] is None


def test_cached_prefill_above_what_a_chip_can_do_is_marked() -> None:
    (odd,) = suspicions(import_csv([CONTEXT])).values()
    assert any("above the chip's ceiling" in text and "387,376 tok/s" in text for text in odd)


def test_memory_that_misses_metal_is_marked() -> None:
    odd = suspicions(import_csv([VLLM]))
    assert any("583 MiB is less than the weights (16,689 MiB)" in text for text in odd["T_VM_O1-short"])


def test_guessed_prompt_tokens_and_a_load_within_the_first_answer_are_marked() -> None:
    odd = suspicions(import_csv([WITHOUT_MODEL]))["A_Q8_1-short"]
    assert any("not counted" in text for text in odd)
    assert any("the first answer took 6.0 s" in text for text in odd)


def test_files_of_one_named_machine_are_comparable_and_others_are_not() -> None:
    a, b = (import_csv([path], machine="Apple M4 Max").environment["fingerprint"] for path in (CONTEXT, VLLM))
    assert a == b
    assert import_csv([CONTEXT]).environment["fingerprint"] != import_csv([VLLM]).environment["fingerprint"]


HEAD = ",".join((*TEXT, *NUMBERS))
ROW = ",".join(["a", "A", "mlx-lm", "MLX", "4bit", "default", "short", "1", *["1"] * len(NUMBERS)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks columns"),
        (f"{HEAD}\n{ROW}\n".replace(",", ";"), ":1: its cells stand between semicolons, not commas"),
        (f"{HEAD}\n{ROW}\n".replace(",", "\t"), ":1: its cells stand between tabs"),
        (f"{HEAD}\n{ROW[:-1]}1e300\n", ":2: peak_mem_mb is '1e300', not a number of 0 or more, and below 1e+12"),
        (f'{HEAD}\n{ROW[:-1]}"1,234.5"\n', ":2: peak_mem_mb is '1,234.5'"),
        ("a,b\n1,2\n", "lacks test_id"),
        (f"{HEAD},more\n{ROW},1\n", "has more"),
        (f"{HEAD}\n", "no rows"),
        (f"{HEAD}\n{ROW},1,2\n", ":2: not as many cells"),
        (f"{HEAD}\n{ROW[:-2]}\n", ":2: not as many cells"),
        (f"{HEAD}\n{ROW[:-1]}x\n", ":2: peak_mem_mb is 'x'"),
        (f"{HEAD}\n{ROW[:-1]}nan\n", "not a number of 0 or more"),
        (f"{HEAD}\n{ROW[:-1]}-1\n", "not a number of 0 or more"),
        (f"{HEAD}\n<script>{ROW}\n", "are no names"),
    ],
)
def test_what_is_no_such_file_is_refused_with_its_line(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.csv"
    path.write_text(text, encoding="utf-8")
    assert command("import", path, "--out", tmp_path / "run.json") == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_a_byte_order_mark_dont_matter(tmp_path: Path, encoding: str, end: str) -> None:
    path = tmp_path / "bench.csv"
    path.write_bytes(f"{HEAD}{end}{ROW}{end}".encode(encoding))
    assert [row["test_id"] for row in read_rows(path)] == ["a"]


@given(st.binary(max_size=200))
def test_no_bytes_give_anything_but_rows_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(HEAD.encode() + b"\n" + data)
    with suppress(RecordError):
        assert isinstance(read_rows(path), list)
