"""What servers that run anyway have in common: they are told to load and to unload our model, and are never stopped."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pytest_llmbench.backends import answers, reach
from pytest_llmbench.backends.base import FIRST, OF_A_PROCESS, Backend, Report, TargetInfo, load_seconds, refuse_fields
from pytest_llmbench.backends.llama_dialect import llama_cached, llama_timings
from pytest_llmbench.backends.room import context_tokens, needed_tokens
from pytest_llmbench.backends.server import api_key
from pytest_llmbench.backends.together import HttpTarget
from pytest_llmbench.backends.watched import OpenClient, WatchedClient
from pytest_llmbench.chat import CHAT_PATH, ChatClient, Reply
from pytest_llmbench.errors import BenchError, RequestError, ServerStartError, ServerTimeout, Unavailable
from pytest_llmbench.matrix import MatrixEntry, RunSettings
from pytest_llmbench.memory import MemoryPeak, MemorySampler
from pytest_llmbench.process import ServerProcess
from pytest_llmbench.prompts import Prompt
from pytest_llmbench.sample import Sample, ServerTimings
from pytest_llmbench.sse import OPENAI, Wire

UNEVEN = 1.5
"""Without the model's tokenizer a prompt's length is an estimate; it may have this many times as many tokens."""
MOST_CHARACTERS_PER_TOKEN = 12
POLL_S = 0.1
CLOCK_S = 1.0
"""Processes' times of start are rounded, on some systems to the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the server is. `process`: the server, where it is one that we started."""

    url: str
    process: ServerProcess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One entry on an open server."""

    entry: MatrixEntry
    settings: RunSettings
    place: Place
    client: OpenClient | WatchedClient
    report: Report

    @property
    def least_context(self) -> int:
        """Tokens that the entry's prompts and answers need, if they are as long as they are meant to be."""
        return needed_tokens(self.settings)

    @property
    def wanted_context(self) -> int:
        """Tokens that they need, if their length was guessed badly."""
        return int(context_tokens(self.settings) * UNEVEN)

    @property
    def patience_s(self) -> float:
        return self.settings.server_timeout

    def check_context(self, tokens: int | None) -> None:
        """ServerStartError where the model was loaded for fewer `tokens` than the entry's prompts need."""
        if tokens is not None and tokens < self.least_context:
            raise ServerStartError(f"it is loaded for {tokens} tokens, its prompts need {self.least_context}")

    def wait(self, true: Callable[[], bool], problem: str) -> None:
        """Ask until `true()`; ServerTimeout with `problem`."""
        deadline = time.monotonic() + self.patience_s
        while not true():
            if time.monotonic() > deadline:
                raise ServerTimeout(f"{problem}, {self.patience_s:g} s later")
            time.sleep(POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A loaded model: the name by which requests ask for it, the one with which it answers, and the backend's facts."""

    asked: str
    answers: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class RunningBackend(Backend):
    """A backend whose server runs anyway."""

    chat_path: ClassVar[str] = CHAT_PATH
    wire: ClassVar[Wire] = OPENAI
    meaningless: ClassVar[tuple[str, ...]] = OF_A_PROCESS
    family: ClassVar[str] = ""
    workers: ClassVar[str] = ""
    """Which processes hold the model: see `reach.serving_pids`."""
    times_load: ClassVar[bool] = True
    takes_tools: ClassVar[bool] = True

    @abstractmethod
    def url(self, entry: MatrixEntry) -> str:
        """Where the server listens, without a slash at the end."""

    @abstractmethod
    def find(self, entry: MatrixEntry) -> None:
        """Return if server and model are there; Unavailable with the fix if not. Starts and loads nothing."""

    @abstractmethod
    def load(self, session: Session) -> Loaded:
        """Load the model, which `clear` has freed. RequestError, ServerStartError or ServerTimeout if it fails."""

    def clear(self, session: Session) -> None:
        """Free the model's memory, if the server holds it: before the load, which is timed, and at the end."""

    def holds(self, session: Session) -> bool:
        """Whether the server still holds the model, after `clear`."""
        return False

    def prove(self, session: Session, loaded: Loaded) -> None:
        """After its first answers: ServerStartError where the server has loaded something else than the entry says."""

    def key(self, entry: MatrixEntry) -> str | None:
        return api_key(entry)

    def version(self, session: Session) -> str | None:
        return None

    def request_fields(
        self, session: Session, loaded: Loaded, prompt: Prompt, *, fixed_length: bool, cached: bool
    ) -> Mapping[str, Any]:
        """What this server's dialect adds to OpenAI's: thinking, output length, cache."""
        return {}

    def body(self, session: Session, loaded: Loaded, prompt: Prompt, **how: Any) -> Mapping[str, Any]:
        """A whole request; `how` is `Target.stream`'s."""
        fields = self.request_fields(session, loaded, prompt, fixed_length=how["fixed_length"], cached=how["cached"])
        return answers.chat_body(
            loaded.asked, prompt, max_tokens=how["max_tokens"], temperature=how["temperature"], fields=fields
        )

    def check_answer(self, reply: Reply, loaded: Loaded) -> None:
        """RequestError for an answer of another model."""
        answers.check_model(reply, loaded.answers)

    def cached_tokens(self, reply: Reply) -> int | None:
        return llama_cached(reply)

    def timings(self, session: Session, loaded: Loaded, reply: Reply) -> ServerTimings:
        """The server's own figures; by default llama.cpp's, which runs under many and is copied by others."""
        return llama_timings(reply.timings)

    @contextmanager
    def serving(self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report) -> Iterator[Place]:
        """The server as it is. A backend that can start one does so here."""
        yield Place(url=self.url(entry))

    def check(self, entry: MatrixEntry) -> None:
        refuse_fields(entry, self.meaningless, who=self.name)
        self.find(entry)

    @contextmanager
    def open(
        self, entry: MatrixEntry, settings: RunSettings, *, log_dir: Path, report: Report
    ) -> Iterator[RunningTarget]:
        self.check(entry)
        key = self.key(entry)
        with (
            self.serving(entry, settings, log_dir=log_dir, report=report) as place,
            ChatClient(
                place.url, api_key=key, timeout_s=settings.server_timeout, path=self.chat_path, wire=self.wire
            ) as http,
        ):
            client = OpenClient(http, key) if place.process is None else WatchedClient(http, place.process)
            session = Session(entry=entry, settings=settings, place=place, client=client, report=report)
            with self._loaded(session) as (loaded, pids, begun_ns), MemorySampler(pids) as sampler:
                target = RunningTarget(self, session, loaded, sampler)
                with _starting(session):
                    target.answer_first(begun_ns)
                    self.prove(session, loaded)
                yield target

    @contextmanager
    def _loaded(self, session: Session) -> Iterator[tuple[Loaded, Callable[[], tuple[int, ...]], int]]:
        with _starting(session):
            self.clear(session)
            session.wait(lambda: not self.holds(session), f"{self.name} still holds {session.entry.model_id}")
        since = time.time() - CLOCK_S
        session.report(f"{self.name}: loading {session.entry.model_id}")
        try:
            with _starting(session):
                begun_ns, loaded = time.monotonic_ns(), self.load(session)
            yield loaded, self._pids(session, since), begun_ns
        finally:  # a load that we gave up may end well
            try:
                self.clear(session)
            except BenchError as error:
                session.report(f"{self.name} didn't unload {session.entry.model_id}: {error}")

    def _pids(self, session: Session, since: float) -> Callable[[], tuple[int, ...]]:
        if session.place.process is not None:
            return session.place.process.processes
        found = reach.serving_pids(session.place.url, family=self.family, workers=self.workers, since=since)
        return lambda: reach.still_running(found)


class RunningTarget(HttpTarget):
    """A model on a server that runs anyway."""

    tokenizer = None

    def __init__(self, backend: RunningBackend, session: Session, loaded: Loaded, sampler: MemorySampler) -> None:
        self._backend = backend
        self._session = session
        self._loaded = loaded
        self._sampler = sampler
        process = session.place.process
        self.info = TargetInfo(
            backend=backend.name,
            version=None,
            model=loaded.asked,
            load_s=None,
            command=process.command_line if process else None,
            base_url=session.place.url,
            pid=process.pid if process else None,
            log_path=process.log_path if process else None,
        )

    def answer_first(self, begun_ns: int) -> None:
        """Two one-token completions: the first ends the load, the second tells what a first token takes by itself."""
        self._answer(FIRST, max_tokens=1, temperature=0.0, fixed_length=False, cached=False)
        answered_ns = time.monotonic_ns()
        reply = self._answer(FIRST, max_tokens=1, temperature=0.0, fixed_length=False, cached=False)
        load_s = load_seconds(begun_ns, answered_ns, reply) if self._backend.times_load else None
        version = self._backend.version(self._session)
        self.info = replace(self.info, load_s=load_s, version=version, fingerprint=reply.fingerprint)

    def _sample(self, prompt: Prompt, reply: Reply, *, max_tokens: int, cached: bool) -> Sample:
        sample = answers.to_sample(
            prompt,
            reply,
            max_tokens=max_tokens,
            cached=cached,
            cached_tokens=self._backend.cached_tokens(reply),
            timings=self._backend.timings(self._session, self._loaded, reply),
            tokenizer=None,
        )
        return replace(sample, invalid=sample.invalid or (None if cached else why_cut(prompt, sample.prompt_tokens)))

    def call_tools(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]], **how: Any) -> Reply:
        if not self._backend.takes_tools:
            raise Unavailable(f"{self._backend.name}'s own chat takes no tools", fix="use backend openai for this test")
        return self._answer(prompt, tools=tools, **how, fixed_length=False, cached=False)

    def reset_peak_memory(self) -> None:
        self._sampler.reset()

    def peak_memory(self) -> MemoryPeak:
        return self._sampler.peak()

    def _answer(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = (), **how: Any) -> Reply:
        body = dict(self._backend.body(self._session, self._loaded, prompt, **how))
        body |= {"tools": list(tools)} if tools else {}
        reply = self._session.client.stream(body, max_tokens=how["max_tokens"])
        self._backend.check_answer(reply, self._loaded)
        return reply


def why_cut(prompt: Prompt, seen: int | None) -> str | None:
    """Why a prompt can't have been read whole, where no tokenizer tells how long it is; None if it can.

    Some servers cut one that is too long for their context, and say nothing.
    """
    characters = sum(len(m.content) for m in prompt.messages)
    if seen is None or characters <= seen * MOST_CHARACTERS_PER_TOKEN:
        return None
    return f"the server saw {seen} prompt tokens of {characters} characters: it cut the prompt"


@contextmanager
def _starting(session: Session) -> Iterator[None]:
    """What goes wrong before the first measurement is a failed start, of this model on that server."""
    place = session.place
    try:
        yield
    except (RequestError, ServerStartError, ServerTimeout) as error:
        text = f"{place.url} can't serve {session.entry.model_id}: {error}"
        if isinstance(error, ServerTimeout):
            raise ServerTimeout(text) from error
        raise ServerStartError(place.process.explain(text) if place.process else text) from error
