"""`llmbench compare`: what got worse fails, what is missing is named, and what can't be compared is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_kit import PARITY, command, measured, result, run, save, slowed

from pytest_llmbench import markdown
from pytest_llmbench.compare import Limit, compare, judge, parse_limits
from pytest_llmbench.compare_text import page
from pytest_llmbench.errors import UsageError
from pytest_llmbench.figures import Values, load, measured_values
from pytest_llmbench.matrix import ROUND_METRICS
from pytest_llmbench.verdict import Outcome, direction

SPEED = [50.0, 50.2, 50.4]
METRICS = st.sampled_from(["decode_tok_s", "ttft_s", "peak_memory_bytes", "tok_s_ratio"])


def times(factor: float) -> list[float]:
    return [factor * value for value in SPEED]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    saved = run(result("a", {"decode_tok_s": SPEED, "ttft_s": SPEED}), result("b", {"decode_tok_s": SPEED}))
    return save(tmp_path / "old.json", saved)


def new(tmp_path: Path, **metrics: list[float]) -> Path:
    """A run whose entry `a` has these figures."""
    kept = {"decode_tok_s": SPEED, "ttft_s": SPEED} | metrics
    return save(tmp_path / "new.json", run(result("a", kept), result("b", {"decode_tok_s": SPEED})))


def test_the_same_run_is_no_regression(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("compare", old, old) == 0
    assert capsys.readouterr().out.startswith("0 regressions")


def test_slower_decode_is_a_regression_and_faster_is_not(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("compare", old, new(tmp_path, decode_tok_s=times(0.9)), "--fail", "decode_tok_s:5%") == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("a-short"))
    assert "-10.0%" in line
    assert line.endswith("worse")
    assert command("compare", old, new(tmp_path, decode_tok_s=times(1.1)), "--fail", "decode_tok_s:5%") == 0
    assert "1 improved" in capsys.readouterr().out


def test_more_seconds_are_worse_and_fewer_are_not(old: Path, tmp_path: Path) -> None:
    assert command("compare", old, new(tmp_path, ttft_s=times(1.2)), "--fail", "ttft_s:10%") == 1
    assert command("compare", old, new(tmp_path, ttft_s=times(0.8)), "--fail", "ttft_s:10%") == 0


def test_only_the_metrics_with_a_limit_can_fail(old: Path, tmp_path: Path) -> None:
    assert command("compare", old, new(tmp_path, ttft_s=times(3)), "--fail", "decode_tok_s:5%") == 0


@given(METRICS, st.floats(0.001, 0.9), st.floats(0.1, 10))
def test_the_limit_is_met_exactly_where_the_metric_is_worse_by_it(metric: str, share: float, start: float) -> None:
    limit = Limit(metric=metric, share=share)
    sign = -1 if direction(metric) == "higher" else 1
    inside, outside = (Values(value=start * (1 + sign * share * factor)) for factor in (0.999, 1.001))
    assert judge(Values(value=start), inside, limit).passed
    assert not judge(Values(value=start), outside, limit).passed


def test_scattered_samples_are_inconclusive_and_the_ratio_decides() -> None:
    limit = Limit(metric="decode_tok_s", share=0.05)
    scattered = Values(value=40.0, samples=(20.0, 40.0, 80.0))
    found = judge(Values(value=50.0, samples=tuple(SPEED)), scattered, limit)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert not found.passed


def test_a_round_of_several_requests_is_one_sample() -> None:
    found = measured({"ttft_s": [0.1, 0.3, 0.5, 0.7, 9.0, 9.0]}) | {"level": 2}
    walls = [(True, 1.0), (True, 2.0), (False, 3.0)]
    found["rounds"] = [{"valid": valid, "metrics": {"wall_s": wall}} for valid, wall in walls]
    found["metrics"] |= {"wall_s": 1.5}
    values = measured_values(found)
    assert values["ttft_s"].samples == pytest.approx((0.2, 0.6))
    assert values["wall_s"].samples == (1.0, 2.0)


def test_what_is_missing_on_a_side_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = save(tmp_path / "a.json", run(result("a", {"decode_tok_s": SPEED}), result("b", {"decode_tok_s": SPEED})))
    after = save(tmp_path / "b.json", run(result("a", {"decode_tok_s": SPEED}), result("c", {"decode_tok_s": SPEED})))
    assert command("compare", before, after) == 0
    out = capsys.readouterr().out
    assert "only in the old run: b-short" in out
    assert "only in the new run: c-short" in out
    assert command("compare", before, after, "--require") == 1


def test_what_was_measured_and_now_fails_to_run_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = save(tmp_path / "a.json", run(result("a", {"decode_tok_s": SPEED})))
    after = save(tmp_path / "b.json", run(result("a", None)))
    assert command("compare", before, after) == 1
    assert "lost: a-short: the server exited with 3" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["skipped", "xfailed"])
def test_what_is_skipped_now_is_named_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: str
) -> None:
    before = save(tmp_path / "a.json", run(result("a", {"decode_tok_s": SPEED}), result("b", {"decode_tok_s": SPEED})))
    gone = result("b", None, outcome=outcome, reason="no such server; fix: install it")
    after = save(tmp_path / "b.json", run(result("a", {"decode_tok_s": SPEED}), gone))
    assert command("compare", before, after) == 0
    assert f"only in the old run: b-short ({outcome}: no such server; fix: install it)" in capsys.readouterr().out


def test_other_machines_are_said(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = save(tmp_path / "n.json", run(result("a", {"decode_tok_s": SPEED}), chip="Apple M9"))
    command("compare", old, other)
    assert "→ Apple M9" in capsys.readouterr().out


def test_other_token_counts_are_said(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = measured({"decode_tok_s": SPEED})
    figures["metrics"]["completion_tokens"] = 3
    other = save(tmp_path / "n.json", run(result("a", {"decode_tok_s": SPEED}, measurement=figures)))
    command("compare", old, other)
    assert "completion_tokens was 7 and is 3: not the same work" in capsys.readouterr().out


def test_two_runs_with_nothing_in_common_are_wrong_use(old: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "n.json", run(result("z", {"decode_tok_s": SPEED})))
    assert command("compare", old, other) == 2
    assert command("compare", old, PARITY) == 2
    assert command("compare", old, old, "--fail", "load_bytes:5%") == 2  # nobody measured it


@pytest.mark.parametrize("what", ["no such file", "other.json", "empty"])
def test_what_is_no_record_is_wrong_use(
    old: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text('{"schema": "package"}')
    (tmp_path / "empty").mkdir()
    assert command("compare", old, tmp_path / what) == 2
    assert str(tmp_path / what) in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "decode_tok_s", "decode_tok_s:5", "speed:5%", "tok_s:-1%", "tok_s:100%", "a_s:x%"]
)
def test_limits_that_say_nothing_are_wrong_use(old: Path, text: str) -> None:
    assert command("compare", old, old, "--fail", text) == 2


def test_a_limit_stands_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_limits("tok_s:5%,tok_s:6%")


def test_a_folder_stands_for_the_records_in_it(tmp_path: Path) -> None:
    save(tmp_path / "x" / "run.json", run(result("a", {"decode_tok_s": SPEED})))
    assert command("compare", tmp_path / "x", tmp_path / "x" / "run.json") == 0


def test_after_an_upgrade_the_same_machine_is_still_compared_with_itself(tmp_path: Path) -> None:
    here, late = {"versions": {"mlx": "0.32.4"}}, "2026-02-01T00:00:00.000+00:00"
    old = load(
        [
            save(tmp_path / "here.json", run(result("a", {"decode_tok_s": [50.0]}), **here)),
            save(tmp_path / "other.json", run(result("a", {"decode_tok_s": [90.0]}), created=late, chip="Apple M9")),
        ]
    )
    upgraded = run(result("a", {"decode_tok_s": [40.0]}), versions={"mlx": "0.33.0"})
    found = compare(old, load([save(tmp_path / "new.json", upgraded)]), parse_limits("decode_tok_s:5%"))
    assert [change.verdict.reference for change in found.changes] == [50.0]
    assert found.environment == ("version of mlx: 0.32.4 → 0.33.0",)


def test_of_several_machines_the_same_one_is_compared(tmp_path: Path) -> None:
    here, there = run(result("a", {"decode_tok_s": SPEED})), run(result("a", {"decode_tok_s": times(9)}), chip="other")
    saved = load([save(tmp_path / "h.json", here), save(tmp_path / "t.json", there)])
    found = compare(saved, load([save(tmp_path / "n.json", here)]), parse_limits("decode_tok_s:1%"))
    assert [change.verdict.ratio for change in found.changes] == [1.0]
    assert found.environment == ()


def test_a_slower_candidate_is_found_in_a_parity_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("compare", PARITY, PARITY) == 0
    assert command("compare", PARITY, slowed(tmp_path / "p.json", 0.2), "--fail", "tok_s_ratio:5%,wall_s:5%") == 1
    out = capsys.readouterr().out
    assert "Qwen3-0.6B-4bit-decode-r1  " in out
    assert "Qwen3-0.6B-4bit-concurrency-4  " in out
    assert "worse" in out


def test_a_day_that_slows_both_sides_of_a_parity_record_is_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("compare", PARITY, slowed(tmp_path / "p.json", 0.2, sides=("nuvec", "mlx_lm"))) == 0
    assert capsys.readouterr().out.startswith("0 regressions, 0 improved, ")


def test_slower_requests_at_once_are_a_regression_by_default(tmp_path: Path) -> None:
    files = []
    for name, factor in (("before", 1.0), ("after", 0.9)):
        found = measured({"ttft_s": SPEED}) | {"level": 1}
        each = [dict.fromkeys(ROUND_METRICS) | {"aggregate_tok_s": rate} for rate in times(factor)]
        found["rounds"] = [{"valid": True, "metrics": metrics} for metrics in each]
        found["metrics"] |= {"aggregate_tok_s": times(factor)[1]}
        files.append(save(tmp_path / f"{name}.json", run(result("a", {}, outcome="passed", measurement=found))))
    assert command("compare", *files) == 1


def test_the_page_is_escaped_and_keeps_to_its_bytes(tmp_path: Path) -> None:
    names = [f"e{number}" for number in range(400)]
    bad = "</td><script>alert(1)</script>|\n| x"
    before = run(*(result(name, {"decode_tok_s": SPEED}) for name in names))
    after = run(*(result(n, {"decode_tok_s": times(0.5)}) for n in names[:-1]), result(names[-1], None, reason=bad))
    found = compare(
        load([save(tmp_path / "a.json", before)]),
        load([save(tmp_path / "b.json", after)]),
        parse_limits("decode_tok_s:5%"),
    )
    lines = page(found, room=9000)
    assert markdown.size(lines) < 9000
    assert "more." in "\n".join(lines)
    assert "<script>" not in "\n".join(page(replace(found, changes=())))
