from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench import verdict
from pytest_llmbench.errors import MeasurementError, UsageError
from pytest_llmbench.verdict import Outcome

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("load_s", "lower"),
        ("ttft_s", "lower"),
        ("ttft_cached_s", "lower"),
        ("ttfv_s", "lower"),
        ("itl_p95_s", "lower"),
        ("wall_s", "lower"),
        ("model_ready_s", "lower"),
        ("first_token_s", "lower"),
        ("prefill_tok_s", "higher"),
        ("decode_tok_s", "higher"),
        ("tok_s", "higher"),
        ("aggregate_tok_s", "higher"),
        ("decode_aggregate_tok_s", "higher"),
        ("peak_memory_bytes", "lower"),
        ("peak_bytes", "lower"),
        ("os_peak_rss_bytes", "lower"),
    ],
)
def test_the_unit_in_a_metrics_name_tells_which_way_is_better(metric: str, better: str) -> None:
    assert verdict.direction(metric) == better


@pytest.mark.parametrize("metric", ["thinking_tokens", "speed", ""])
def test_a_metric_without_a_direction_is_refused_by_name(metric: str) -> None:
    with pytest.raises(UsageError, match=f"metric {metric!r}"):
        verdict.direction(metric)
    with pytest.raises(UsageError):
        verdict.ratio(metric, None, None)


@given(POSITIVE, POSITIVE)
def test_a_ratio_above_one_is_always_better_for_the_candidate(candidate: float, baseline: float) -> None:
    rate = verdict.ratio("decode_tok_s", candidate, baseline)
    time = verdict.ratio("wall_s", candidate, baseline)
    size = verdict.ratio("peak_bytes", candidate, baseline)
    assert rate is not None
    assert time is not None
    assert (rate, time) == (candidate / baseline, baseline / candidate)
    assert size == time
    assert (rate >= 1) == (candidate >= baseline)
    assert (time >= 1) == (candidate <= baseline)


@pytest.mark.parametrize(("candidate", "baseline"), [(None, 1.0), (1.0, None), (None, None)])
def test_a_missing_side_gives_no_ratio(candidate: float | None, baseline: float | None) -> None:
    assert verdict.ratio("wall_s", candidate, baseline) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_side_that_is_no_positive_number_is_named(bad: float) -> None:
    with pytest.raises(MeasurementError, match="wall_s: candidate is"):
        verdict.ratio("wall_s", bad, 1.0)
    with pytest.raises(MeasurementError, match="wall_s: baseline is"):
        verdict.ratio("wall_s", 1.0, bad)


@pytest.mark.parametrize(("candidate", "baseline"), [(1e-300, 1e300), (1e300, 1e-300)])
def test_a_ratio_beyond_a_doubles_range_is_an_error(candidate: float, baseline: float) -> None:
    with pytest.raises(MeasurementError, match="no finite ratio"):
        verdict.ratio("tok_s", candidate, baseline)


@given(st.lists(POSITIVE, min_size=1, max_size=9), st.lists(POSITIVE, min_size=1, max_size=9), st.floats(0.1, 2))
def test_point_passes_exactly_when_the_unrounded_ratio_reaches_the_gate(
    candidate: list[float], baseline: list[float], gate: float
) -> None:
    result = verdict.point(candidate, baseline, "wall_s", gate)
    assert result.ratio is not None
    assert result.passed == (result.ratio >= gate)
    assert result.n == min(len(candidate), len(baseline))


@pytest.mark.parametrize(("candidate", "outcome"), [(97.996, Outcome.FAILED), (98.0, Outcome.PASSED)])
def test_a_ratio_that_only_rounds_to_the_gate_fails(candidate: float, outcome: Outcome) -> None:
    assert verdict.point([candidate], [100.0], "tok_s", 0.98).outcome is outcome


def test_point_compares_medians_so_one_outlier_changes_nothing() -> None:
    result = verdict.point([100.0, 101.0, 1e6], [100.0, 101.0, 102.0], "tok_s", 0.98)
    assert (result.value, result.reference, result.ratio) == (101.0, 101.0, 1.0)


@pytest.mark.parametrize("gate", [0.0, -1.0, math.nan, math.inf])
def test_a_gate_that_is_no_positive_number_is_wrong_use(gate: float) -> None:
    with pytest.raises(UsageError, match="gate is"):
        verdict.point([1.0], [1.0], "tok_s", gate)


def test_point_without_samples_is_an_error_not_a_failure() -> None:
    with pytest.raises(MeasurementError, match="no values"):
        verdict.point([], [1.0], "tok_s", 0.98)


@pytest.mark.parametrize(
    ("value", "limits", "outcome"),
    [
        (40.0, {"at_least": 40.0}, Outcome.PASSED),
        (39.999, {"at_least": 40.0}, Outcome.FAILED),
        (40.0, {"at_most": 40.0}, Outcome.PASSED),
        (40.001, {"at_most": 40.0}, Outcome.FAILED),
        (0.0, {"at_most": 40.0}, Outcome.PASSED),
    ],
)
def test_threshold_includes_its_limit(value: float, limits: dict[str, float], outcome: Outcome) -> None:
    assert verdict.threshold("decode_tok_s", value, **limits).outcome is outcome


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_threshold_on_what_was_not_measured_is_an_error_not_a_failure(value: float | None) -> None:
    with pytest.raises(MeasurementError, match="decode_tok_s wasn't measured"):
        verdict.threshold("decode_tok_s", value, at_least=1.0)


@pytest.mark.parametrize("limits", [{}, {"at_least": 1.0, "at_most": 2.0}, {"at_least": math.nan}])
def test_threshold_takes_exactly_one_finite_limit(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        verdict.threshold("decode_tok_s", 1.0, **limits)


def test_a_message_tells_metric_sides_ratio_gate_and_n() -> None:
    result = verdict.point([0.666, 0.667, 0.668], [0.653, 0.654], "wall_s", 0.98)
    assert result.message(candidate="ours", baseline="mlx-lm") == (
        "wall_s failed: ours 667 ms, mlx-lm 654 ms, ratio 0.9798, gate 0.98, n = 2"
    )


def test_a_message_shows_interval_and_reason_where_there_are_any() -> None:
    result = verdict.Verdict(
        outcome=Outcome.INCONCLUSIVE,
        metric="tok_s",
        value=99.0,
        reference=100.0,
        ratio=0.99,
        interval=(0.97, 1.01),
        gate=0.98,
        n=5,
        reason="out of rounds",
    )
    assert result.message() == (
        "tok_s inconclusive: candidate 99.0 tok/s, baseline 100.0 tok/s, ratio 0.9900 "
        "(interval 0.9700 to 1.0100), gate 0.98, n = 5, out of rounds"
    )
    assert result.passed
    assert not replace(result, ratio=0.97).passed


def test_a_message_of_a_threshold_tells_value_and_limit_with_units() -> None:
    message = verdict.threshold("peak_memory_bytes", 2 * 1024**3, at_most=1024**3).message()
    assert message == "peak_memory_bytes failed: 2.00 GiB, gate at most 1.00 GiB, n = 1"


def test_a_value_that_prints_like_its_limit_is_printed_in_full() -> None:
    message = verdict.threshold("decode_tok_s", 39.999, at_least=40.0).message()
    assert "40.0 tok/s (39.999), gate at least 40.0 tok/s (40.0)" in message


@pytest.mark.parametrize(
    ("value", "gate", "text"),
    [
        (0.97996, 0.98, "0.97996"),
        (0.9799999, 0.98, "0.9799999"),
        (0.98003, 0.98, "0.98003"),
        (0.99996, 1.0, "0.99996"),
        (0.98, 0.98, "0.9800"),
        (1.2345678, 0.98, "1.2346"),
    ],
)
def test_a_ratio_is_printed_with_as_many_digits_as_tell_it_from_the_gate(value: float, gate: float, text: str) -> None:
    assert verdict.ratio_text(value, gate) == text


@given(st.floats(min_value=0.01, max_value=100), st.floats(min_value=0.01, max_value=100))
def test_a_printed_ratio_equals_the_gate_only_if_it_is_the_gate(value: float, gate: float) -> None:
    if value != gate:
        assert float(verdict.ratio_text(value, gate)) != gate
