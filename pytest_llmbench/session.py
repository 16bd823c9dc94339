"""What one pytest process knows about its benchmarks: options, backends, matrices, what is open and measured."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.accelerator import Accelerator
from pytest_llmbench.errors import BenchError, Unavailable, UsageError
from pytest_llmbench.options import Options
from pytest_llmbench.progress import Progress

if TYPE_CHECKING:
    from pytest_llmbench.backends.base import Backend, Target
    from pytest_llmbench.figures import Loaded, Source
    from pytest_llmbench.matrix import Matrix, MatrixEntry, RunSettings
    from pytest_llmbench.measure import Measurement, Meter
    from pytest_llmbench.parity_record import ParityRecord
    from pytest_llmbench.record import Result
    from pytest_llmbench.session_plans import Plans

YAML_SUFFIXES = (".yaml", ".yml")
HEAD_CHARACTERS = 65536
# At the start of a line, or in a flow mapping (JSON is YAML).
MATRIX_KEY = re.compile(r"""(?:^|[{,]\s*)["']?(?:tests|custom_prompts|settings|defaults)["']?[ \t]*:""", re.MULTILINE)
# A plan's first word, or a key at the start of a line.
PLAN_KEY = re.compile(r"""(?:\A\s*\{\s*|^)["']?parity["']?[ \t]*:""", re.MULTILINE)
HEAD_BYTES = 4096
MeasurementKey = tuple["MatrixEntry", str]


class Bench:
    """One per pytest process (with xdist: one in each worker, and one in the controller)."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config = config
        self.options = options
        self.accelerator = Accelerator()
        self.progress = Progress(None, live=False)
        self.resumed: dict[str, Result] = {}
        self.resumed_sections: dict[tuple[str, str, str], Mapping[str, Any]] = {}
        self.saved: Loaded | None = None
        self.here: Source | None = None
        self.warnings: list[str] = []
        self.unwritten: list[str] = []
        self._matrices: dict[Path, Matrix] = {}
        self._records: dict[Path, ParityRecord] = {}
        self._availability: dict[MatrixEntry, Unavailable | None] = {}
        self._measured: dict[MeasurementKey, Measurement | BenchError] = {}

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """Built-in backends and those that the hook adds, by name."""
        from pytest_llmbench.backends import builtin_backends

        backends = dict(builtin_backends())
        self.config.hook.pytest_llmbench_register_backends(backends=backends, config=self.config)
        return backends

    @cached_property
    def plans(self) -> Plans:
        """The parity plans of this session."""
        from pytest_llmbench.session_plans import Plans

        return Plans(self)

    @cached_property
    def named_paths(self) -> frozenset[Path]:
        """Files and folders on the command line, and those of the ini value `llmbench_records`."""
        here = self.config.invocation_params.dir
        given = self.config.args if self.config.args_source is pytest.Config.ArgsSource.ARGS else []
        named = [here / argument.partition("::")[0] for argument in given]
        return frozenset(path.resolve() for path in [*named, *self.options.records])

    @cached_property
    def matrix_roots(self) -> tuple[Path, ...]:
        return tuple(path.resolve() for path in self.options.matrix)

    def is_matrix_file(self, path: Path) -> bool:
        """A YAML file where the matrix option points, or one that was named and reads like a matrix.

        Any other is not our business: another plugin may have tests in it.
        """
        if path.suffix not in YAML_SUFFIXES:
            return False
        path = path.resolve()
        below = any(root == path or root in path.parents for root in self.matrix_roots)
        return (below or (path in self.named_paths and _reads_like_matrix(path))) and not _says_plan(path)

    def is_plan_file(self, path: Path) -> bool:
        """A parity plan that was named, or whose folder was: a run takes hours, so none is run by the way."""
        if path.suffix not in YAML_SUFFIXES:
            return False
        real = path.resolve()
        named = real in self.named_paths or real.parent in self.named_paths or real in self.matrix_roots
        return named and _says_plan(real)

    def is_record_file(self, path: Path) -> bool:
        """A JSON file that was named, or a record whose folder was: old records aren't replayed by the way."""
        if path.suffix != ".json":
            return False
        path = path.resolve()
        # `pytest .` names the folder of any package.json: of such files, only those that say so are records.
        return path in self.named_paths or (path.parent in self.named_paths and _says_record(path))

    def matrix(self, path: Path) -> Matrix:
        """The file's matrix, read once. MatrixError with the line."""
        from pytest_llmbench import matrix_file

        real = path.resolve()  # one file by two names has to give the same entries
        if real not in self._matrices:
            self._matrices[real] = matrix_file.load(path, backends=self.backends)
        return self._matrices[real]

    def record(self, path: Path) -> ParityRecord:
        """The parity record at `path`, read once. RecordError with the place."""
        from pytest_llmbench.parity_record import read_parity_record

        if path not in self._records:
            self._records[path] = read_parity_record(path)
        return self._records[path]

    def learn_record(self, nodeid: str) -> None:
        """Read the record that a test replays, where another process has collected it. A file that is gone is said."""
        path = Path(os.path.normpath(self.config.rootpath / nodeid.partition("::")[0]))
        if path.suffix != ".json":
            return
        try:
            self.record(path)
        except UsageError as error:
            self.warnings += [str(error)] if str(error) not in self.warnings else []

    @property
    def records(self) -> tuple[ParityRecord, ...]:
        """The records read so far."""
        return tuple(self._records.values())

    def configured_records(self) -> tuple[ParityRecord, ...]:
        """Every record that was named: what tests outside of record files run over."""
        named = [path for given in sorted(self.named_paths) for path in (given, *sorted(given.glob("*.json")))]
        files = [path for path in dict.fromkeys(named) if path.is_file() and self.is_record_file(path)]
        if not files:
            raise UsageError(
                "no saved record to run over: name one on the command line, or in the ini value llmbench_records"
            )
        return tuple(self.record(path) for path in files)

    def configured_matrices(self) -> tuple[Matrix, ...]:
        """Every matrix that the option names: what tests outside matrix files run over."""
        files: list[Path] = []
        for root in self.matrix_roots:
            if not root.exists():
                raise UsageError(f"{root}: no such matrix file or folder; correct --llmbench-matrix or llmbench_matrix")
            found = sorted(p for p in root.rglob("*") if p.suffix in YAML_SUFFIXES) if root.is_dir() else [root]
            files.extend(path for path in found if not _says_plan(path))
        if not files:
            raise UsageError(
                "no matrix to run over: name a file with --llmbench-matrix or the ini value llmbench_matrix"
            )
        matrices = tuple(self.matrix(path) for path in dict.fromkeys(files))
        _refuse_same_ids(matrices)
        return matrices

    def settings(self, entry: MatrixEntry) -> RunSettings:
        """The values that the entry runs with. UsageError for a prompt that its file doesn't know."""
        from pytest_llmbench.matrix import resolve

        matrix = self.matrix(entry.path)
        settings = resolve(matrix, entry, self.options.overrides)
        unknown = [name for name in settings.prompts if name not in matrix.prompt_names]
        if unknown:
            raise UsageError(
                f"{self.options.said['prompts']}: {matrix.path.name} has no prompt {unknown[0]!r}; "
                f"there are: {', '.join(matrix.prompt_names)}"
            )
        return settings

    def unavailable(self, entry: MatrixEntry) -> Unavailable | None:
        """Why the entry can't run on this machine; None if it can. Looked up once."""
        from pytest_llmbench import requirements

        if entry not in self._availability:
            try:
                requirements.check(entry.requires, beside=entry.path)
                self.backends[entry.backend].check(entry)
                self._availability[entry] = None
            except Unavailable as error:
                self._availability[entry] = error
        return self._availability[entry]

    @cached_property
    def log_dir(self) -> Path:
        """Where server logs go: below `--llmbench-out`, else in pytest's own temporary folder."""
        if self.options.out is not None:
            return self.options.out / "logs"
        factory: pytest.TempPathFactory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        return factory.mktemp("llmbench-logs")

    @contextmanager
    def open(self, entry: MatrixEntry) -> Iterator[Target]:
        """The entry's target, alone on this host's accelerator while it is open."""
        self.progress.say(f"{entry.id}: waiting for the accelerator")
        with (
            self.accelerator.hold(self.progress.announce),
            self.backends[entry.backend].open(
                entry,
                self.settings(entry),
                log_dir=self.log_dir,
                report=lambda line: self.progress.say(f"{entry.id}: {line}"),
            ) as target,
        ):
            yield target

    def measure(self, meter: Meter, entry: MatrixEntry, prompt: str, *, level: int | None = None) -> Measurement:
        """The entry's measurement of that prompt, taken once; what went wrong the first time is raised again."""
        from pytest_llmbench import prompts

        key = (entry, prompt)
        if key not in self._measured:
            try:
                spec = prompts.specs(self.settings(entry))[prompt]
                self._measured[key] = meter.measure(entry.id, spec, level=level)
            except BenchError as error:
                self._measured[key] = error
        found = self._measured[key]
        if isinstance(found, BenchError):
            raise found
        return found


def _says_record(path: Path) -> bool:
    """Whether the start of a JSON file names a parity record's schema."""
    with path.open("rb") as file:
        return b'parity-record"' in file.read(HEAD_BYTES)


def _refuse_same_ids(matrices: Iterable[Matrix]) -> None:
    """UsageError for an id in two files: a test that runs over both couldn't tell its entries apart."""
    seen: dict[str, MatrixEntry] = {}
    for entry in (entry for matrix in matrices for entry in matrix.entries):
        other = seen.setdefault(entry.id, entry)
        if other is not entry:
            raise UsageError(
                f"{entry.path}:{entry.line}: id {entry.id!r} is already used in {other.path}:{other.line}; "
                "change one, or name one file with --llmbench-matrix"
            )


def _reads_like_matrix(path: Path) -> bool:
    """Whether the file has a key that only a matrix has; a file without any content is an empty matrix."""
    try:
        head = _head(path)
    except OSError:
        return True
    content = re.sub(r"#.*", "", head).strip()
    return not content or MATRIX_KEY.search(head) is not None


def _says_plan(path: Path) -> bool:
    """Whether the file has the key that makes it a parity plan."""
    try:
        return PLAN_KEY.search(re.sub(r"#.*", "", _head(path))) is not None
    except OSError:
        return False


def _head(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.read(HEAD_CHARACTERS)


BENCH = pytest.StashKey[Bench]()


def bench_of(config: pytest.Config) -> Bench:
    """The process's `Bench`, made by the plugin's `pytest_configure`."""
    return config.stash[BENCH]
