"""A folder with a fake backend, in which the plugin's tests run pytest, and what they read there."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLAIN_INI = "[pytest]\n"

FEW_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Of the plugins that happen to be installed, those that take a second to start are left out."""

LAZY = (
    "backends",
    "backends.engine",
    "backends.llama_server",
    "backends.mlx_lm",
    "compare",
    "compare_text",
    "environment",
    "figures",
    "journal",
    "matrix_file",
    "measure",
    "memory",
    "parity_checkpoint",
    "parity_plan_file",
    "parity_planned",
    "parity_record",
    "parity_summary",
    "power",
    "record",
    "report_files",
    "requirements",
    "suite",
    "suite_live",
    "suite_parity",
    "terminal_summary",
)
"""Modules that the plugin imports when it needs them. pytester forgets, and imports again, each module that an
in-process run was the first to import, so they are imported once before."""


def import_lazy_modules() -> None:
    """Spare every in-process run these imports."""
    for name in LAZY:
        importlib.import_module(f"pytest_llmbench.{name}")


class Lab:
    """A test folder with the fake backend: writes its files, runs pytest there, reads what came of it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.out = pytester.path / "out"
        pytester.makeconftest(Path(__file__).with_name("fake_backend.py").read_text(encoding="utf-8"))
        self.ini("")

    def ini(self, text: str) -> None:
        """An ini file; it also fixes the root of node ids."""
        (self.path / "pytest.ini").write_text(PLAIN_INI + text, encoding="utf-8")

    def matrix(self, *entries: dict[str, Any], name: str = "matrix.yaml", **top: Any) -> Path:
        """A matrix file of fake entries, one prompt and one quick run unless something else is said."""
        settings = {"runs": 1, "warmup": 0, "max_tokens": 8} | top.pop("settings", {})
        tests = [{"backend": "fake", "model_id": f"fake/{entry['id']}"} | entry for entry in entries]
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump({"settings": settings, "prompts": ["short"], **top, "tests": tests}, sort_keys=False)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *args: str | Path) -> pytest.RunResult:
        """pytest in this process."""
        return self.pytester.runpytest_inprocess(*FEW_PLUGINS, *args)

    def spawn(self, *args: str | Path) -> pytest.RunResult:
        """pytest in a process of its own."""
        return self.pytester.runpytest_subprocess(*FEW_PLUGINS, *args, timeout=60)

    def events(self, *what: str) -> list[dict[str, Any]]:
        """What the fake backend did, in order; only events of the kinds in `what`, if any are given."""
        path = self.path / "events.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if not what or event["what"] in what]

    def opened(self) -> list[str]:
        """Ids of the entries that were opened, in order; asserts that one was open at a time."""
        ids = []
        events = self.events("open", "close")
        for start, end in zip(events[::2], events[1::2], strict=True):
            assert (start["what"], end["what"], start["id"]) == ("open", "close", end["id"])
            ids.append(start["id"])
        return ids

    def forget(self) -> None:
        """Empty the log of events."""
        (self.path / "events.jsonl").unlink(missing_ok=True)

    def run_json(self) -> dict[str, Any]:
        """The run's record, checked against its schema."""
        data: dict[str, Any] = json.loads((self.out / "run.json").read_text(encoding="utf-8"))
        check_run(data)
        return data

    def journal(self) -> list[dict[str, Any]]:
        """The journal's results, without its head."""
        lines = (self.out / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines[1:]]

    def outcomes(self) -> dict[str, str]:
        """What `run.json` says of each test, by the part of its node id in brackets."""
        return {bracket(result["nodeid"]): result["outcome"] for result in self.run_json()["results"]}

    def junit(self) -> dict[str, ET.Element]:
        """junit's test cases by the part of their name in brackets."""
        tree = ET.parse(self.path / "junit.xml")
        return {bracket(case.attrib["name"]): case for case in tree.iter("testcase")}

    def select(self, *args: str | Path) -> list[pytest.Item]:
        """The items that pytest would run for these arguments, in order."""
        return collect_items(self.pytester, *args)


def bracket(nodeid: str) -> str:
    """`a.yaml::test_throughput[x-short]` → `x-short`."""
    return nodeid.partition("[")[2].removesuffix("]") or nodeid


def collect_items(pytester: pytest.Pytester, *args: str | Path) -> list[pytest.Item]:
    """What pytest would run; its collection has to succeed."""

    class Collected:
        items: tuple[pytest.Item, ...] = ()

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.items = tuple(session.items)

    found = Collected()
    result = pytester.inline_run(*FEW_PLUGINS, "--collect-only", "-q", *args, plugins=[found])
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return list(found.items)


def check_run(data: dict[str, Any]) -> None:
    """Validate a run's record against the schema in the package."""
    schema = json.loads((ROOT / "pytest_llmbench" / "schema" / "run.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(data)


def properties(case: ET.Element) -> dict[str, str]:
    """A junit test case's properties."""
    found: Iterable[ET.Element] = case.iter("property")
    return {element.attrib["name"]: element.attrib["value"] for element in found}
