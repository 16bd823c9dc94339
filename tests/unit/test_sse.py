"""Server-sent events: any split of the bytes gives the same events, whatever the line ends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import RequestError
from pytest_llmbench.sse import Event, EventDecoder, LineDecoder

STREAMS = Path(__file__).resolve().parents[1] / "data" / "streams"


def decode(*pieces: bytes) -> list[Event]:
    decoder = EventDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return [*events, *decoder.end()]


def data_of(*pieces: bytes) -> list[str]:
    return [event.data for event in decode(*pieces)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(marks)]


line = st.one_of(
    st.sampled_from(["", "data", "data:", "data: ", ": comment", "event: done", "event:", "id: 7", "retry: 5", "odd"]),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12).map(
        lambda t: f"data: {t}"
    ),
)
stream = st.builds(
    lambda bom, lines: (b"\xef\xbb\xbf" if bom else b"") + "".join(text + end for text, end in lines).encode(),
    st.booleans(),
    st.lists(st.tuples(line, st.sampled_from(["\n", "\r", "\r\n"])), max_size=20),
)


@given(stream, st.lists(st.integers(0, 1000), max_size=10))
def test_any_split_gives_the_same_events(data: bytes, places: list[int]) -> None:
    assert decode(*cut(data, places)) == decode(data)


@given(stream)
def test_byte_by_byte_is_a_split_too(data: bytes) -> None:
    assert decode(*(bytes([byte]) for byte in data)) == decode(data)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30)), st.lists(st.integers(0, 2000)))
def test_json_text_comes_back_whole(texts: list[str], places: list[int]) -> None:
    data = "".join(f"data: {json.dumps(text, ensure_ascii=False)}\n\n" for text in texts).encode()
    assert [json.loads(text) for text in data_of(*cut(data, places))] == texts


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["LF", "CR", "CRLF"])
def test_each_line_end_ends_a_line(end: bytes) -> None:
    assert data_of(b"data: one" + end * 2 + b"data: two" + end * 2) == ["one", "two"]


def test_cr_lf_split_between_pieces_is_one_line_end() -> None:
    assert data_of(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == ["a\nb"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_other_unicode_line_ends_stay_inside_the_text(separator: str) -> None:
    assert data_of(f'data: "a{separator}b"\n\n'.encode()) == [f'"a{separator}b"']


def test_a_byte_order_mark_is_dropped_once_and_only_at_the_start() -> None:
    assert data_of(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == ["a"]
    assert data_of(b"data: \xef\xbb\xbfa\n\n") == ["\ufeffa"]
    assert data_of(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n") == []


def test_comments_unknown_fields_and_empty_events_give_nothing() -> None:
    assert data_of(b": keepalive 20/21\n\nid: 4\n\nretry: 10\n\nevent: ping\n\n\n\n") == []


def test_data_lines_are_joined_and_lose_one_space() -> None:
    assert data_of(b"data:  two spaces\ndata:none\ndata\n\n") == [" two spaces\nnone\n"]


def test_an_event_name_holds_for_one_event() -> None:
    events = decode(b"event: response.error\ndata: a\n\ndata: b\n\nevent:\ndata: c\n\n")
    assert [(e.name, e.data) for e in events] == [("response.error", "a"), ("message", "b"), ("message", "c")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_a_missing_last_blank_line_loses_no_event(end: bytes) -> None:
    assert data_of(b"data: a\n\ndata: [DONE]" + end) == ["a", "[DONE]"]


def test_events_come_as_soon_as_they_are_whole() -> None:
    decoder = EventDecoder()
    assert list(decoder.feed(b"data: a\n")) == []
    assert [e.data for e in decoder.feed(b"\ndata: b")] == ["a"]
    assert [e.data for e in decoder.feed(b"\n\n")] == ["b"]


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert data_of(b"data: a\xffb\n\n") == ["a�b"]


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.sse")), ids=lambda path: path.stem)
def test_each_recorded_stream_is_whole_json(path: Path) -> None:
    events = decode(path.read_bytes())
    texts = [e.data for e in events if e.data != "[DONE]"]
    assert len(texts) >= 2
    assert all(isinstance(json.loads(text), dict) for text in texts)


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=9), max_size=6),
    st.lists(st.integers(min_value=0), max_size=5),
    st.booleans(),
)
def test_json_lines_are_the_same_however_they_are_cut(lines: list[str], places: list[int], ended: bool) -> None:
    decoder = LineDecoder()
    data = "\n".join(lines).encode() + (b"\n" if ended else b"")
    events = [event for piece in cut(data, places) for event in decoder.feed(piece)]
    events += decoder.end()
    assert [event.data for event in events] == [line for line in lines if line.encode().strip()]


def test_a_json_line_is_there_as_soon_as_its_end_is() -> None:
    decoder = LineDecoder()
    assert list(decoder.feed(b'{"a": 1}')) == []
    assert list(decoder.feed(b'\n{"b"')) == [Event(data='{"a": 1}')]
    assert list(decoder.end()) == [Event(data='{"b"')]


@pytest.mark.parametrize("decoder", [EventDecoder, LineDecoder])
def test_a_line_that_never_ends_is_given_up(decoder: type[EventDecoder | LineDecoder]) -> None:
    feed, piece = decoder().feed, b"x" * 2**20
    assert [list(feed(piece)) for _ in range(64)] == [[]] * 64
    with pytest.raises(RequestError, match="a line of more than 67108864 bytes"):
        list(feed(b"x"))
