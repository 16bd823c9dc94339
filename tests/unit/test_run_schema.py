"""The schema of run.json and of a journal's lines, against real runs and mutated ones."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from run_examples import run

from pytest_llmbench import journal
from pytest_llmbench.record import dumps
from pytest_llmbench.sample import SAMPLE_METRICS


@functools.cache
def schema() -> dict[str, Any]:
    text = files("pytest_llmbench").joinpath("schema/run.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@functools.cache
def example() -> str:
    return dumps(run().to_json())


def validator(definition: str | None = None) -> jsonschema.Draft202012Validator:
    part = schema() if definition is None else {"$ref": f"#/$defs/{definition}", "$defs": schema()["$defs"]}
    return jsonschema.Draft202012Validator(part)


def objects(data: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in a run, with its path."""
    if isinstance(data, dict):
        yield path, data
        for key, value in data.items():
            yield from objects(value, f"{path}.{key}")
    elif isinstance(data, list):
        for value in data:
            yield from objects(value, f"{path}[]")


def is_strict(path: str) -> bool:
    """Where the format is ours alone: hooks, options and conditions may hold anything."""
    return not any(open_part in path for open_part in (".environment", ".options", ".extra", ".conditions."))


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_run_of_real_dataclasses_is_valid() -> None:
    validator().validate(json.loads(example()))


def test_each_line_of_a_journal_is_valid(tmp_path: Path) -> None:
    whole = run()
    written = journal.Journal(
        tmp_path / "j", created=whole.created, environment=whole.environment, options=whole.options
    )
    for result in whole.results:
        written.write(result)
    written.close()
    head, *lines = (tmp_path / "j").read_text(encoding="utf-8").split("\n")[:-1]
    validator("journal_head").validate(json.loads(head))
    assert len(lines) == 2
    for line in lines:
        validator("result").validate(json.loads(line))


def test_an_unknown_member_is_refused_in_every_object_of_ours() -> None:
    data = json.loads(example())
    checked = 0
    for path, part in objects(data):
        if is_strict(path):
            part["surprise"] = 1
            assert not validator().is_valid(data), path
            del part["surprise"]
            checked += 1
    assert checked > 10


def test_a_missing_member_is_refused_in_every_object_of_ours() -> None:
    data = json.loads(example())
    for path, part in objects(data):
        for key in list(part) if is_strict(path) else ():
            value = part.pop(key)
            assert not validator().is_valid(data), f"{path}.{key}"
            part[key] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "llmbench-parity-record"),
        (("schema_version",), 2),
        (("created",), "yesterday"),
        (("created",), "2026-01-31T12:00:00+01:00"),
        (("results", 0, "outcome"), "green"),
        (("results", 0, "duration_s"), -1),
        (("results", 0, "measurement", "samples"), []),
        (("results", 0, "measurement", "metrics", "ttft_s"), "fast"),
        (("results", 0, "measurement", "samples", 0, "delta_kind", 0), "tool"),
        (("results", 0, "measurement", "samples", 0, "token_source"), "chunks"),
        (("results", 0, "measurement", "samples", 0, "end_ns"), 1.5),
        (("results", 0, "verdicts", 0, "interval"), [1.0]),
    ],
)
def test_a_wrong_value_is_refused(path: tuple[str | int, ...], value: object) -> None:
    data = copy.deepcopy(json.loads(example()))
    *way, last = path
    functools.reduce(lambda part, step: part[step], way, data)[last] = value
    assert not validator().is_valid(data)


def test_every_figure_of_a_sample_is_described() -> None:
    described = schema()["$defs"]["sample_metrics"]["properties"]
    assert tuple(described) == SAMPLE_METRICS
    assert all(part["description"] for part in described.values())
