"""What every backend is held to, on a real server where one runs on Linux and on a replay of its protocol elsewhere.

A check is a test here; what a subject can't be checked for stands in `conformance_limits.CANNOT`, with the reason;
only why requests are answered one at a time is known to the backend itself.
`ci/verify_servers` runs this file and publishes what came of it. Another check is another test.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conformance_kit import CONTEXT, Place, Subject, subjects
from conformance_limits import CANNOT
from server_kit import group_members, open_target, port_of

from processes import is_running
from pytest_llmbench.backends import builtin_backends
from pytest_llmbench.backends.base import ServesMany, Target
from pytest_llmbench.backends.diffusion_target import LOST
from pytest_llmbench.errors import PortInUse, RequestError, ServerStartError, Unavailable
from pytest_llmbench.memory import process_memory
from pytest_llmbench.ports import port_owner
from pytest_llmbench.prompts import Message, Prompt, PromptMaker, builtin
from pytest_llmbench.sample import Sample

ASKED, FIXED, LONG_WORDS, STREAMS = 64, 40, 3000, 4
LONG = Prompt(
    name="long",
    messages=(Message(role="user", content="value " * LONG_WORDS),),
    tokens=None, exact=False, shared_tokens=0,
)  # fmt: skip
ABSENT = "heron/basalt-7b"


@pytest.fixture(scope="module", params=subjects(), ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    if found.missing:
        pytest.skip(found.missing)
    return found


@pytest.fixture(autouse=True)
def able(request: pytest.FixtureRequest) -> None:
    """Skips what the subject can't be checked for."""
    if "subject" in request.fixturenames:
        reason = CANNOT.get(request.node.originalname, {}).get(request.getfixturevalue("subject").name)
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(scope="module")
def place(subject: Subject, tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with subject.prepare(tmp_path_factory.mktemp("place"), tiny_checkpoints) as found:
        yield found


@pytest.fixture(scope="module")
def one_at_a_time(place: Place) -> str:
    """Why several requests at once would wait for each other, in the backend's words; "" if they don't."""
    try:
        builtin_backends()[place.entry.backend].check_streams(place.entry, STREAMS)
    except Unavailable as error:
        return error.reason
    return ""


@pytest.fixture(scope="module")
def target(place: Place, one_at_a_time: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    streams = (1,) if one_at_a_time else (1, STREAMS)
    with open_target(
        place.entry, tmp_path_factory.mktemp("logs"), prompts=("short", "long"), concurrency=streams
    ) as found:
        yield found


@pytest.fixture(scope="module")
def make(target: Target) -> Callable[[str], Prompt]:
    """Makes a new prompt. One maker for all: a prompt of another one could begin as one does that the cache knows."""
    maker = PromptMaker(target.tokenizer)
    return lambda name: maker.make(builtin(name))


@pytest.fixture(scope="module")
def ask(target: Target, make: Callable[[str], Prompt]) -> Callable[..., Sample]:
    """Asks with a new prompt, or with a given one."""

    def stream(prompt: Prompt | None = None, *, cached: bool = False) -> Sample:
        prompt = prompt or make("short")
        samples = (
            target.stream(prompt, max_tokens=ASKED, temperature=0.0, fixed_length=False, cached=cached)
            for _ in range(9)
        )
        # llama.cpp's diffusion program may end before its log is written.
        return next(sample for sample in samples if sample.invalid != LOST)

    return stream


# --- start ---


def test_it_is_ready_with_the_model_that_was_asked_for(subject: Subject, place: Place, target: Target) -> None:
    assert target.info.backend == subject.backend
    name = Path(target.info.model).name
    assert name in place.entry.model_id or place.entry.model_id in name
    assert target.info.pid is None or is_running(target.info.pid)


def test_it_tells_its_version(subject: Subject, target: Target, request: pytest.FixtureRequest) -> None:
    assert target.info.version
    request.node.user_properties.append(("version", target.info.version))


def test_the_load_is_timed(target: Target) -> None:
    assert target.info.load_s is not None
    assert target.info.load_s > 0


def test_it_listens_on_a_port_of_its_own(subject: Subject, target: Target) -> None:
    info = target.info
    owner = port_owner(port_of(target))
    assert owner is not None
    assert info.pid is not None
    assert owner.pid == info.pid == os.getpgid(info.pid) != os.getpgid(0)
    assert info.command is not None
    assert info.log_path is not None
    assert stat.S_IMODE(info.log_path.stat().st_mode) == 0o600


# --- answers ---


def test_an_answer_streams(subject: Subject, target: Target, ask: Callable[..., Sample]) -> None:
    sample = ask()
    assert sample.invalid is None
    assert sample.text == subject.text or (subject.text is None and sample.text)
    assert sample.reasoning == subject.reasoning
    assert sample.answered_by == target.info.model or not subject.real or subject.where == "program"
    stamps = [delta.at_ns for delta in sample.deltas]
    assert stamps == sorted(stamps)
    assert sample.total_s > 0
    assert len(stamps) > 1 or subject.where == "program"


def test_tokens_are_counted(subject: Subject, ask: Callable[..., Sample]) -> None:
    sample = ask()
    assert sample.completion_tokens == subject.tokens
    assert sample.token_source == ("engine" if subject.where == "inside" else "usage")
    assert (sample.thinking_tokens, sample.visible_tokens) == subject.parts
    assert sample.finish_reason == subject.finish
    assert sample.stopped_early


def test_thinking_is_switched(subject: Subject, make: Callable[[str], Prompt], ask: Callable[..., Sample]) -> None:
    said = {}
    for think in (True, False):
        sample = ask(replace(make("short"), think=think))
        said[think] = (sample.reasoning, sample.text, sample.completion_tokens)
    assert said == {
        True: (subject.reasoning, subject.text, subject.tokens),
        False: ("", subject.text, subject.plain_tokens),
    }


def test_no_cache_answers_a_new_prompt(ask: Callable[..., Sample]) -> None:
    for _ in range(2):
        sample = ask()
        assert sample.invalid is None
        assert sample.cached_tokens is not None
        # The template's own start is the same in each prompt.
        assert sample.cached_tokens < 10


def test_a_repeated_prompt_is_answered_by_the_cache(
    subject: Subject, make: Callable[[str], Prompt], ask: Callable[..., Sample]
) -> None:
    prompt = make("long")
    ask(prompt, cached=True)
    again = ask(prompt, cached=True)
    assert subject.uncached is not None
    assert again.prompt_tokens is not None
    assert again.cached_tokens == again.prompt_tokens - subject.uncached
    assert again.invalid is None


def test_a_fixed_length_is_kept_or_its_lack_is_marked(
    subject: Subject, target: Target, make: Callable[[str], Prompt]
) -> None:
    sample = target.stream(make("short"), max_tokens=FIXED, temperature=0.0, fixed_length=True)
    expected = (FIXED, "length", False) if subject.goes_on else (subject.tokens, subject.finish, True)
    assert (sample.completion_tokens, sample.finish_reason, sample.stopped_early) == expected


def test_several_requests_at_once_are_each_answered(
    subject: Subject, one_at_a_time: str, target: Target, make: Callable[[str], Prompt]
) -> None:
    if one_at_a_time:
        pytest.skip(one_at_a_time)
    assert isinstance(target, ServesMany)
    prompts = [make("short") for _ in range(STREAMS)]
    samples = target.stream_many(prompts, max_tokens=ASKED, temperature=0.0, fixed_length=False)
    expected = (None, subject.text, subject.tokens)
    assert [(s.invalid, s.text, s.completion_tokens) for s in samples] == [expected] * STREAMS


def test_memory_is_that_of_its_own_processes(place: Place, target: Target, ask: Callable[..., Sample]) -> None:
    target.reset_peak_memory()
    ask()
    pid = target.info.pid or place.pid
    assert pid is not None
    held, peak = process_memory(pid), target.peak_memory()
    assert held is not None
    assert peak.peak_bytes is not None
    # Pages that are shared count less the more processes share them.
    assert peak.peak_bytes > 0.8 * held.current_bytes > 1_000_000


def test_a_prompt_longer_than_the_context_is_refused_or_read_whole(
    subject: Subject, target: Target, ask: Callable[..., Sample]
) -> None:
    def stream() -> Sample:
        return target.stream(LONG, max_tokens=8, temperature=0.0, fixed_length=False)

    if subject.too_long is None:
        read = stream().prompt_tokens
        assert read is not None
        assert read > LONG_WORDS > CONTEXT
    else:
        with pytest.raises(RequestError, match=subject.too_long):
            stream()
    assert ask().text == subject.text or subject.text is None


# --- end ---


def test_what_was_started_is_gone_afterwards_and_nothing_else(place: Place, tmp_path: Path) -> None:
    with open_target(place.entry, tmp_path) as target:
        group, port = target.info.pid, port_of(target)
        assert port_owner(port) is not None
    if place.pid is not None:
        assert group is None
        assert is_running(place.pid)
        assert port_owner(port) is not None
        return
    assert group is not None
    assert group_members(group) == []
    assert port_owner(port) is None
    socket.create_server(("127.0.0.1", port)).close()


# --- what can't be ---


def test_a_model_that_is_not_there_is_named(subject: Subject, place: Place, tmp_path: Path) -> None:
    wanted = replace(place.entry, model_id=ABSENT)
    if subject.backend == "openai":
        # Only the server knows what it has.
        with pytest.raises(ServerStartError, match="it lists other models: "), open_target(wanted, tmp_path):
            pass
        return
    with pytest.raises(Unavailable, match=ABSENT) as caught:
        builtin_backends()[wanted.backend].check(wanted)
    assert ABSENT in caught.value.fix


def test_a_program_that_is_not_there_is_told_with_the_fix(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = builtin_backends()[place.entry.backend].check
    with pytest.raises(Unavailable, match="/nowhere/program is no program") as caught:
        check(replace(place.entry, server_binary="/nowhere/program"))
    assert "server_binary" in caught.value.fix
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(Unavailable, match="is not installed") as caught:
        check(replace(place.entry, server_binary=None))
    assert "install" in caught.value.fix or "build" in caught.value.fix


def test_its_usage_error_is_in_ours(place: Place, tmp_path: Path) -> None:
    wanted = replace(place.entry, extra_args=(*place.entry.extra_args, "--no-such-flag"))
    with pytest.raises(ServerStartError) as caught, open_target(wanted, tmp_path):
        pass
    _, _, output = str(caught.value).partition("lines:\n")
    assert "--no-such-flag" in output


def test_a_taken_port_is_left_to_its_owner(place: Place, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PortInUse, match=f"port {port} is in use by .*pid {os.getpid()}"),
            open_target(place.entry, tmp_path / "logs", bench_port=port),
        ):
            pass
        socket.create_connection(("127.0.0.1", port)).close()
    assert not (tmp_path / "logs").exists()
