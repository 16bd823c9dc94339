"""Inside the sandbox: call one function of a text of Python that nobody trusts, and say what it returned.

Run by path (`python -I -S -B sandbox_child.py`), standard library only.

    stdin   {"source": str, "function": str, "calls": [[argument, …], …], "cpu_s": int, "memory_bytes": int}
    stdout  {"guards": [str, …], "problem": str} or {"guards": […], "results": [{"value": …} or {"error": str}, …]}

What is right is never told here: the other side compares, so that forged output has to be the right output.

Three guards; `guards` says which there are on this system. "limits": rlimits for CPU time, memory, file size 0, files,
processes. "seccomp" (Linux on x86-64 and ARM64): of the system calls, those that compute, and reading files; no
process, no socket, no file that is written, made, moved or removed. "audit": Python's own audit events (PEP 578),
refused unless they are known to do no harm; it is the first that an honest mistake meets.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

OPEN_FILES = 32
LONGEST_ERROR = 300
# Loaded before the doors close; a solution may import others too, as far as they only have to be read.
USUAL = """
    bisect collections copy dataclasses datetime decimal enum fractions functools heapq itertools math operator
    random re statistics string typing
"""
HARMLESS = """
    array.__new__ builtins.id code.__new__ compile exec function.__new__ marshal.loads object.__getattr__
    sys._getframe sys._getframemodulename sys.excepthook sys.unraisablehook time.sleep
"""
NEVER = "_ctypes _posixsubprocess _socket asyncio ctypes multiprocessing socket ssl subprocess"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Numbers of the kernel's system call tables (asm/unistd_64.h; asm-generic/unistd.h).
X86_64 = (
    "0 1 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 19 20 21 24 25 28 35 39 60 63 72 79 89 96 98 99 100 102 104 107 108 "
    "131 158 186 201 202 204 217 219 228 229 230 231 262 267 269 273 318 332 334 439"
)
ARM64 = (
    "17 25 29 48 57 61 62 63 64 65 66 67 73 78 79 80 93 94 98 99 101 113 114 115 123 124 128 132 134 135 139 153 160 "
    "165 169 172 174 175 176 177 178 179 214 215 216 222 226 233 278 291 293 439"
)
# Of each machine: architecture, allowed calls, and of those that open a file which argument has the flags.
TABLES = {
    "x86_64": (0xC000003E, X86_64, {2: 1, 257: 2}),
    "aarch64": (0xC00000B7, ARM64, {56: 2}),
}
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_MODE_FILTER = 2
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # REFUSE: errno EPERM
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
X32 = 0x40000000


def main() -> None:
    """Read one order, carry it out, write one answer, end."""
    order = json.loads(sys.stdin.buffer.read())
    answer = _only_way_out()
    for name in USUAL.split():
        __import__(name)
    guards = _close_doors(order)
    found: dict[str, Any] = {"guards": guards}
    try:
        found |= _run(order)
    except BaseException as error:  # noqa: BLE001 - whatever the text raises is its result
        found["problem"] = _describe(error)
    answer(json.dumps(found))
    os._exit(0)


def _only_way_out() -> Callable[[str], None]:
    """Writes the answer; what the text prints goes nowhere."""
    way = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)

    def answer(text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(way, data) :]

    return answer


def _close_doors(order: dict[str, Any]) -> list[str]:
    limits = {
        "RLIMIT_CPU": order["cpu_s"],
        "RLIMIT_AS": order["memory_bytes"],
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_NPROC": 0,
        "RLIMIT_CORE": 0,
    }
    for name, value in limits.items():
        # macOS has a limit of address space, and refuses to lower it.
        with suppress(ValueError, OSError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, value))
    guards = ["limits"]
    if sys.platform == "linux" and _filter_system_calls():
        guards.append("seccomp")
    sys.addaudithook(_refuse_events())
    return [*guards, "audit"]


def _filter_system_calls() -> bool:
    """seccomp(2) with a filter of classic BPF; False where this kernel or machine has none of ours."""
    table = TABLES.get(platform.machine())
    try:
        import ctypes
    except ImportError:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    done = False
    if table is not None:
        program = _program(*table)

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

        whole = Program(len(program) // 8, program)
        done = (
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            and libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) == 0
        )
    for name in [name for name in sys.modules if name.partition(".")[0] in NEVER.split()]:
        del sys.modules[name]
    return bool(done)


def _program(architecture: int, allowed: str, opening: dict[int, int]) -> bytes:
    """Instructions (code, jump if true, jump if false, value) over seccomp_data: number, architecture, …, arguments."""

    def step(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, true, false, value)

    steps = [step(LOAD, 4), step(EQUAL, architecture, 1), step(RETURN, KILL), step(LOAD, 0)]
    steps += [step(AT_LEAST, X32, 0, 1), step(RETURN, REFUSE)]
    for number, argument in opening.items():
        steps += [step(EQUAL, number, 0, 4), step(LOAD, 16 + 8 * argument), step(ANY_BIT, WRITING, 0, 1)]
        steps += [step(RETURN, REFUSE), step(RETURN, ALLOW)]
    for number in map(int, allowed.split()):
        steps += [step(EQUAL, number, 0, 1), step(RETURN, ALLOW)]
    return b"".join([*steps, step(RETURN, REFUSE)])


def _refuse_events() -> Callable[[str, tuple[Any, ...]], None]:
    library = os.path.dirname(os.path.realpath(os.__file__)) + os.sep  # noqa: PTH120 - pathlib isn't loaded here
    harmless, never, writing = frozenset(HARMLESS.split()), frozenset(NEVER.split()), WRITING

    def within(path: object) -> bool:
        return isinstance(path, str) and (path + os.sep).startswith(library) and ".." not in path

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in harmless:
            return
        # A module's file can be loaded under a name with any package before it.
        if event == "import" and never.isdisjoint(arguments[0].split(".")):
            return
        # Dataclasses and enumerations set attributes that are watched; only another body would be another function.
        if event in ("object.__setattr__", "object.__delattr__") and arguments[1] != "__code__":
            return
        if event == "open" and within(arguments[0]) and not (arguments[2] or 0) & writing:
            return
        if event in ("os.listdir", "os.scandir") and within(arguments[0]):
            return
        of = f" of {arguments[0]}" if event == "import" else ""
        raise PermissionError(f"the sandbox refuses {event}{of}")

    return hook


def _run(order: dict[str, Any]) -> dict[str, Any]:
    # Dataclasses and the like look for the module that they are in.
    module = sys.modules["answer"] = ModuleType("answer")
    exec(compile(order["source"], "answer.py", "exec"), module.__dict__)
    function = module.__dict__.get(order["function"])
    if not callable(function):
        return {"problem": f"it defines no function {order['function']}"}
    return {"results": [_call(function, arguments) for arguments in order["calls"]]}


def _call(function: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        value = function(*arguments)
        json.dumps(value)
    except BaseException as error:  # noqa: BLE001 - whatever the text raises is its result
        return {"error": _describe(error)}
    return {"value": value}


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    except BaseException:  # noqa: BLE001 - its own text may fail, too
        return type(error).__name__


if __name__ == "__main__":
    main()
