"""The sandbox, attacked: each attempt ends within its limits, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.sandbox import CHILD, Limits, Outcome, Returned, run_function

LIMITS = Limits(wall_s=20.0, cpu_s=2, memory_bytes=256 * 1024**2)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")


def run(source: str, limits: Limits = LIMITS) -> Outcome:
    """`f(1)`."""
    return run_function(source, "f", [(1,)], limits)


def why(source: str, limits: Limits = LIMITS) -> str:
    """Why `f(1)` has no value."""
    outcome = run(source, limits)
    text = outcome.problem if outcome.problem is not None else outcome.returned[0].error
    assert text is not None, f"it has a value: {outcome.returned[0].value!r}"
    return text


def test_values_come_back_for_each_call() -> None:
    found = run_function("def f(a, b=2):\n    return (a, [b])", "f", [(1,), ("ä", {"k": None})], LIMITS)
    assert found.returned == (Returned(value=[1, [2]]), Returned(value=["ä", [{"k": None}]]))
    assert found.problem is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=10, deadline=None)
@given(st.lists(json_values, min_size=1, max_size=4))
def test_any_json_value_comes_back_as_it_went_in(values: list[object]) -> None:
    found = run_function("def f(x):\n    return x", "f", [(value,) for value in values], LIMITS)
    assert [returned.value for returned in found.returned] == values


@pytest.mark.parametrize(
    "source",
    [
        "from enum import Enum\nclass A(Enum):\n    X = 1\ndef f(x): return A(x).value",
        "from typing import NamedTuple\nclass A(NamedTuple):\n    x: int\ndef f(x): return A(x).x",
        "from functools import lru_cache, wraps\n@lru_cache\ndef f(x): return x",
        "from abc import ABC, abstractmethod as a\nclass A(ABC):\n    @a\n    def g(self): ...\ndef f(x): return x",
        "from collections import namedtuple\nA = namedtuple('A', 'x')\ndef f(x): return A(x).x",
        "from __future__ import annotations\ndef f(x: list[int]) -> int: return eval('x')",
        "async def g(x): return x\ndef f(x):\n    try: g(x).send(None)\n    except StopIteration as e: return e.value",
        "import random\ndef f(x):\n    random.seed(3); random.random(); return x",
        "def f(x):\n    for i in range(3): yield i\nf = (lambda g: lambda x: [*g(x)][x])(f)",
    ],
)
def test_usual_python_works(source: str) -> None:
    assert run(source).returned == (Returned(value=1),)


def test_a_dataclass_can_be_defined() -> None:
    source = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\ndef f(x):\n    return A(x).x"
    assert run(source).returned == (Returned(value=1),)


def test_another_function_keeps_its_body() -> None:
    source = "def g(): pass\ndef f(x):\n    import json; json.dumps.__code__ = g.__code__"
    assert "refuses object.__setattr__" in why(source)


def test_the_standard_library_can_be_used() -> None:
    source = "import csv, hashlib, heapq, textwrap\nfrom itertools import count\nimport re\n"
    found = run(source + "def f(x):\n    return [re.sub('a', 'b', 'aa'), heapq.nlargest(x, [1, 3])]")
    assert found.returned == (Returned(value=["bb", [3]]),)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(x): return y", "NameError: name 'y'"),
        ("def f(x): return {1}", "TypeError: Object of type set"),
        ("def f(x): return f(x)", "RecursionError"),
        ("def f(x): raise SystemExit(0)", "SystemExit: 0"),
        ("def f(x): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(x) return", "SyntaxError"),
        ("\0", "SyntaxError|ValueError"),
        ("raise SystemExit", "SystemExit"),
        ("def g(x): return 1", "it defines no function f"),
        ("f = 3", "it defines no function f"),
        ("class E(Exception):\n    def __str__(self): raise self\ndef f(x): raise E", "^E$"),
        ("import os\ndef f(x): os._exit(3)", "ended without an answer: exit 3"),
        ("def f(x): return 'x' * 100_000", "it returned more than 65536 bytes"),
        ("#" * 70_000, "the source is longer than 65536 bytes"),
    ],
)
def test_what_goes_wrong_is_told(source: str, message: str) -> None:
    assert re.search(message, why(source))


def test_an_endless_loop_is_stopped_by_its_cpu_time() -> None:
    assert why("def f(x):\n    while True: pass", Limits(cpu_s=1)).startswith("it was stopped")


def test_a_loop_that_catches_everything_is_stopped_too() -> None:
    source = "def f(x):\n    while True:\n        try:\n            while True: pass\n"
    source += "        except BaseException: pass"
    assert why(source, Limits(cpu_s=1)).startswith("it was stopped")


def test_waiting_for_ever_is_stopped_by_the_clock() -> None:
    assert why("import time\ndef f(x): time.sleep(1000)", Limits(wall_s=0.5)) == "it didn't end within 0.5 s"


@pytest.mark.parametrize(
    "body", ["return len(bytearray(2 * 10**9))", "found = []\n    while True: found.append('x' * 10**6)"]
)
def test_a_memory_hog_gets_no_more_than_its_limit(body: str) -> None:
    assert why(f"def f(x):\n    {body}").startswith(("MemoryError", "it used more than 256 MiB"))


@pytest.mark.parametrize(
    "body",
    [
        "open('here', 'w')",
        "open({victim!r}, 'a').write('x')",
        "import os; os.open({victim!r}, os.O_RDWR)",
        "import os; os.remove({victim!r})",
        "import os; os.rename({victim!r}, {victim!r} + '2')",
        "import os; os.truncate({victim!r}, 0)",
        "import os; os.chmod({victim!r}, 0)",
        "import os; os.symlink('/etc', 'link')",
        "import os; os.mkdir('here')",
        "import pathlib; pathlib.Path({victim!r}).unlink()",
        "import shutil; shutil.rmtree({folder!r})",
        "import io; io.FileIO({victim!r}, 'w')",
        "import sqlite3; sqlite3.connect({victim!r}).execute('create table t(x)')",
    ],
)
def test_files_stay_as_they_are(body: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole", encoding="utf-8")
    body = body.format(victim=str(victim), folder=str(tmp_path))
    assert "Error" in why(f"def f(x): {body}")
    assert [p.name for p in tmp_path.iterdir()] == ["victim"]
    assert victim.read_text(encoding="utf-8") == "whole"
    assert victim.stat().st_mode & 0o400


@pytest.mark.parametrize("path", ["/etc/passwd", "{home}/.netrc", "/proc/self/environ", "{library}/../../../x"])
def test_files_outside_the_library_are_not_read(path: str) -> None:
    path = path.format(home=Path.home(), library=Path(os.__file__).parent)
    assert "refuses open" in why(f"def f(x): return open({path!r}).read()")


def test_our_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    (found,) = run("import os\ndef f(x): return sorted(os.environ)").returned
    assert found.error is None
    assert not {"SOME_TOKEN", "HOME", "PYTHONPATH"} & set(found.value)


@pytest.mark.parametrize(
    "body",
    [
        "import socket",
        "import urllib.request as u; u.urlopen('http://127.0.0.1:1/')",
        "import http.client",
        "import _socket",
        "import asyncio",
    ],
)
def test_there_is_no_network(body: str) -> None:
    assert "the sandbox refuses import" in why(f"def f(x): {body}")


@pytest.mark.parametrize(
    "body",
    [
        "import os\n    while True: os.fork()",
        "import os; os.posix_spawn('/bin/sh', ['sh'], {})",
        "import os; os.system('sleep 60')",
        "import os; os.execv('/bin/sleep', ['sleep', '60'])",
        "import subprocess; subprocess.Popen(['sleep', '60'])",
        "import _posixsubprocess",
        "import multiprocessing",
        "import os; os.forkpty()",
        "import os; os.kill(os.getppid(), 9)",
        "import ctypes",
    ],
)
def test_there_are_no_processes_and_no_signals(body: str) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    assert "the sandbox refuses" in why(f"def f(x):\n    {body}")
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("name", ["_posixsubprocess", "_ctypes", "_socket"])
def test_a_module_under_another_packages_name_is_refused(name: str) -> None:
    if not any(list(Path(folder).glob(f"{name}.*")) for folder in sys.path if folder.endswith("lib-dynload")):
        pytest.skip("this Python has it built in")
    source = (
        "import os, sys, importlib.util as u\n"
        "from importlib.machinery import ExtensionFileLoader, ModuleSpec\n"
        "def f(_):\n"
        "    folder = [p for p in sys.path if p.endswith('lib-dynload')][0]\n"
        f"    path = folder + '/' + [n for n in os.listdir(folder) if n.startswith('{name}.')][0]\n"
        f"    loader = ExtensionFileLoader('a.{name}', path)\n"
        f"    return repr(u.module_from_spec(ModuleSpec('a.{name}', loader, origin=path)))\n"
    )
    assert why(source) == f"PermissionError: the sandbox refuses import of a.{name}"


def test_what_is_refused_again_and_again_stays_in_bounds() -> None:
    source = "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except Exception: pass"
    assert why(source, Limits(cpu_s=1)).startswith("it was stopped")


@pytest.mark.parametrize(
    "text", ["'no json'", "'{}'", '\'{"guards": [], "results": [{"value": 1}, {"value": 1}]}\'', "'[' * 50000"]
)
def test_output_of_its_own_is_no_better_than_no_answer(text: str) -> None:
    # The way out is a descriptor that can be guessed; what is written there is judged as any other value.
    source = f"import os\ndef f(x):\n    for fd in range(3, 20):\n        try: os.write(fd, ({text}).encode())\n"
    found = run(source + "        except OSError: pass\n    os._exit(0)")
    assert found.problem is not None
    assert found.returned == ()


def test_what_it_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("import sys\ndef f(x):\n    print('x' * 10**6); sys.stderr.write('y'); return 5").returned[0].value == 5
    assert capfd.readouterr() == ("", "")


def test_nothing_of_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("def f(x): return 1")
    why("def f(x):\n    while True: pass", Limits(wall_s=0.3))
    assert not list(tmp_path.iterdir())
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(CHILD) in (p.info["cmdline"] or [])]


@linux_only
def test_the_kernel_holds_it_too() -> None:
    assert run("def f(x): return 1").guards == ("limits", "seccomp", "audit")


@linux_only
@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "threading.Thread(target=print).start()",
        "socket.socket()",
        "socket.socketpair()",
        "open('made', 'w')",
        "os.open('victim', os.O_WRONLY)",
        "os.open('victim', os.O_RDONLY | os.O_TRUNC)",
        "os.unlink('victim')",
        "os.rename('victim', 'other')",
        "os.truncate('victim', 0)",
        "os.mkdir('made')",
        "os.chmod('victim', 0)",
        "os.kill(os.getppid(), 0)",
        "os.memfd_create('x')",
        "os.setuid(0)",
    ],
)
def test_the_kernel_refuses_without_pythons_help(attempt: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("whole", encoding="utf-8")
    script = (
        "import importlib.util, os, socket, sys, threading\n"
        f"spec = importlib.util.spec_from_file_location('child', {str(CHILD)!r})\n"
        "child = importlib.util.module_from_spec(spec); spec.loader.exec_module(child)\n"
        "assert child._filter_system_calls()\n"
        "assert open('victim').read() == 'whole'\n"
        f"try: {attempt}\n"
        "except (OSError, RuntimeError) as error: os.write(1, f'refused {error}'.encode())\n"
        "else: os.write(1, b'done')\n"
        "os._exit(0)\n"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.stdout.startswith("refused"), found.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["victim"]
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "whole"
