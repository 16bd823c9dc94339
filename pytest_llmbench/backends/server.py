"""What every server that we start has in common: port, process, readiness, request, memory, stop."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends import answers
from pytest_llmbench.backends.base import FIRST, Backend, Report, TargetInfo, check_each, load_seconds, log_path
from pytest_llmbench.backends.readiness import FirstAnswer
from pytest_llmbench.backends.together import HttpTarget
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import ChatClient, Reply
from pytest_llmbench.errors import RequestError, ServerStartError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemoryPeak, MemorySampler
from pytest_llmbench.ports import LOOPBACK, check_port_free, free_port
from pytest_llmbench.process import ServerProcess
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Sample, ServerTimings

HOST = LOOPBACK
ADDRESS_FLAGS = frozenset({"--host", "--port", "-H", "-p"})
GRACE_S = 10.0
ALL_LINES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A resolved entry: what to start, and what to say to it."""

    command: tuple[str, ...]
    model: Path
    model_name: str
    api_key: str | None = field(default=None, repr=False)


class ServerBackend(Backend):
    """A backend that is a child process with an OpenAI-compatible HTTP server."""

    loading_statuses: ClassVar[frozenset[int]] = frozenset({503})
    length_field: ClassVar[str] = "max_tokens"
    """What this server calls the most tokens of an answer."""

    @abstractmethod
    def binary(self, entry: MatrixEntry) -> tuple[str, ...]:
        """The program to start, as the first words of the command; Unavailable with the fix."""

    @abstractmethod
    def arguments(self, entry: MatrixEntry, settings: RunSettings, *, model: Path, port: int) -> Sequence[str]:
        """The command's other words, `extra_args` not included."""

    @abstractmethod
    def request_fields(self, prompt: Prompt, *, max_tokens: int, fixed_length: bool, cached: bool) -> Mapping[str, Any]:
        """What this server's dialect adds to a request: thinking, output length, cache."""

    def model_name(self, entry: MatrixEntry, model: Path) -> str:
        """The name by which requests ask for the model, and with which it must answer."""
        return str(model)

    def model(self, entry: MatrixEntry) -> Path:
        return models.find(entry.model_id, beside=entry.path)

    def version(self, entry: MatrixEntry) -> str | None:
        """The server's own version; None where it can't be told."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Variables for the child. The hub stays closed: a download inside a load time would be no load time."""
        return {"HF_HUB_OFFLINE": "1"}

    def tokenizer(self, model: Path, client: WatchedClient) -> Tokenizer | None:
        return None

    def timings(self, reply: Reply) -> ServerTimings:
        """The server's own figures, in seconds, tokens per second and bytes."""
        return ServerTimings()

    def ask_timings(self, reply: Reply, client: WatchedClient) -> ServerTimings:
        """As `timings`, from a server that must be asked for them after its answer."""
        return self.timings(reply)

    def extra_arguments(self, entry: MatrixEntry) -> Sequence[str]:
        """The entry's `extra_args`, in words that this program knows."""
        return entry.extra_args

    def is_loaded(self, client: ChatClient) -> bool:
        """False while the server says that it has no model yet; asking it for an answer could make it load another."""
        return True

    def prove(self, entry: MatrixEntry, launch: Launch, client: WatchedClient, output: str) -> None:
        """Look, once it answers, whether the server really does what the entry asks; `output` is what it printed.

        ServerStartError where it does something else or doesn't say: several fall back silently.
        """

    def cached_tokens(self, reply: Reply) -> int | None:
        return answers.cached_tokens(reply)

    def check(self, entry: MatrixEntry) -> None:
        _refuse_addresses(entry)
        check_each(lambda: self.binary(entry), lambda: self.model(entry), lambda: api_key(entry))

    def launch(self, entry: MatrixEntry, settings: RunSettings, port: int) -> Launch:
        model = self.model(entry)
        arguments = self.arguments(entry, settings, model=model, port=port)
        words = self.extra_arguments(entry)
        extra = [os.path.expanduser(word) if word.startswith("~/") else word for word in words]  # noqa: PTH111
        return Launch(
            command=(*self.binary(entry), *arguments, *extra),
            model=model,
            model_name=self.model_name(entry, model),
            api_key=api_key(entry),
        )

    @contextmanager
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> Iterator[ServerTarget]:
        port = choose_port(settings)
        launch = self.launch(entry, settings, port)
        report(f"starting {self.name} on {launch.model.name}")
        with (
            ServerProcess.start(
                launch.command,
                env={**self.environment(), **dict(entry.env)},
                log_path=log_path(entry, log_dir),
                secrets=[launch.api_key] if launch.api_key else [],
                grace_s=GRACE_S,
            ) as process,
            ChatClient(f"http://{HOST}:{port}", api_key=launch.api_key, timeout_s=settings.server_timeout) as client,
            MemorySampler(process.processes) as sampler,
        ):
            target = ServerTarget(self, launch, process, client, sampler)
            target.wait_ready(port, timeout_s=settings.server_timeout, report=report)
            target.check_proof(entry)
            tokenizer = self.tokenizer(launch.model, WatchedClient(client, process))
            target.describe(version=self.version(entry), tokenizer=tokenizer)
            yield target


class ServerTarget(HttpTarget):
    """An open server."""

    def __init__(
        self,
        backend: ServerBackend,
        launch: Launch,
        process: ServerProcess,
        client: ChatClient,
        sampler: MemorySampler,
    ) -> None:
        self._backend = backend
        self._launch = launch
        self._process = process
        self._client = client
        self._watched = WatchedClient(client, process)
        self._sampler = sampler
        self.tokenizer: Tokenizer | None = None
        self.info = TargetInfo(
            backend=backend.name,
            version=None,
            model=launch.model_name,
            load_s=None,
            command=process.command_line,
            base_url=client.base_url,
            pid=process.pid,
            log_path=process.log_path,
        )

    def describe(self, *, version: str | None, tokenizer: Tokenizer | None) -> None:
        self.info = replace(self.info, version=version)
        self.tokenizer = tokenizer

    def wait_ready(self, port: int, *, timeout_s: float, report: Report) -> None:
        """Wait for a one-token completion by the expected model, from a listener that is ours.

        `load_s` counts from spawn (see `load_seconds`): several servers say they are healthy before they have a model.
        """
        first = FirstAnswer(self._process, port, ask=self._ask, loading_statuses=self._backend.loading_statuses)
        answered_ns = first.wait(timeout_s=timeout_s, report=report)
        reply = self._watched.stream(self._one_token, max_tokens=1, timeout_s=timeout_s)
        load_s = load_seconds(self._process.spawned_ns, answered_ns, reply)
        self.info = replace(self.info, load_s=load_s, fingerprint=reply.fingerprint)

    def check_proof(self, entry: MatrixEntry) -> None:
        try:
            self._backend.prove(entry, self._launch, self._watched, self._process.log_tail(ALL_LINES))
        except ServerStartError as error:
            raise ServerStartError(self._process.explain(str(error))) from error

    def _sample(self, prompt: Prompt, reply: Reply, *, max_tokens: int, cached: bool) -> Sample:
        return answers.to_sample(
            prompt,
            reply,
            max_tokens=max_tokens,
            cached=cached,
            cached_tokens=self._backend.cached_tokens(reply),
            timings=self._backend.ask_timings(reply, self._watched),
            tokenizer=self.tokenizer,
        )

    def call_tools(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]], *, max_tokens: int, temperature: float
    ) -> Reply:
        return self._answer(
            prompt, max_tokens=max_tokens, temperature=temperature, fixed_length=False, cached=False, tools=list(tools)
        )

    def reset_peak_memory(self) -> None:
        self._sampler.reset()

    def peak_memory(self) -> MemoryPeak:
        return self._sampler.peak()

    def _answer(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool, cached: bool, **more: Any
    ) -> Reply:
        fields = self._backend.request_fields(prompt, max_tokens=max_tokens, fixed_length=fixed_length, cached=cached)
        body = answers.chat_body(
            self._launch.model_name,
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            fields={**fields, **more},
            length_field=self._backend.length_field,
        )
        reply = self._watched.stream(body, max_tokens=max_tokens)
        answers.check_model(reply, self._launch.model_name)
        return reply

    @property
    def _one_token(self) -> Mapping[str, Any]:
        """The smallest request that makes the model work."""
        name, length_field = self._launch.model_name, self._backend.length_field
        return answers.chat_body(name, FIRST, max_tokens=1, temperature=0.0, fields={}, length_field=length_field)

    def _ask(self, timeout_s: float) -> Reply:
        if not self._backend.is_loaded(self._client):
            raise RequestError("the server says that it has no model yet", status=503)
        reply = self._client.stream(self._one_token, max_tokens=1, timeout_s=timeout_s)
        answers.check_model(reply, self._launch.model_name)
        return reply


def choose_port(settings: RunSettings) -> int:
    """The fixed port, else a free one. PortInUse where somebody listens on it."""
    port = settings.bench_port or free_port()
    check_port_free(port)
    return port


def _refuse_addresses(entry: MatrixEntry) -> None:
    """Servers listen on loopback, on a port that we chose: a second --host or --port would win over ours."""
    if entry.server_url:
        raise Unavailable(f"{entry.backend} is started here, not used at a server_url", fix="use backend openai")
    for word in entry.extra_args:
        if word.partition("=")[0] in ADDRESS_FLAGS:
            raise Unavailable(f"extra_args set {word}", fix="take it out; a fixed port is the setting bench_port")


def api_key(entry: MatrixEntry) -> str | None:
    """The entry's key, from the environment variable that it names, else from the file."""
    if entry.api_key_env is None:
        return sendable(entry.api_key, "api_key")
    value = os.environ.get(entry.api_key_env)
    if not value:
        raise Unavailable(f"no API key: {entry.api_key_env} is not set", fix=f"export {entry.api_key_env}=…")
    return sendable(value, entry.api_key_env)


def sendable(key: str | None, name: str) -> str | None:
    """`key` again, None for an empty one. Unavailable where no header can carry it: httpx's error would show it."""
    if key and not re.fullmatch(r"[!-~]+", key):
        raise Unavailable(
            f"{name} holds a space, a line end or a letter beyond ASCII, which no API key has", fix=f"correct {name}"
        )
    return key or None
