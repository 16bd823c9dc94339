"""Where `llmbench` writes: the whole file or the old one, a clear error, and no escape sequence to the terminal."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from record_kit import PARITY, command, require_report_extra, result, run, save

LLMBENCH = [sys.executable, "-m", "pytest_llmbench"]


def at_most(size: int) -> None:
    """As on a full disk: writing beyond so many bytes fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def llmbench(*words: object, limit: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LLMBENCH, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=60, encoding="utf-8",
        env=os.environ | environment, preexec_fn=None if limit is None else lambda: at_most(limit),
    )  # fmt: skip


@pytest.mark.parametrize("words", [["report", PARITY, "--format", "html"], ["merge", PARITY, PARITY]])
def test_what_cant_be_written_whole_leaves_the_old_file_and_says_so(tmp_path: Path, words: list[object]) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    done = llmbench(*words, "--out", out, limit=10_000)
    assert done.returncode == 2
    assert done.stderr == f"llmbench: --out {out}: can't be written (File too large); name another file\n"
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_that_is_a_file_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert command("report", PARITY, "--out", tmp_path / "file" / "x.md") == 2
    assert "can't be written" in capsys.readouterr().err


def test_an_ending_that_names_no_report_asks_for_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", PARITY, "--out", tmp_path / "x.txt") == 2
    assert "x.txt: its ending names no report; add --format html|md|" in capsys.readouterr().err


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert command("report", PARITY, "--format", "md", "--out", pipe) == 0
        assert reader.stdout is not None
        assert reader.stdout.read().startswith(b"## LLM benchmarks: failed")
    assert pipe.is_fifo()


def test_a_link_stays_a_link_to_the_new_report(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    link = tmp_path / "latest.md"
    link.symlink_to(Path("kept") / "today.md")
    assert command("report", PARITY, "--out", link) == 0
    assert link.is_symlink()
    assert (tmp_path / "kept" / "today.md").read_text().startswith("## LLM benchmarks")


def test_a_name_with_an_escape_sequence_is_shown_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b]0;owned\x07\nregression \u202e b"
    paths = [save(tmp_path / f"{n}.json", run(result(hostile, {"decode_tok_s": [n] * 3}))) for n in (9.0, 1.0)]
    assert command("compare", *paths) == 1
    printed = capsys.readouterr().out
    assert "a ]0;owned  regression   b-short" in printed
    assert all(line.isprintable() for line in printed.splitlines())


def test_history_prints_its_bars_on_a_terminal_that_lacks_them(tmp_path: Path) -> None:
    require_report_extra()
    for day in range(1, 10):
        save(
            tmp_path / f"{day}.json",
            run(result("a", {"decode_tok_s": [10.0 * day]}), created=f"2026-01-{day:02}T00:00:00.000+00:00"),
        )
    done = llmbench("history", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2588" in done.stdout


def test_a_pipe_among_the_records_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "lost.json").symlink_to(tmp_path / "nowhere")
    save(tmp_path / "run.json", run(result("a", {"decode_tok_s": [1.0]})))
    assert command("history", tmp_path) == 0
    printed = capsys.readouterr().out
    assert f"not read: {tmp_path / 'pipe.json'}: no file" in printed
    assert f"not read: {tmp_path / 'lost.json'}: no file" in printed
