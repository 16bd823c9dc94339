"""The command `llmbench`: what needs no pytest session. Also `python -m pytest_llmbench`.

Exit status: 0 fine, 1 a fault was found, 2 wrong use.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench import __version__, markdown
from pytest_llmbench.cli_checkpoint import add_random
from pytest_llmbench.cli_records import add_commands
from pytest_llmbench.errors import BenchError, Unavailable, UsageError

if TYPE_CHECKING:
    from pytest_llmbench.matrix import MatrixEntry

OK, FAULT, WRONG_USE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    arguments = build_parser().parse_args(argv)
    _take_any_text()
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read us, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except UsageError as error:
        _complain(str(error))
        return WRONG_USE
    except BenchError as error:
        _complain(str(error))
        return FAULT
    return status


def _take_any_text() -> None:
    """What the terminal's encoding lacks, the bars of `history` say, is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def build_parser() -> argparse.ArgumentParser:
    """The command's parser; what it parses has `run`, which takes it and returns the exit status."""
    parser = argparse.ArgumentParser(prog="llmbench", description="Offline companion of the pytest plugin llmbench.")
    parser.add_argument("--version", action="version", version=f"pytest-llmbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    checkpoint = commands.add_parser("checkpoint", help="make checkpoints to benchmark with, offline")
    kinds = checkpoint.add_subparsers(required=True, metavar="KIND")
    tiny = kinds.add_parser(
        "tiny",
        help="the tiny models of matrix/smoke.yaml (21 MB, the same bytes every time) and, with MLX, one of each kind "
        "for matrix/parity_smoke.yaml (5 MB)",
    )
    tiny.add_argument("directory", type=Path, metavar="DIR")
    tiny.set_defaults(run=_checkpoint_tiny)
    add_random(kinds, say=_say)

    add_commands(commands, say=_say)

    doctor = commands.add_parser(
        "doctor", help="say what this machine is, which servers it has, and what would spoil a run"
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _checkpoint_tiny(arguments: argparse.Namespace) -> int:
    from pytest_llmbench.checkpoints import make_tiny
    from pytest_llmbench.checkpoints.kinds import make_kinds

    make_tiny(arguments.directory, report=_say)
    try:
        make_kinds(arguments.directory, report=_say)
    except Unavailable as error:
        _say(f"not made: one model of each kind ({error})")
    return OK


def _doctor(_: argparse.Namespace) -> int:
    from pytest_llmbench import units
    from pytest_llmbench.environment import collect_environment
    from pytest_llmbench.power import read_power

    power = read_power().facts()
    here = collect_environment(power=power)
    _say(f"machine          {here.machine}, {here.chip}, {here.cores_logical} cores, {units.memory(here.memory_bytes)}")
    _say(
        f"system           {here.os} {here.os_version}, Python {here.python}, "
        f"swap used {units.memory(here.swap_used_bytes)}"
    )
    for name, version in here.versions.items():
        _say(f"{name:<16} {version}")
    for name, value in power.items():
        _say(f"{name:<16} {'not known' if value is None else value}")
    servers = [_server_line(name) for name in _server_names()]
    spoilers = _spoilers(power)
    for line in [*servers, *spoilers]:
        _say(line)
    return FAULT if spoilers or not any(" yes " in line for line in servers) else OK


def _server_names() -> tuple[str, ...]:
    """Those with a program or an address of their own."""
    from pytest_llmbench.backends import builtin_backends
    from pytest_llmbench.backends.running import RunningBackend
    from pytest_llmbench.backends.server import ServerBackend

    found = builtin_backends().items()
    return tuple(name for name, b in found if isinstance(b, (ServerBackend, RunningBackend)) and name != "openai")


def _server_line(name: str) -> str:
    from pytest_llmbench.matrix import MatrixEntry

    entry = MatrixEntry(id="doctor", backend=name, model_id="none", path=Path("doctor.yaml"), line=1)
    try:
        return f"{name:<20} yes  {_where_server(entry)}"
    except Unavailable as error:
        return f"{name:<20} no   {error}"


def _where_server(entry: MatrixEntry) -> str:
    """The program that would be started, or the address of a server that runs anyway."""
    from pytest_llmbench.backends import builtin_backends, reach
    from pytest_llmbench.backends.running import RunningBackend
    from pytest_llmbench.backends.server import ServerBackend

    backend = builtin_backends()[entry.backend]
    if isinstance(backend, ServerBackend):
        return " ".join(backend.binary(entry))
    assert isinstance(backend, RunningBackend)
    url = backend.url(entry)
    if not reach.listens(url):
        raise Unavailable(f"nobody answers at {url}")
    return url


def _spoilers(power: dict[str, str | bool | None]) -> list[str]:
    """What makes this machine's figures unfit for a gate right now."""
    found = []
    if power["power_source"] == "battery":
        found.append("on battery: plug the charger in before you measure")
    if power["low_power_mode"]:
        found.append("Low Power Mode is on: turn it off before you measure")
    if power["thermal_state"] not in (None, "nominal"):
        found.append(f"thermal pressure is {power['thermal_state']}: let the machine cool before you measure")
    return found


def _say(line: str) -> None:
    """One line, whatever a record's names hold: an escape sequence isn't the terminal's to obey."""
    sys.stdout.write(markdown.one_line(line) + "\n")


def _complain(text: str) -> None:
    sys.stderr.write(f"llmbench: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
