"""A folder in which the tests run parity plans with scripted sides, and what they read there."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("scripted_side.py")
SCHEMAS = ROOT / "pytest_llmbench" / "schema"
FEW_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
"""Of the plugins that happen to be installed, those that take a second to start are left out."""
PATIENCE_S = 300
"""Other sessions of this machine may hold the accelerator."""

CONFTEST = """
import json
from pathlib import Path
from pytest_llmbench.sides.spec import SideSpec

def pytest_llmbench_register_sides(sides):
    for name, given in json.loads(Path(__file__).with_name("sides.json").read_text()).items():
        sides[name] = SideSpec(name=name, command=tuple(given["command"]), version=given["wanted"])
"""
SMALL = {
    "max_tokens": 8,
    "legacy_repeats": [1, 4],
    "prompt_tokens": [64],
    "concurrency": {"levels": [1, 2], "prompt_tokens": 16, "max_tokens": 8},
    "load": {"samples": 1, "cold": False},
    "memory": {"prompt_tokens": []},
    "timeout_s": 30,
    "passes": 1,
    "runs_per_pass": 1,
    "max_rounds": 1,
    "verdict": "point",
}
"""Settings of the least work: one round of each point."""


class ParityLab:
    """Writes sides, checkpoints and plans, runs pytest, reads what came of it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester, self.path, self.out = pytester, pytester.path, pytester.path / "out"
        (self.path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        pytester.makeconftest(CONFTEST)
        self.log = self.path / "sides.jsonl"
        self.sides(steady={})

    def sides(self, **scripts: dict[str, Any]) -> None:
        """The sides that the hook registers, by name; `wanted` is the version that one must have."""
        found = {
            name: {"command": self.command(script), "wanted": script.get("wanted")} for name, script in scripts.items()
        }
        (self.path / "sides.json").write_text(json.dumps(found), encoding="utf-8")

    def command(self, script: dict[str, Any]) -> list[str]:
        given = {key: value for key, value in script.items() if key != "wanted"}
        return [sys.executable, "-I", "-S", str(SIDE), json.dumps({"log": str(self.log), **given})]

    def checkpoint(self, name: str = "weights", *, tokenizer: bool = True, under: Path | None = None) -> Path:
        """A folder that looks like a checkpoint, for sides that read none."""
        folder = (under or self.path) / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        (folder / "model.safetensors").write_bytes(b"weights" * 1000)
        if tokenizer:
            (folder / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
            _word_tokenizer().save(str(folder / "tokenizer.json"))
        return folder

    def plan(
        self,
        *sections: str,
        candidate: str = "steady",
        baseline: str = "steady",
        models: list[dict[str, Any]] | None = None,
        name: str = "plan.yaml",
        top: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        """A plan of one model `org/m` with these sections, or of `models`; `settings` on top of SMALL."""
        if not (self.path / "weights").exists():
            self.checkpoint()
        wanted = {"sections": list(sections)} if sections else {}
        listed = [{"kind": "dense", "path": "weights"} | wanted | model for model in models or [{"id": "org/m"}]]
        parity = {"candidate": candidate, "baseline": baseline} | (head or {})
        document = {"parity": parity, **(top or {}), "settings": SMALL | settings, "models": listed}
        path = self.path / name
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path

    def run(self, *args: str | Path) -> pytest.RunResult:
        """pytest in a process of its own, on `plan.yaml` if no other file is named, with all artefacts."""
        named = [str(arg) for arg in args]
        plan = [] if any(arg.partition("::")[0].endswith((".yaml", ".json", ".py")) for arg in named) else ["plan.yaml"]
        place = [] if any("-out" in arg or "-resume" in arg for arg in named) else ["--llmbench-out=out"]
        every = (*FEW_PLUGINS, *plan, *place, "--junitxml=junit.xml", "-rsE", *named)
        return self.pytester.runpytest_subprocess(*every, timeout=PATIENCE_S)

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """The same, left running."""
        command = [sys.executable, "-m", "pytest", *FEW_PLUGINS, "plan.yaml", *args]
        with (self.path / "log.txt").open("wb") as log:
            return subprocess.Popen(command, cwd=self.path, stdout=log, stderr=subprocess.STDOUT)

    def record(self, name: str = "parity.json") -> dict[str, Any]:
        """The record that was written, checked against its schema."""
        data: dict[str, Any] = json.loads((self.out / name).read_text(encoding="utf-8"))
        _validate(data, "parity-record")
        return data

    def model(self, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.record()["models"][number]
        return found

    def results(self) -> dict[str, dict[str, Any]]:
        """What `run.json` says of each test, by its name without the file's."""
        data = json.loads((self.out / "run.json").read_text(encoding="utf-8"))
        _validate(data, "run")
        return {result["nodeid"].partition("::")[2]: result for result in data["results"]}

    def outcomes(self) -> dict[str, str]:
        return {name: result["outcome"] for name, result in self.results().items()}

    def properties(self) -> dict[str, dict[str, str]]:
        """junit's properties of each test, by its name."""
        cases = ET.parse(self.path / "junit.xml").iter("testcase")
        return {
            case.attrib["name"]: {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases
        }

    def events(self, *ops: str) -> list[dict[str, Any]]:
        """What the sides were asked, in order."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if not ops or event["op"] in ops]

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)


def parity_name(test: str) -> str:
    """`test_parity[x]` → `x`."""
    return test.partition("[")[2].removesuffix("]")


def _validate(data: dict[str, Any], schema: str) -> None:
    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(json.loads(text)).validate(data)


def _word_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from pytest_llmbench.parity_prompts import TEXT

    words = dict.fromkeys([*TEXT.replace(".", " .").split(), *map(str, range(1, 9)), "?"])
    found = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    return found
