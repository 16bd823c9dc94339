"""What every server that we start has in common: port, process, readiness, request, memory, stop."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench import models
from pytest_llmbench.backends.base import Backend, Report, TargetInfo
from pytest_llmbench.backends.readiness import FirstAnswer
from pytest_llmbench.backends.watched import WatchedClient
from pytest_llmbench.chat import ChatClient, Reply
from pytest_llmbench.counting import count_tokens, why_invalid
from pytest_llmbench.errors import RequestError, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemoryPeak, MemorySampler
from pytest_llmbench.ports import LOOPBACK, check_port_free, free_port
from pytest_llmbench.process import ServerProcess
from pytest_llmbench.prompts import Prompt, Tokenizer
from pytest_llmbench.sample import Sample, ServerTimings

HOST = LOOPBACK
ADDRESS_FLAGS = frozenset({"--host", "--port", "-H", "-p"})
GRACE_S = 10.0


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

    def cached_tokens(self, reply: Reply) -> int | None:
        details = reply.usage.get("prompt_tokens_details") or {}
        return details.get("cached_tokens")

    def check(self, entry: MatrixEntry) -> None:
        _refuse_addresses(entry)
        self.binary(entry)
        self.model(entry)
        api_key(entry)

    def launch(self, entry: MatrixEntry, settings: RunSettings, port: int) -> Launch:
        model = self.model(entry)
        arguments = self.arguments(entry, settings, model=model, port=port)
        extra = [os.path.expanduser(word) if word.startswith("~/") else word for word in entry.extra_args]  # noqa: PTH111
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
        port = settings.bench_port or free_port()
        check_port_free(port)
        launch = self.launch(entry, settings, port)
        report(f"starting {self.name} on {launch.model.name}")
        with (
            ServerProcess.start(
                launch.command,
                env={**self.environment(), **dict(entry.env)},
                log_path=log_dir / f"{entry.path.stem}.{entry.id}.log",
                secrets=[launch.api_key] if launch.api_key else [],
                grace_s=GRACE_S,
            ) as process,
            ChatClient(f"http://{HOST}:{port}", api_key=launch.api_key, timeout_s=settings.server_timeout) as client,
            MemorySampler(process.processes) as sampler,
        ):
            target = ServerTarget(self, launch, process, client, sampler)
            target.wait_ready(port, timeout_s=settings.server_timeout, report=report)
            tokenizer = self.tokenizer(launch.model, WatchedClient(client, process))
            target.describe(version=self.version(entry), tokenizer=tokenizer)
            yield target


class ServerTarget:
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

        `load_s` is the time from spawn to that completion, less what a second one takes to its first token: the first
        one may have waited for the load itself (several servers say they are healthy before they have a model).
        """
        first = FirstAnswer(self._process, port, ask=self._ask, loading_statuses=self._backend.loading_statuses)
        answered_ns = first.wait(timeout_s=timeout_s, report=report)
        reply = self._watched.stream(self._one_token, timeout_s=timeout_s)
        first_ns = reply.deltas[0].at_ns if reply.deltas else reply.end_ns
        load_s = max(0.0, (answered_ns - self._process.spawned_ns - first_ns) / 1e9)
        self.info = replace(self.info, load_s=load_s, fingerprint=reply.fingerprint)

    def stream(
        self, prompt: Prompt, *, max_tokens: int, temperature: float, fixed_length: bool = True, cached: bool = False
    ) -> Sample:
        fields = self._backend.request_fields(prompt, max_tokens=max_tokens, fixed_length=fixed_length, cached=cached)
        body = {
            "model": self._launch.model_name,
            "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream_options": {"include_usage": True},
            **fields,
        }
        reply = self._watched.stream(body)
        self._check_answer(reply)
        return self._sample(prompt, reply, max_tokens=max_tokens, cached=cached)

    def reset_peak_memory(self) -> None:
        self._sampler.reset()

    def peak_memory(self) -> MemoryPeak:
        return self._sampler.peak()

    @property
    def _one_token(self) -> Mapping[str, Any]:
        return {
            "model": self._launch.model_name,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1,
            "temperature": 0.0,
            "stream_options": {"include_usage": True},
        }

    def _ask(self, timeout_s: float) -> Reply:
        reply = self._client.stream(self._one_token, timeout_s=timeout_s)
        self._check_answer(reply)
        return reply

    def _check_answer(self, reply: Reply) -> None:
        if reply.model is not None and reply.model != self._launch.model_name:
            raise RequestError(
                f"asked {self._launch.model_name!r}, but {reply.model!r} answered; is another server on this port?",
                status=200,
            )

    def _sample(self, prompt: Prompt, reply: Reply, *, max_tokens: int, cached: bool) -> Sample:
        sample = Sample(
            prompt=prompt.name,
            deltas=reply.deltas,
            end_ns=reply.end_ns,
            requested_tokens=max_tokens,
            finish_reason=reply.finish_reason,
            prompt_tokens=reply.usage.get("prompt_tokens"),
            completion_tokens=reply.usage.get("completion_tokens"),
            token_source="usage" if reply.usage.get("completion_tokens") is not None else None,
            cached_tokens=self._backend.cached_tokens(reply),
            timings=self._backend.timings(reply),
            answered_by=reply.model,
        )
        sample = count_tokens(sample, self.tokenizer, reply.usage)
        return replace(sample, invalid=why_invalid(sample, prompt, cached=cached))


def _refuse_addresses(entry: MatrixEntry) -> None:
    """Servers listen on loopback, on a port that we chose: a second --host or --port would win over ours."""
    for word in entry.extra_args:
        if word.partition("=")[0] in ADDRESS_FLAGS:
            raise Unavailable(f"extra_args set {word}", fix="take it out; a fixed port is the setting bench_port")


def api_key(entry: MatrixEntry) -> str | None:
    """The entry's key, from the environment variable that it names, else from the file."""
    if entry.api_key_env is None:
        return entry.api_key
    value = os.environ.get(entry.api_key_env)
    if not value:
        raise Unavailable(f"no API key: {entry.api_key_env} is not set", fix=f"export {entry.api_key_env}=…")
    return value
