"""A run.json that was damaged inside: refused with file and JSON path, or readable by everything that reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from record_kit import command
from run_examples import run

from pytest_llmbench.compare import compare, parse_limits
from pytest_llmbench.errors import RecordError, UsageError
from pytest_llmbench.figures import Loaded, load
from pytest_llmbench.history import METRICS, all_series
from pytest_llmbench.record import dumps
from pytest_llmbench.report_files import RENDER

WHOLE = dumps(run().to_json())
GONE = object()
anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3),
    st.just("\ud800"), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.none(), max_size=2),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in members for found in [(*path, key), *places(inner, (*path, key))]]


def damaged(path: tuple[Any, ...], value: Any) -> Any:
    data = json.loads(WHOLE)
    *above, last = path
    inner = data
    for key in above:
        inner = inner[key]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return data


def use(now: Loaded, before: Loaded) -> None:
    """All that is done with saved runs."""
    found = []
    for old, new in ((before, now), (now, before)):
        try:
            found.append(compare(old, new, parse_limits("decode_tok_s:5%,ttft_s:10%")))
        except UsageError:
            continue
    for render in RENDER.values():
        for comparison in (None, *found):
            assert render(now, comparison).encode()
    all_series(now.subjects, METRICS)


@given(st.data())
@hypothesis_settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)
def test_a_damaged_run_is_refused_or_used_by_everything(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("shape")
    (folder / "whole.json").write_text(WHOLE)
    path = data.draw(st.sampled_from(places(json.loads(WHOLE))))
    value = data.draw(st.just(GONE) | anything)
    (folder / "run.json").write_text(dumps(damaged(path, value)))
    try:
        now = load([folder / "run.json"])
    except RecordError:
        return
    use(now, load([folder / "whole.json"]))


MEASURED = ("results", 0, "measurement")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("created",), "yesterday", "created: 'yesterday' is no time in UTC"),
        (("created",), "2026-01-31T12:00:00.000+01:00", "is no time in UTC"),
        (("results", 0, "entry"), {}, "results[0].entry: missing key 'id'"),
        (("results", 0, "entry", "id"), ["a"], "results[0].entry.id: expected a string, found an array"),
        (("results", 0, "verdicts"), ["a"], "results[0].verdicts[0]: expected an object"),
        ((*MEASURED, "target"), None, "results[0].measurement.target: expected an object, found null"),
        ((*MEASURED, "metrics", "ttft_s"), "1", 'measurement.metrics.ttft_s: expected a number, found "1"'),
        ((*MEASURED, "samples", 0, "invalid"), GONE, "measurement.samples[0]: missing key 'invalid'"),
        ((*MEASURED, "level"), 3, "measurement.samples: has 2 of 3 requests in each of 0 rounds"),
        (("results", 0, "verdicts", 0, "ratio"), None, "results[0].verdicts[0].ratio: is null, but it is what decides"),
        (("results", 0, "verdicts", 0, "metric"), None, "verdicts[0].metric: expected a string, found null"),
        ((*MEASURED, "level"), "3", 'measurement.level: expected a whole number, found "3"'),
        ((*MEASURED, "conditions"), "x", 'measurement.conditions: expected an object, found "x"'),
    ],
)
def test_the_message_says_where_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: tuple[Any, ...], value: Any, said: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(dumps(damaged(path, value)))
    assert command("report", file) == 2
    assert f"llmbench: {file}: " in (printed := capsys.readouterr().err)
    assert said in printed
