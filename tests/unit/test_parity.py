from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmbench.errors import MeasurementError
from pytest_llmbench.parity import (
    ParityModel,
    ParityPoint,
    ParityResult,
    Side,
    correctness_flags,
    judge,
    model_names,
)
from pytest_llmbench.parity_record import read_parity_record
from pytest_llmbench.parity_summary import summarize, summary_lines

RECORD = Path(__file__).parents[2] / "matrix/records/parity_m4_pro.json"


def result(section: str, point: str, metric: str, candidate: float | None, baseline: float | None) -> ParityResult:
    def side(value: float | None) -> Side | None:
        return None if value is None else Side(median=value, samples=(value,), unit="tok/s")

    return ParityResult(
        model="owner/tiny",
        name="tiny",
        kind="dense",
        section=section,
        point=point,
        metric=metric,
        candidate=side(candidate),
        baseline=side(baseline),
        reason="" if candidate and baseline else "the side exited",
        gated=section != "memory",
    )


def model(*points: ParityPoint) -> ParityModel:
    return ParityModel(id="owner/tiny", name="tiny", kind="dense", snapshot=None, status="ok", reason="", points=points)


@pytest.mark.parametrize(
    ("section", "point", "metric", "name", "key"),
    [
        ("decode", "r1", "tok_s", "tiny-decode-r1-tok_s", "decode"),
        ("ttft", "r40", "prefill_tok_s", "tiny-ttft-r40-prefill_tok_s", "prefill_legacy"),
        ("ttft", "2048", "ttft_s", "tiny-ttft-2048-ttft_s", "ttft_2048"),
        ("memory", "decode", "peak_bytes", "tiny-memory-decode-peak_bytes", "memory"),
        ("load", "warm", "model_ready_s", "tiny-load-warm-model_ready_s", "load_warm"),
        ("concurrency", "4", "wall_s", "tiny-concurrency-4-wall_s", "concurrency_4"),
    ],
)
def test_a_result_has_a_test_id_and_a_key_in_the_summary(
    section: str, point: str, metric: str, name: str, key: str
) -> None:
    item = result(section, point, metric, 1.0, 1.0)
    assert (item.id, item.key) == (name, key)
    assert item.keywords == ("owner/tiny", f"section:{section}")


def test_models_that_share_a_name_keep_their_owner_in_test_ids() -> None:
    names = model_names(["a/tiny", "b/tiny", "b/small", "local"])
    assert names == {"a/tiny": "a/tiny", "b/tiny": "b/tiny", "b/small": "small", "local": "local"}


@pytest.mark.parametrize(
    ("candidate", "baseline", "reason", "failed"),
    [
        (None, 1.0, "it exited", True),
        (1.0, None, "baseline: it exited", False),
        (None, None, "no purge without sudo", False),
        (None, None, "baseline: it exited; candidate: killed", True),
        (None, None, "candidate: killed", True),
        (None, None, "baseline: it said candidate: killed", False),
    ],
)
def test_a_gap_on_the_candidates_side_is_its_failure_where_the_baseline_or_the_reason_says_so(
    candidate: float | None, baseline: float | None, reason: str, failed: bool
) -> None:
    item = replace(result("decode", "r1", "tok_s", candidate, baseline), reason=reason)
    assert (item.ratio, judge(item, 0.98), item.candidate_failed) == (None, None, failed)


def test_a_side_of_zero_gives_no_verdict() -> None:
    with pytest.raises(MeasurementError, match="candidate is 0"):
        judge(result("decode", "r1", "tok_s", 0.0, 1.0), 0.98)


def test_the_saved_record_fails_its_gate_in_exactly_nine_results() -> None:
    record = read_parity_record(RECORD)
    verdicts = {item.id: judge(item, record.gate) for item in record.results if item.gated}
    assert {name for name, verdict in verdicts.items() if verdict is not None and not verdict.passed} == {
        "Qwen3-0.6B-4bit-concurrency-4-wall_s",
        "Qwen3-0.6B-4bit-concurrency-4-aggregate_tok_s",
        "Qwen3-0.6B-4bit-concurrency-4-decode_aggregate_tok_s",
        "Qwen3-30B-A3B-4bit-concurrency-4-decode_aggregate_tok_s",
        "Qwen3.6-35B-A3B-4bit-concurrency-1-decode_aggregate_tok_s",
        "Qwen3.6-35B-A3B-4bit-concurrency-4-wall_s",
        "Qwen3.6-35B-A3B-4bit-concurrency-4-aggregate_tok_s",
        "Qwen3.6-35B-A3B-4bit-concurrency-4-decode_aggregate_tok_s",
        "Qwen3.6-35B-A3B-4bit-concurrency-8-decode_aggregate_tok_s",
    }
    assert sum(verdict is None for verdict in verdicts.values()) == 26
    assert sum(verdict is not None for verdict in verdicts.values()) == 254


def test_a_ratio_that_only_displays_as_the_goal_is_below_it() -> None:
    summary = read_parity_record(RECORD).summary()
    close = [item for item in summary.below_goal if item.key == "decode" and item.model.endswith("Qwen3.8-27B-4bit")]
    assert [(item.ratio < 1.0, round(item.ratio, 4)) for item in close] == [(True, 1.0)]


def test_a_goal_just_under_the_ratio_lists_nothing() -> None:
    items = [result("decode", "r1", "tok_s", 0.99996, 1.0)]
    assert [item.ratio for item in summarize(items, 0.98, 1.0).below_goal] == [0.99996]
    assert summarize(items, 0.98, 0.99996).below_goal == ()


def test_an_empty_section_has_a_mean_without_value() -> None:
    summary = summarize([result("decode", "r1", "tok_s", 2.0, 1.0)], 0.98, 1.0)
    assert summary.to_json()["decode_geomean"] == {"value": 2.0, "n": 1}
    assert summary.to_json()["memory_geomean"] == {"value": None, "n": 0}
    assert summary.to_json()["ttft_geomean"] == {}


def test_prefill_of_one_repeat_is_in_no_geometric_mean() -> None:
    items = [result("ttft", point, "prefill_tok_s", 2.0, 1.0) for point in ("r1", "r40", "r160")]
    assert summarize(items, 0.98, 1.0).to_json()["ttft_geomean"] == {"legacy_prefill": {"value": 2.0, "n": 2}}


def test_memory_is_below_no_gate_unless_it_is_gated() -> None:
    assert summarize([result("memory", "load", "peak_bytes", 2.0, 1.0)], 0.98, 1.0).below_gate == ()


@pytest.mark.parametrize(
    ("point", "flags"),
    [
        (
            ParityPoint(section="decode", name="r1", results=(), prompt_tokens=(25, 26)),
            ("owner/tiny decode r1: candidate read 25 prompt tokens, baseline 26",),
        ),
        (ParityPoint(section="decode", name="r1", results=(), prompt_tokens=(25, None)), ()),
        (
            ParityPoint(section="concurrency", name="1", results=(), matches_solo=False),
            ("owner/tiny concurrency 1: a batch of one differs from solo output",),
        ),
        (ParityPoint(section="concurrency", name="4", results=(), matches_solo=False), ()),
    ],
)
def test_points_that_cannot_be_compared_are_flagged(point: ParityPoint, flags: tuple[str, ...]) -> None:
    assert correctness_flags([model(point)]) == flags


def test_terminal_lines_name_counts_means_and_what_lies_below() -> None:
    lines = summary_lines(read_parity_record(RECORD).summary())
    assert lines[0] == "254 gated results, 9 below gate 0.98, 26 not measured"
    assert lines[1] == "batched output equals solo output at 19 of 36 points"
    assert "geomean decode           1.0088  (n 36)" in lines
    assert "below gate: concurrency_4 mlx-community/Qwen3-0.6B-4bit 0.9798" in lines
    assert lines[-1].startswith("below goal 1: concurrency_4 6, concurrency_8 5, decode 18")


def test_geometric_means_stand_in_the_order_of_their_numbers() -> None:
    items = [result("concurrency", level, "aggregate_tok_s", 1.0, 1.0) for level in ("8", "16", "1")]
    assert [name for name, _ in summarize(items, 0.98, 1.0).concurrency] == ["1", "8", "16"]
