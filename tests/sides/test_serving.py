"""The loop that all Python sides share, and the example side, which shares nothing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from side_kit import EXAMPLE, ROOT, by_rule, program_side, rule_side

from pytest_llmbench.errors import SideError
from pytest_llmbench.sides.process import SideProcess
from pytest_llmbench.sides.spec import builtin_sides

Start = Callable[..., SideProcess]

SERVED = """
import os, subprocess, sys
from pytest_llmbench.sides.messages import MemoryUse
from pytest_llmbench.sides.serve import Served, serve

class Side(Served):
    name, version, capabilities = "served", "1", ("margins",)
    def facts(self): return {}
    def setup(self):
        print("said while importing")
        os.write(1, b"said by a C library\\n")
        subprocess.run([sys.executable, "-c", "print('said by a child')"])
    def load(self, path):
        if path.name == "odd": raise ValueError("odd \\udcff name")
        assert sys.stdin.read() == ""
    def generate(self, prompt, n):
        yield from range(n - 1)
        exec(PROGRAMS[prompt[0]], {})
        yield n - 1
    def reset(self): raise ZeroDivisionError("of all things")
    def memory(self): return MemoryUse(peak_bytes=float("nan"), active_bytes=0, os_peak_rss_bytes=0)

PROGRAMS = [
    "",
    "bytearray(2**62)",
    "raise RuntimeError('[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed"
    " buffer size of 8 bytes.')",
    "raise RuntimeError('[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBuffer"
    "CallbackErrorOutOfMemory)')",
    "raise RuntimeError('cudaMallocAsync(&data, size, stream) failed: out of memory')",
    "raise RuntimeError('[malloc] Unable to allocate 9 bytes.')",
    "import no_such_module",
    "raise RuntimeError('shapes (1,2) and (3,4)')",
]
serve(Side())
"""


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5])
def test_memory_that_an_engine_doesnt_get_is_a_refusal_of_its_own(prompt: int, start: Start) -> None:
    side = start(program_side(SERVED))
    with pytest.raises(SideError) as caught:
        side.generate([prompt], 3)
    assert (caught.value.kind, caught.value.refusal) == ("refused", "memory"), caught.value
    assert side.generate([0], 3).tokens == (0, 1, 2)


@pytest.mark.parametrize(
    ("prompt", "refusal", "reason"),
    [
        (6, "unsupported", "unsupported: ModuleNotFoundError: No module named 'no_such_module'"),
        (7, "failed", "failed: RuntimeError: shapes (1,2) and (3,4)"),
    ],
)
def test_whatever_an_engine_raises_is_a_refusal(prompt: int, refusal: str, reason: str, start: Start) -> None:
    side = start(program_side(SERVED))
    with pytest.raises(SideError, match="Traceback") as caught:
        side.generate([prompt], 3)
    assert (caught.value.refusal, caught.value.reason) == (refusal, f"refused generate: {reason}")
    with pytest.raises(SideError, match="refused reset: failed: ZeroDivisionError: of all things"):
        side.reset()
    with pytest.raises(SideError, match=r"refused memory: failed: ValueError: .*not JSON compliant"):
        side.memory()
    assert side.generate([0], 3).tokens == (0, 1, 2)


def test_what_it_lacks_is_said_where_somebody_asks_all_the_same(start: Start) -> None:
    with pytest.raises(SideError, match="refused margins: unsupported: it doesn't tell logits"):
        start(program_side(SERVED)).margins([1])


def test_what_anybody_prints_goes_to_the_log_and_stdin_is_the_protocols(start: Start, tmp_path: Path) -> None:
    side = start(program_side(SERVED), timeout_s=20)
    (tmp_path / "odd").mkdir()
    side.load(tmp_path)
    with pytest.raises(SideError, match=r"refused load: checkpoint: ValueError: odd \? name"):
        side.load(tmp_path / "odd")
    side.__exit__(None, None, None)
    log = side.log_path.read_text()
    assert {"said while importing", "said by a C library", "said by a child"} <= set(log.splitlines())


def test_a_served_side_ends_with_its_stdin() -> None:
    spec = program_side(SERVED)
    lines = b'{"op":"generate","prompt":[0],"max_tokens":2}\n{"op":"sing"}\nno JSON\n'
    env = {"PATH": "", **spec.env}
    done = subprocess.run(spec.command, input=lines, env=env, capture_output=True, timeout=60, check=True)
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first["ok"]["tokens"] == [0, 1]
    assert second["error"] == {"kind": "unsupported", "message": "unknown op 'sing'"}
    assert third["error"]["kind"] == "failed"


def test_the_built_in_sides_run_without_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx", reason="pip install 'pytest-llmbench[mlx]'")
    (tmp_path / "mlx_lm.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with SideProcess(builtin_sides()["mlx-lm"], tmp_path / "side.log") as side:
        assert side.hello.name == "mlx_lm"


def test_the_page_registers_a_side() -> None:
    page = (ROOT / "docs" / "sides.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    sides = builtin_sides()
    names["pytest_llmbench_register_sides"](sides)
    assert list(sides) == ["engine", "mlx-lm", "my-engine"]
    assert sides["my-engine"].version == "0.4.1"


def test_the_example_follows_its_rule(start: Start, tmp_path: Path) -> None:
    side = start(rule_side())
    loaded = side.load(tmp_path, [1, 2])
    assert loaded.first_token_ns is not None
    assert side.spawned_ns < loaded.started_ns <= loaded.ready_ns < loaded.first_token_ns
    assert side.generate([1, 2], 5).tokens == tuple(by_rule([1, 2], 5))
    assert side.batch([[1, 2], [3]], 5).tokens == (tuple(by_rule([1, 2], 5)), tuple(by_rule([3], 5)))
    assert side.margins([1, 2]).top[0][0] == by_rule([1, 2], 1)[0]
    side.reset()
    assert side.memory().os_peak_rss_bytes > 2**20


def without_stamps(value: Any) -> Any:
    """Stamps and bytes, which differ from run to run, as the page shows them."""
    if isinstance(value, dict):
        return {key: without_stamps(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_stamps(inner) for inner in value]
    return "…" if isinstance(value, int) and value > 10**6 else value


def test_the_conversation_on_the_page_is_the_examples(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sides.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    turns = [(line[:2], json.loads(line[2:])) for line in block.splitlines()]
    asked = [message for arrow, message in turns if arrow == "> "]
    said = [message for arrow, message in turns if arrow == "< "]
    (tmp_path / "checkpoint").mkdir()
    lines = "".join(json.dumps(message) + "\n" for message in asked)
    done = subprocess.run([EXAMPLE], input=lines, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    version = answers[0]["ok"]["facts"].pop("python")
    assert said[0]["ok"]["facts"].pop("python").split(".")[0] == version.split(".")[0]
    assert without_stamps(answers) == without_stamps(said)
