"""The plugin's options: command line, environment, ini file, in this order, then the matrix file and the defaults.

`OPTIONS` is the only list of them: flags, ini names, environment variables and help are made from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_llmbench.errors import UsageError
from pytest_llmbench.matrix import Overrides
from pytest_llmbench.option_values import levels, limits, report_kinds
from pytest_llmbench.parity import DEFAULT_GATE, DEFAULT_GOAL

Kind = Literal["flag", "int", "float", "string", "list"]
DEFAULT_VERDICT = "interval"
DEFAULT_TIER = "quick"


def _whole(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError(f"must be at least {minimum}, not {value}")
        return value

    return parse


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"must be a positive number, not {text}")
    return value


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return parse


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("is empty; give names separated by commas")
    return names


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("is empty; give a path")
    return Path(text).expanduser()


def _truth(text: str) -> bool:
    try:
        return {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }[text.strip().lower()]
    except KeyError:
        raise ValueError(f"must be true or false, not {text!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    name: str
    help: str
    kind: Kind = "string"
    metavar: str | None = None
    parse: Callable[[str], Any] = str
    default: Any = None
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return f"--llmbench-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        return f"llmbench_{self.name}"

    @property
    def variable(self) -> str:
        return f"LLMBENCH_{self.name.upper()}"


OPTIONS: tuple[Option, ...] = (
    Option(name="matrix", metavar="PATH", parse=_path, repeatable=True, kind="list", help="matrix file or folder"),
    Option(
        name="records", metavar="PATH", parse=_path, repeatable=True, kind="list", help="saved parity record to replay"
    ),
    Option(name="list", kind="flag", parse=_truth, help="show what is ready, what is not and the fix; run nothing"),
    Option(name="runs", kind="int", metavar="N", parse=_whole(1), help="timed runs per prompt"),
    Option(name="warmup", kind="int", metavar="N", parse=_whole(0), help="warm-up runs per prompt; 0 is allowed"),
    Option(name="max_tokens", kind="int", metavar="N", parse=_whole(1), help="tokens to generate per run"),
    Option(name="prompts", metavar="A,B", parse=_names, help="prompts to measure, instead of each entry's own"),
    Option(name="think", kind="flag", parse=_truth, help="thinking on, for models that can"),
    Option(name="no_think", kind="flag", parse=_truth, help="thinking off, for models that can"),
    Option(name="tools", kind="flag", parse=_truth, default=False, help="add the tool-call tests"),
    Option(name="quality", kind="flag", parse=_truth, default=False, help="add the code-quality tests"),
    Option(name="concurrency", metavar="1,4,8", parse=levels, help="add tests of so many requests at once"),
    Option(
        name="gate", kind="float", metavar="R", parse=_positive, default=DEFAULT_GATE, help="lowest ratio that passes"
    ),
    Option(name="goal", kind="float", metavar="R", parse=_positive, default=DEFAULT_GOAL, help="ratio to reach"),
    Option(
        name="verdict",
        metavar="RULE",
        parse=_one_of("point", "interval"),
        default=DEFAULT_VERDICT,
        help="how a live ratio is judged: point or interval (a replayed record: as it says)",
    ),
    Option(
        name="tier",
        metavar="TIER",
        parse=_one_of("quick", "full"),
        default=DEFAULT_TIER,
        help="parity settings: quick (a pull request's) or full (a release's)",
    ),
    Option(name="require", kind="flag", parse=_truth, help="fail what would be skipped as not available here"),
    Option(name="out", metavar="DIR", parse=_path, help="write run.json, journal.jsonl and server logs there"),
    Option(name="resume", metavar="DIR", parse=_path, help="go on with DIR's journal: skip what it already holds"),
    Option(name="compare", metavar="PATH", parse=_path, help="saved run or record to compare with"),
    Option(name="compare_fail", metavar="M:P%", parse=limits, help="regressions that fail: decode_tok_s:5%,ttft_s:10%"),
    Option(
        name="report", metavar="KINDS", parse=report_kinds, help="reports to write: html,md,csv,bmf,gha,gha-smaller"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for. None: nothing said, the matrix file decides."""

    matrix: tuple[Path, ...] = ()
    records: tuple[Path, ...] = ()
    list: bool = False
    runs: int | None = None
    warmup: int | None = None
    max_tokens: int | None = None
    prompts: tuple[str, ...] | None = None
    concurrency: tuple[int, ...] | None = None
    think: bool | None = None
    tools: bool = False
    quality: bool = False
    gate: float = DEFAULT_GATE
    goal: float = DEFAULT_GOAL
    verdict: str = DEFAULT_VERDICT
    tier: str = DEFAULT_TIER
    require: bool = False
    out: Path | None = None
    resume: Path | None = None
    compare: Path | None = None
    compare_fail: tuple[str, ...] = ()
    report: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where each value comes from, for messages: `--llmbench-runs`, `LLMBENCH_RUNS` or `llmbench_runs`."""

    @property
    def given_paths(self) -> tuple[Path, ...]:
        """Matrix files and records that the command line names by option."""
        names = [name for name in ("matrix", "records") if self.said.get(name, "").startswith("--")]
        return tuple(path for name in names for path in getattr(self, name))

    @property
    def overrides(self) -> Overrides:
        """What beats a matrix file's own values."""
        return Overrides(
            runs=self.runs,
            warmup=self.warmup,
            max_tokens=self.max_tokens,
            prompts=self.prompts,
            concurrency=self.concurrency,
            think=self.think,
        )


def add_options(parser: pytest.Parser) -> None:
    """Give pytest each option's flag and ini value."""
    group = parser.getgroup("llmbench", "LLM inference benchmarks")
    for option in OPTIONS:
        # argparse formats its help with %, pytest doesn't format that of its ini values.
        help_text = f"{option.help.replace('%', '%%')} (ini: {option.ini})"
        if option.kind == "flag":
            group.addoption(option.flag, dest=option.ini, action="store_const", const=True, help=help_text)
        else:
            group.addoption(
                option.flag,
                dest=option.ini,
                action="append" if option.repeatable else "store",
                metavar=option.metavar,
                type=_argument(option),
                help=help_text,
            )
        ini_type: Any = {"flag": "bool", "list": "linelist"}.get(option.kind, option.kind)
        parser.addini(option.ini, help=f"{option.help} (as {option.flag})", type=ini_type, default=None)


def _argument(option: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return option.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}") from error

    return parse


def resolve(config: pytest.Config, environ: Mapping[str, str]) -> Options:
    """The options in force. UsageError, naming where it was said, for a bad value."""
    values: dict[str, tuple[str, Any]] = {}
    for option in OPTIONS:
        found = _find(option, config, environ)
        if found is None:
            continue
        values[option.name] = found
    chosen = {name: value for name, (_, value) in values.items() if name in Options.__dataclass_fields__}
    chosen["think"] = _think(values)
    said = {name: where for name, (where, _) in values.items()}
    return Options(**chosen, said=said)


def _find(option: Option, config: pytest.Config, environ: Mapping[str, str]) -> tuple[str, Any] | None:
    """Where an option was said, and its value: command line, then environment, then ini."""
    here = config.invocation_params.dir
    given = config.getoption(option.ini)
    if given is not None:
        return option.flag, _anchor(tuple(given) if option.repeatable else given, here)
    text = environ.get(option.variable)
    if text:
        value = _parse(option, option.variable, text.split(":") if option.repeatable else text)
        return option.variable, _anchor(value, here)
    ini = _ini(option, config)
    if ini is None or ini == []:
        return None
    value = _parse(option, option.ini, ini if isinstance(ini, list) else str(ini))
    return option.ini, _anchor(value, config.rootpath)


def _ini(option: Option, config: pytest.Config) -> Any:
    """The ini file's value in the type that the option's kind has there; UsageError for another."""
    try:
        return config.getini(option.ini)
    except (TypeError, ValueError, pytest.UsageError) as error:  # which one depends on pytest's version
        raise UsageError(f"{option.ini} in {config.inipath}: {error}") from error


def _anchor(value: Any, folder: Path) -> Any:
    """Relative paths as absolute ones, so that a test that changes the working directory changes no artefact's place:
    those of an ini file start at its folder, all others where pytest was started."""
    if isinstance(value, tuple):
        return tuple(_anchor(part, folder) for part in value)
    return folder / value if isinstance(value, Path) else value


def _parse(option: Option, where: str, text: str | list[str]) -> Any:
    try:
        return tuple(option.parse(part) for part in text) if isinstance(text, list) else option.parse(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _think(values: Mapping[str, tuple[str, Any]]) -> bool | None:
    """One switch out of two flags; of both, the one that was said nearer: command line, environment, ini."""
    said = {name: where for name in ("think", "no_think") if name in values for where, on in [values[name]] if on}
    nearest = min(map(_distance, said.values()), default=0)
    said = {name: where for name, where in said.items() if _distance(where) == nearest}
    if len(said) == 2:
        raise UsageError(f"{' and '.join(said.values())} contradict each other; give one of them")
    return None if not said else "think" in said


def _distance(where: str) -> int:
    """How far from the command line a value was said."""
    return 0 if where.startswith("--") else 1 if where.isupper() else 2
