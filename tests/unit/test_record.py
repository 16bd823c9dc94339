"""run.json: written whole, read strictly, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from run_examples import SECRET, entry, run

from pytest_llmbench.errors import RecordError
from pytest_llmbench.record import SCHEMA, Result, Run, dumps, entry_json, loads, read_run, write_json

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
RUN_JSON = dumps(
    Run(
        created="2026-01-31T12:00:00.000+00:00",
        environment={},
        options={},
        results=(Result(nodeid="a", outcome="passed", duration_s=1, finished_at="now", verdicts=[]),),
    ).to_json()
)


def read_back(path: Path, data: object) -> Run:
    write_json(path, data)
    return read_run(path)


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    whole = run()
    assert dumps(read_back(tmp_path / "deep" / "run.json", whole.to_json()).to_json()) == dumps(whole.to_json())


def test_the_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": 1})
    before = path.stat().st_ino
    write_json(path, {"new": 1})
    assert json.loads(path.read_text()) == {"new": 1}
    assert path.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), object()])
def test_what_json_does_not_know_is_refused_and_the_old_file_stays(tmp_path: Path, value: object) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(path, {"x": value})
    assert json.loads(path.read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


@given(st.text(st.characters(), max_size=20))
def test_any_text_can_be_written_as_utf8_and_read_again(text: str) -> None:
    assert json.loads(dumps({"x": text}).encode("utf-8"))["x"] == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass"
    )


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "{", "", "[" * 100_000])
def test_numbers_that_are_none_and_broken_json_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        loads(text)
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run\.json"):
        read_run(path)


def test_a_missing_file_and_bytes_that_are_no_text_are_record_errors(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="gone"):
        read_run(tmp_path / "gone.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="binary"):
        read_run(tmp_path / "binary.json")


@pytest.mark.parametrize("schema", ["llmbench-parity-record", None, 3])
def test_another_schema_is_refused_by_name(tmp_path: Path, schema: object) -> None:
    with pytest.raises(RecordError, match=f"schema is {schema!r}, not '{SCHEMA}'"):
        read_back(tmp_path / "x.json", json.loads(RUN_JSON) | {"schema": schema})


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_another_version_is_refused_by_number(tmp_path: Path, version: object) -> None:
    with pytest.raises(RecordError, match=f"version {version!r}; this release reads 1"):
        read_back(tmp_path / "x.json", json.loads(RUN_JSON) | {"schema_version": version})


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) of a value, itself not included."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in pairs for place in [(data, key), *_places(value)]]


@given(st.data())
@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_run_is_read_or_refused_with_a_record_error(data: st.DataObject) -> None:
    mutated = json.loads(RUN_JSON)
    container, key = data.draw(st.sampled_from(_places(mutated)))
    if data.draw(st.booleans()):
        container[key] = data.draw(anything)
    else:
        del container[key]
    try:
        read = Run.from_json(mutated, path=Path("m.json"))
    except RecordError:
        return
    assert read.to_json()["results"] == [Result.from_json(r).to_json() for r in mutated["results"]]


@given(anything)
def test_any_json_is_refused_unless_it_is_a_run(data: object) -> None:
    with pytest.raises(RecordError):
        Run.from_json(data, path=Path("m.json"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": "green"}, "outcome is 'green'"),
        ({"duration_s": "1"}, "duration_s is '1'"),
        ({"duration_s": True}, "duration_s is True"),
        ({"surprise": 1}, "unknown surprise"),
        ({"entry": []}, r"entry is \[\]"),
    ],
)
def test_a_wrong_result_says_what_is_wrong(change: dict[str, object], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        Result.from_json(json.loads(RUN_JSON)["results"][0] | change)


def test_no_secret_of_an_entry_reaches_the_record() -> None:
    hidden = entry(api_key=SECRET, env=(("HF_TOKEN", SECRET),), extra_args=("--api-key", SECRET))
    assert SECRET not in dumps(entry_json(hidden))
    assert SECRET not in dumps(run().to_json())
