"""Small saved runs and parity records with chosen figures, for the tests of what reads them."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from run_examples import entry, measurement

from pytest_llmbench import cli
from pytest_llmbench.environment import collect_environment
from pytest_llmbench.record import Result, Run, entry_json, measurement_json, write_json

ROOT = Path(__file__).parents[2]
PARITY = ROOT / "matrix" / "records" / "parity_m4_pro.json"
CSV_FOLDER = ROOT / "tests" / "data" / "predecessor"
ENVIRONMENT = collect_environment()


def require_report_extra() -> None:
    """Skip at a desk without the extra [report]; where CI measures, that must not pass for tested."""
    if not os.environ.get("CI"):
        pytest.importorskip("ruptures", reason='history needs pip install "pytest-llmbench[report]"')


def measured(metrics: dict[str, Sequence[float]], suspicions: Sequence[str] = ()) -> dict[str, Any]:
    """A real measurement's JSON with these samples, and their medians (an odd number of samples)."""
    found = measurement_json(measurement())
    first = found["samples"][0]
    found["samples"] = []
    for number in range(len(next(iter(metrics.values())))):
        sample = copy.deepcopy(first)
        sample["metrics"] |= {name: values[number] for name, values in metrics.items()}
        found["samples"].append(sample)
    found["metrics"] |= {name: sorted(values)[len(values) // 2] for name, values in metrics.items()}
    return found | {"suspicions": list(suspicions)}


def result(id: str, metrics: dict[str, Sequence[float]] | None, **changes: Any) -> Result:
    """A finished test of the entry `id`."""
    given: dict[str, Any] = {
        "nodeid": f"m.yaml::test_throughput[{id}-short]",
        "outcome": "passed" if metrics else "error",
        "reason": None if metrics else "the server exited with 3",
        "duration_s": 1.0,
        "finished_at": "2026-01-01T00:00:00.000+00:00",
        "entry": entry_json(entry(id=id)),
        "prompt": "short",
        "measurement": measured(metrics) if metrics else None,
    }
    return Result(**given | changes)


def run(*results: Result, created: str = "2026-01-01T00:00:00.000+00:00", **machine: Any) -> Run:
    """A run of this machine, or of one that differs in what `machine` says."""
    changed = type(ENVIRONMENT).from_json(ENVIRONMENT.to_json() | machine)
    facts = changed.to_json() | {"fingerprint": changed.fingerprint}
    return Run(created=created, environment=facts, options={}, results=results)


def save(path: Path, saved: Run) -> Path:
    """Write the run, checked against its schema."""
    schema = json.loads((ROOT / "pytest_llmbench" / "schema" / "run.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(saved.to_json())))
    write_json(path, saved.to_json())
    return path


def slowed(path: Path, share: float, sides: Sequence[str] = ("nuvec",)) -> Path:
    """The M4 Pro record with the speed of the `sides` less by `share`, their times more."""
    data = json.loads(PARITY.read_text(encoding="utf-8"))
    for node in _nodes(data["models"]):
        for side in (side for name in sides if isinstance(side := node.get(name), dict) and "samples" in side):
            factor = 1 - share if side["unit"] == "tok/s" else 1 / (1 - share) if side["unit"] == "s" else 1
            side["samples"] = [value * factor for value in side["samples"]]
            ordered, n = sorted(side["samples"]), len(side["samples"])
            side["median"] = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            assert math.isfinite(side["median"])
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def _nodes(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [found for part in value for found in _nodes(part)]
    if isinstance(value, dict):
        return [value, *(found for part in value.values() for found in _nodes(part))]
    return []


def command(*words: object) -> int:
    """`llmbench WORDS` in this process; its exit status, also where argparse refuses."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
