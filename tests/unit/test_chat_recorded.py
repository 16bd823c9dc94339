"""Each server's recorded stream, played by a real socket, gives its text, usage and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from stream_server import CHUNKED, EVENT_STREAM, ask, chunk, error_from, reply_to, stream_server

from pytest_llmbench.chat import Reply

STREAMS = Path(__file__).resolve().parents[1] / "data" / "streams"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a recorded stream says."""

    reasoning: tuple[str, ...]
    content: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    model: str
    timed: bool = False


RECORDED = {
    "mlx-lm": Recorded(
        reasoning=(" thinking", " about"),
        content=("Paris", "."),
        prompt_tokens=21,
        completion_tokens=7,
        model="models/tiny",
    ),
    "llama-server": Recorded(
        reasoning=(),
        content=("<think>", " thinking", "</think>", "Paris", "."),
        prompt_tokens=27,
        completion_tokens=6,
        model="tiny",
        timed=True,
    ),
    "vllm-mlx": Recorded(
        reasoning=(" thinking", " about"),
        content=("Paris", "."),
        prompt_tokens=21,
        completion_tokens=5,
        model="models/tiny",
    ),
    "omlx": Recorded(
        reasoning=(" thinking",), content=("Paris", "."), prompt_tokens=21, completion_tokens=4, model="tiny"
    ),
    "mlx-vlm": Recorded(
        reasoning=(" thinking", " about"),
        content=("Paris", "."),
        prompt_tokens=27,
        completion_tokens=6,
        model="models/tiny",
        timed=True,
    ),
}


def check_recorded(reply: Reply, recorded: Recorded) -> None:
    assert tuple(d.text for d in reply.deltas if d.kind == "reasoning") == recorded.reasoning
    assert tuple(d.text for d in reply.deltas if d.kind == "content") == recorded.content
    assert reply.finish_reason == "stop"
    assert reply.usage["prompt_tokens"] == recorded.prompt_tokens
    assert reply.usage["completion_tokens"] == recorded.completion_tokens
    assert reply.model == recorded.model
    assert bool(reply.timings.get("prompt_ms")) is recorded.timed


@pytest.mark.parametrize("name", RECORDED)
def test_each_servers_stream_gives_its_text_usage_and_model(name: str) -> None:
    check_recorded(reply_to((STREAMS / f"{name}.sse").read_bytes()), RECORDED[name])


@pytest.mark.parametrize("name", RECORDED)
def test_a_stream_in_small_chunks_gives_the_same(name: str) -> None:
    data = (STREAMS / f"{name}.sse").read_bytes()
    pieces = [chunk(data[i : i + 97]) for i in range(0, len(data), 97)]
    with stream_server(CHUNKED, *pieces, b"0\r\n\r\n") as server:
        check_recorded(ask(server), RECORDED[name])


def test_an_error_event_in_a_good_stream_is_an_error_with_the_servers_words() -> None:
    error = error_from(EVENT_STREAM, (STREAMS / "litert-lm.sse").read_bytes())
    assert "Input token ids are too long" in str(error)
    assert error.status == 200
