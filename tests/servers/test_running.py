"""What holds for every server that runs anyway: it is used, left running, asked in its dialect, and not believed."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from running_kit import CHATS, MODELS, Running, measure, opened
from server_kit import read_record

from pytest_llmbench.backends import builtin_backends, reach
from pytest_llmbench.errors import MeasurementError, RequestError, ServerStartError, ServerTimeout, Unavailable
from pytest_llmbench.matrix import MatrixEntry

MakeRunning = Callable[..., Running]
KEY = "sk-heron-2718-basalt"
EVERY = pytest.mark.parametrize("dialect", list(CHATS))
LOADING = pytest.mark.parametrize("dialect", [d for d in CHATS if d != "openai"])


def check(server: Running, **changes: Any) -> None:
    builtin_backends()[server.dialect].check(server.entry(**changes))


@EVERY
def test_a_measurement_has_counts_and_text_and_the_server_goes_on_afterwards(
    running: MakeRunning, tmp_path: Path, dialect: str
) -> None:
    server = running(dialect)
    check(server)
    with opened(server.entry(), tmp_path) as target:
        measured = measure(target)
        assert target.info.model == server.model
        assert target.info.base_url.startswith(server.url)
        assert (target.info.load_s is None) == (dialect == "openai")
    sample = measured.samples[0]
    assert sample.invalid is None
    assert sample.text.startswith("Paris" if dialect in ("ollama", "lm-studio") else "<think> thinking")
    assert sample.token_source == "usage"
    assert sample.completion_tokens is not None
    assert sample.prompt_tokens is not None
    assert sample.ttft_s is not None
    assert sample.server_decode_tok_s is not None
    assert sample.stopped_early
    assert measured.cached is not None
    assert server.process.poll() is None


@EVERY
def test_checking_asks_for_no_answer_and_loads_nothing(running: MakeRunning, dialect: str) -> None:
    server = running(dialect)
    check(server)
    assert not server.chats
    assert not server.asked("/api/generate") + server.asked("/api/v1/models/load") + server.asked("/engines/_configure")


def test_memory_of_a_runner_whose_engine_is_nowhere_is_not_known(running: MakeRunning, tmp_path: Path) -> None:
    # The port of Docker Model Runner is Docker's own: no engine is running here.
    with opened(running("docker-model-runner").entry(), tmp_path) as target:
        assert target.peak_memory().peak_bytes is None


@LOADING
def test_a_load_is_a_real_one_and_the_model_is_unloaded_at_the_end(
    running: MakeRunning, tmp_path: Path, dialect: str
) -> None:
    server = running(dialect, load_s=0.3)
    for _ in range(2):
        with opened(server.entry(), tmp_path) as target:
            assert target.info.load_s >= 0.3
            held = _held(server)
            assert held
        assert not _held(server)


@LOADING
def test_a_model_that_somebody_has_loaded_before_is_loaded_anew(
    running: MakeRunning, tmp_path: Path, dialect: str
) -> None:
    # For as many tokens as we shall ask for: without an unload before, the load would take no time.
    context = 4096 if dialect == "docker-model-runner" else 384
    server = running(dialect, load_s=0.3, loaded={MODELS[dialect]: context})
    with opened(server.entry(), tmp_path) as target:
        assert target.info.load_s >= 0.3


@LOADING
def test_what_it_takes_to_free_what_somebody_has_loaded_is_no_load(
    running: MakeRunning, tmp_path: Path, dialect: str
) -> None:
    server = running(dialect, unload_s=2.0, loaded={MODELS[dialect]: 64})
    with opened(server.entry(), tmp_path) as target:
        assert target.info.load_s < 2.0


@LOADING
def test_a_load_that_is_given_up_is_told_to_end(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect, load_s=1.0)
    with pytest.raises(ServerTimeout), opened(server.entry(), tmp_path, server_timeout=0.5):
        pass
    last = {
        "ollama": lambda: server.asked("/api/generate")[-1]["keep_alive"] == 0,
        "lm-studio": lambda: read_record(server.record)[-1]["path"] == "/api/v1/models",
        "docker-model-runner": lambda: read_record(server.record)[-1]["path"] == "/engines/ps",
    }
    assert last[dialect]()


LM_ROW = {"key": "qwen3-0.6b", "max_context_length": "much", "capabilities": [], "loaded_instances": [7]}
PATHS = {
    "ollama": ("/api/generate", "/api/ps", "/api/version"),
    "lm-studio": ("/api/v1/models", "/api/v1/models/load", "/api/v1/models/unload"),
    "docker-model-runner": ("/engines/_configure", "/engines/ps", "/engines/unload", "/version"),
    "openai": ("/v1/models",),
}


@pytest.mark.parametrize("odd", [None, [[]], {"models": 1, "instance_id": 1, "version": []}], ids=repr)
@pytest.mark.parametrize(("dialect", "path"), [(dialect, path) for dialect, paths in PATHS.items() for path in paths])
def test_odd_json_about_a_load_is_an_error_that_says_so_or_does_no_harm(
    running: MakeRunning, tmp_path: Path, dialect: str, path: str, odd: Any
) -> None:
    server = running(dialect, odd={path: odd})
    flags = ("--jinja",) if dialect == "docker-model-runner" else ()
    with suppress(ServerStartError, Unavailable), opened(server.entry(extra_args=flags), tmp_path):
        pass
    assert path in [line["path"] for line in read_record(server.record)]


@pytest.mark.parametrize(
    ("dialect", "path", "odd", "said"),
    [
        ("lm-studio", "/api/v1/models/load", {"loaded": True}, "names no instance_id: {'loaded': True}; update LM St"),
        ("lm-studio", "/api/v1/models", {"models": [LM_ROW]}, "doesn't list qwen3-0.6b as loaded"),
        ("docker-model-runner", "/engines/ps", {"error": "no"}, "doesn't list ai/qwen3:0.6B-Q4_K_M as running"),
        ("ollama", "/api/ps", {"models": [{"name": 3}, 4]}, "doesn't list qwen3:0.6b as running"),
    ],
)
def test_what_is_missing_in_the_answer_to_a_load_is_named(
    running: MakeRunning, tmp_path: Path, dialect: str, path: str, odd: Any, said: str
) -> None:
    server = running(dialect, odd={path: odd})
    with pytest.raises(ServerStartError, match=re.escape(said)), opened(server.entry(), tmp_path):
        pass


@pytest.mark.parametrize("dialect", ["ollama", "lm-studio"])
def test_an_answer_without_text_is_no_sample(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect, fault="silent", faultless=2)
    with opened(server.entry(), tmp_path) as target, pytest.raises(MeasurementError, match="no text came"):
        measure(target)


def test_far_more_tokens_than_were_asked_for_are_marked(running: MakeRunning, tmp_path: Path) -> None:
    server = running("ollama", fault="overcounts", faultless=2)
    with opened(server.entry(), tmp_path) as target:
        measured = measure(target)
    assert [sample.ran_over for sample in measured.samples] == [True] * len(measured.samples)
    assert "runs gave far more tokens than they were asked for" in "; ".join(measured.suspicions)


def _held(server: Running) -> list[Any]:
    """What the server itself says that it has loaded."""
    path = {"ollama": "/api/ps", "lm-studio": "/api/v1/models", "docker-model-runner": "/engines/ps"}[server.dialect]
    answer = reach.get(server.url, path)
    assert answer is not None
    rows = reach.rows(answer.json, "models")
    return [i for row in rows for i in row["loaded_instances"]] if server.dialect == "lm-studio" else rows


@LOADING
def test_the_model_is_unloaded_after_a_failing_test(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect)
    with pytest.raises(ZeroDivisionError), opened(server.entry(), tmp_path):
        raise ZeroDivisionError
    assert not _held(server)


@EVERY
def test_without_the_model_the_fix_is_the_command_that_fetches_it(running: MakeRunning, dialect: str) -> None:
    server = running(dialect, models=["another"])
    fixes = {
        "ollama": "ollama pull qwen3:0.6b",
        "lm-studio": "lms get qwen3-0.6b",
        "docker-model-runner": "docker model pull ai/qwen3:0.6B-Q4_K_M",
    }
    if dialect in fixes:
        with pytest.raises(Unavailable) as caught:
            check(server)
        assert caught.value.fix == fixes[dialect]
    else:
        with (
            pytest.raises(ServerStartError, match="it lists other models: another"),
            opened(server.entry(), Path("unused")),
        ):
            pass


@EVERY
def test_nobody_at_the_address_is_said_with_the_address(dialect: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    backend = builtin_backends()[dialect]
    entry = MatrixEntry(id="a", path=Path("m.yaml"), line=1, backend=dialect, model_id=MODELS[dialect], server_url=url)
    with pytest.raises(Unavailable, match=url):
        backend.check(entry)


@pytest.mark.parametrize("dialect", ["ollama", "lm-studio", "openai"])
def test_an_answer_of_another_model_is_an_error(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect, fault="other_model")
    with pytest.raises(ServerStartError, match="answered") as caught, opened(server.entry(), tmp_path):
        pass
    assert repr(server.model) in str(caught.value)


@EVERY
def test_a_stream_that_breaks_off_is_an_error(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect, fault="cut", faultless=2)
    with opened(server.entry(), tmp_path) as target, pytest.raises(RequestError, match="ended without a finish"):
        measure(target)


@pytest.mark.parametrize("dialect", ["ollama", "lm-studio"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [("error", "reported an error in its stream: (an error was|the worker)"), ("load_inside", "loaded (the|a) model")],
)
def test_an_error_or_a_load_inside_a_request_is_no_sample(
    running: MakeRunning, tmp_path: Path, dialect: str, fault: str, words: str
) -> None:
    server = running(dialect, fault=fault, faultless=2)
    with opened(server.entry(), tmp_path) as target, pytest.raises(RequestError, match=words):
        measure(target)


@pytest.mark.parametrize("dialect", ["ollama", "lm-studio"])
def test_a_context_that_is_too_small_is_found_out(running: MakeRunning, tmp_path: Path, dialect: str) -> None:
    server = running(dialect, most_context=100)
    with (
        pytest.raises(ServerStartError, match="loaded for 100 tokens, its prompts need 256"),
        opened(server.entry(), tmp_path),
    ):
        pass
    assert not _held(server)


@pytest.mark.parametrize(
    ("dialect", "off", "on"),
    [
        ("ollama", {"think": False}, {"think": True}),
        ("lm-studio", {"reasoning": "off"}, {"reasoning": "on"}),
        (
            "docker-model-runner",
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": True}},
        ),
        (
            "openai",
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": True}},
        ),
    ],
)
def test_thinking_is_switched_in_the_servers_own_words(
    running: MakeRunning, tmp_path: Path, dialect: str, off: dict[str, Any], on: dict[str, Any]
) -> None:
    server = running(dialect)
    with opened(server.entry(), tmp_path) as target:
        measure(target, think=False)
        measure(target, think=True)
        measure(target, think=None)
    (switch,) = on
    told = [{switch: body[switch]} if switch in body else None for body in server.chats]
    assert told == [None] * 2 + [off] * 3 + [on] * 3 + [None] * 3


@pytest.mark.parametrize("dialect", ["lm-studio", "openai"])
@pytest.mark.parametrize("source", ["api_key", "api_key_env"])
def test_the_key_is_in_the_header_and_in_no_error(
    running: MakeRunning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str, source: str
) -> None:
    monkeypatch.setenv("RUNNING_TEST_KEY", KEY)
    server = running(dialect, token=KEY, fault="echo_key", faultless=2)
    wanted = server.entry(**{source: KEY if source == "api_key" else "RUNNING_TEST_KEY"})
    with opened(wanted, tmp_path) as target, pytest.raises(RequestError, match=r"what does \*\*\* mean") as caught:
        measure(target)
    assert KEY not in str(caught.value)
    assert KEY not in repr(target.info)


@pytest.mark.parametrize("key", ["schlüssel-osprey", "osprey\n", "osprey feldspar"])
@pytest.mark.parametrize(
    ("dialect", "source"),
    [*itertools.product(["lm-studio", "openai"], ["api_key", "RUNNING_TEST_KEY"]), ("lm-studio", "LM_API_TOKEN")],
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    running: MakeRunning, monkeypatch: pytest.MonkeyPatch, dialect: str, key: str, source: str
) -> None:
    server = running(dialect)
    monkeypatch.setenv(source, key)
    fields = {"api_key": {"api_key": key}, "RUNNING_TEST_KEY": {"api_key_env": source}}.get(source, {})
    with pytest.raises(Unavailable, match="which no API key has; fix: correct ") as caught:
        check(server, **fields)
    assert "osprey" not in str(caught.value)


@EVERY
@pytest.mark.parametrize("field", ["env", "server_binary", "extra_args"])
def test_what_only_a_process_could_get_is_refused(running: MakeRunning, dialect: str, field: str) -> None:
    values: dict[str, Any] = {"env": (("A", "1"),), "server_binary": "/bin/x", "extra_args": ("--fast",)}
    server = running(dialect)
    if (dialect, field) == ("docker-model-runner", "extra_args"):
        check(server, extra_args=("-ctk", "q8_0"))
        return
    with pytest.raises(Unavailable) as caught:
        check(server, **{field: values[field]})
    assert field in caught.value.fix
