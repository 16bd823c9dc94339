"""The chat client against a real socket that plays what servers send, byte by byte where it matters."""

from __future__ import annotations

import json
import socket
import threading
import time

import httpcore
import pytest
from stream_server import (
    BODY,
    CHUNKED,
    DONE,
    EVENT_STREAM,
    FINISH,
    ask,
    chunk,
    error_from,
    event,
    reply_to,
    status,
    stream_server,
    text_event,
)

from pytest_llmbench.chat import ChatClient
from pytest_llmbench.errors import RequestError, ServerTimeout


def test_an_error_chunk_in_a_good_stream_is_an_error() -> None:
    error = error_from(EVENT_STREAM, event({"error": {"message": "No module named 'x'", "status": 500}}), DONE)
    assert "No module named 'x'" in str(error)


def test_a_keep_alive_chunk_is_not_who_answers() -> None:
    def named(model: str, delta: dict[str, str], finish: str | None = None) -> bytes:
        return event({"model": model, "choices": [{"delta": delta, "finish_reason": finish}]})

    waiting = named("keepalive", {"content": ""})
    # The one token of the second answer shows no text.
    assert reply_to(waiting, named("m", {"content": "a"}), waiting, named("m", {}, "stop"), DONE).model == "m"
    assert reply_to(waiting, named("m", {"role": "assistant"}), waiting, named("m", {}, "length"), DONE).model == "m"


def test_stamps_rise_and_stand_apart_where_the_server_waits() -> None:
    reply = reply_to(0.05, text_event("a"), 0.1, text_event("b") + text_event("c"), 0.05, FINISH, DONE)
    first, second, third = (d.at_ns for d in reply.deltas)
    assert first >= 45e6
    assert second - first >= 90e6
    assert second == third, "events of one read share its stamp"
    assert reply.end_ns >= third + 45e6


def test_waiting_for_the_first_byte_is_timed_from_the_request_on() -> None:
    """The clock starts when the request goes out: before the server waits, and before its answer's head."""
    with stream_server(0.2, EVENT_STREAM, text_event("a"), FINISH) as server:
        assert ask(server).deltas[0].at_ns >= 190e6


def test_connecting_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = httpcore.SyncBackend.connect_tcp

    def slow_connect(self: httpcore.SyncBackend, *args: object, **options: object) -> httpcore.NetworkStream:
        socket_wait.wait(1.0)
        return connect(self, *args, **options)  # type: ignore[arg-type]

    socket_wait = threading.Event()
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", slow_connect)
    with stream_server(EVENT_STREAM, text_event("a"), FINISH) as server:
        assert ask(server).deltas[0].at_ns < 1e9


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (404, b'{"error": "Model not found"}', "Model not found"),
        (400, b'{"error":{"code":400,"message":"too long","type":"invalid_request_error"}}', "too long"),
        (422, b'{"detail":[{"loc":["body","messages"],"msg":"Field required"}]}', "Field required"),
        (401, b'{"detail":"API key required"}', "API key required"),
        (503, b'{"error":{"message":"Loading model","code":503}}', "Loading model"),
        (500, b"", "(empty body)"),
        (500, b"\xff\xfe", "500"),
        (502, b"[1, 2]", "[1, 2]"),
    ],
)
def test_an_http_error_carries_status_and_the_servers_words(code: int, body: bytes, words: str) -> None:
    error = error_from(status(code, body))
    assert error.status == code
    assert words in str(error)
    assert f"HTTP {code}" in str(error)


def test_an_html_error_page_is_shortened_to_one_line() -> None:
    page = b"<!DOCTYPE HTML>\n<html>\n <body><p>Message: FileNotFoundError</p>" + b"x" * 5000
    message = str(error_from(status(404, page, "text/html")))
    assert "FileNotFoundError" in message
    assert len(message) < 500
    assert "\n" not in message


def test_a_redirect_is_an_error_and_not_followed() -> None:
    error = error_from(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")
    assert error.status == 302


def test_a_stream_cut_without_a_finish_says_how_far_it_came() -> None:
    error = error_from(EVENT_STREAM, text_event("a"), text_event("b"))
    assert "2 deltas" in str(error)
    assert error.status is None


def test_a_stream_cut_inside_a_chunk_is_an_error() -> None:
    error = error_from(CHUNKED, chunk(text_event("a")), b"40\r\ndata: {")
    assert error.status is None
    assert "RemoteProtocolError" in str(error)


def test_an_empty_stream_is_an_error() -> None:
    assert "no text" in str(error_from(EVENT_STREAM))


@pytest.mark.parametrize(
    "data",
    [
        b"data: {not json}\n\n",
        b"data: [1]\n\n",
        b'data: "text"\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        event({"choices": ["x"]}),
        event({"choices": {"delta": {}}}),
        event({"choices": [{"delta": "x"}]}),
        event({"choices": [], "usage": [1]}),
        event({"choices": [], "timings": "fast"}),
        event({"choices": [{"delta": {}, "finish_reason": 3}]}),
    ],
    ids=lambda data: data[:40].decode(),
)
def test_an_event_of_another_form_is_a_request_error(data: bytes) -> None:
    assert "the stream holds" in str(error_from(EVENT_STREAM, data, DONE))


def test_an_event_without_text_is_passed_over() -> None:
    assert [d.text for d in reply_to(b"data:\n\ndata: \n\n", text_event("a"), FINISH).deltas] == ["a"]


def test_done_without_a_finish_reason_ends_a_stream() -> None:
    reply = reply_to(text_event("a"), DONE)
    assert reply.finish_reason is None
    assert reply.usage == {}


@pytest.mark.parametrize("lingering", [[1.0], [0.1, b": keep\n\n"] * 8], ids=["silent", "keep-alives"])
def test_a_server_that_keeps_the_connection_after_its_answer_has_answered(lingering: list[bytes | float]) -> None:
    usage = event({"choices": [], "usage": {"completion_tokens": 1}})
    with (
        stream_server(EVENT_STREAM, text_event("a"), FINISH, usage, DONE, *lingering) as server,
        ChatClient(server.url, timeout_s=0.3) as client,
    ):
        begun_ns = time.monotonic_ns()
        reply = client.stream({"model": "m"})
        took_ns = time.monotonic_ns() - begun_ns
    assert [d.text for d in reply.deltas] == ["a"]
    assert reply.usage == {"completion_tokens": 1}
    assert took_ns - reply.end_ns > 0.3e9  # the wait is no part of the answer


def test_an_answer_that_comes_letter_by_letter_isnt_endless() -> None:
    letters = b"".join(map(text_event, "unquestionably, " * 256))  # 512 tokens or so, with 4096 characters
    with stream_server(EVENT_STREAM, letters, FINISH) as server, ChatClient(server.url) as client:
        assert len(client.stream({}, max_tokens=512).deltas) == 4096


def test_a_whole_number_may_be_written_with_a_point() -> None:
    usage = reply_to(text_event("a"), event({"choices": [], "usage": {"completion_tokens": 12.0}}), FINISH).usage
    assert repr(usage["completion_tokens"]) == "12"


def test_replacement_characters_and_split_utf8_arrive_as_they_are() -> None:
    data = text_event("�") + 'data: {"choices": [{"delta": {"content": "é日😀"}}]}\n\n'.encode()
    reply = reply_to(*(bytes([byte]) for byte in data), FINISH)
    assert [d.text for d in reply.deltas] == ["�", "é日😀"]


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    """JSON may spell what UTF-8 can't hold; a record or tokenizer would refuse it later."""
    reply = reply_to(text_event("a\ud83d"), text_event("\ud83d\ude00"), FINISH)
    assert [d.text for d in reply.deltas] == ["a�", "😀"]


def test_figures_that_are_no_numbers_count_as_not_measured() -> None:
    timings = (
        b'data: {"choices": [], "timings": {"prompt_ms": NaN, "a": Infinity, "b": -Infinity, "c": 1e999, "d": 0.0}}'
    )
    reply = reply_to(text_event("a"), FINISH, timings + b"\n\n")
    assert reply.timings == {"d": 0.0}


@pytest.mark.parametrize("value", ['"lots"', "-4", "4.5", "1" + "0" * 400, "true", "[7]"])
@pytest.mark.parametrize("place", ["%s", '{"cached_tokens": %s}'])
def test_a_count_that_counts_nothing_is_an_error(value: str, place: str) -> None:
    name = "completion_tokens" if place == "%s" else "prompt_tokens_details"
    usage = f'data: {{"choices": [], "usage": {{"{name}": {place % value}}}}}\n\n'
    assert "_tokens that " in str(error_from(EVENT_STREAM, text_event("a"), usage.encode(), FINISH))


@pytest.mark.parametrize("value", ['"quick"', "-1", "1e300", "1e-300", "1" + "0" * 400, "[7]"])
def test_what_is_no_figure_among_a_servers_own_ones_is_passed_over(value: str) -> None:
    timings = f'data: {{"choices": [], "timings": {{"prompt_ms": {value}, "predicted_n": 7}}}}\n\n'
    assert reply_to(text_event("a"), FINISH, timings.encode()).timings == {"predicted_n": 7}


def test_an_answer_that_never_ends_is_an_error_and_not_waited_for() -> None:
    with stream_server(EVENT_STREAM, *(text_event("a"),) * 3000) as server, ChatClient(server.url) as client:
        with pytest.raises(RequestError, match=r"asked for 16 tokens at most, .* after 1281 pieces") as caught:
            client.stream({}, max_tokens=16)
        assert caught.value.status == 200


def test_json_that_doesnt_end_in_time_is_a_timeout_and_not_called_damaged() -> None:
    with (
        stream_server(b"HTTP/1.0 200 OK\r\n\r\n[", *(0.05, b"7, ") * 40) as server,
        ChatClient(server.url) as client,
        pytest.raises(ServerTimeout, match=r"/list: the answer didn't end in 0\.3 s: '\[7, 7"),
    ):
        client.json("GET", "/list", timeout_s=0.3)


@pytest.mark.parametrize("method", ["json", "stream"])
def test_an_error_page_that_never_ends_is_cut(method: str) -> None:
    page = (b"HTTP/1.0 500 Oops\r\n\r\n" + b"x" * 70_000, *(0.05, b"x") * 40)
    with stream_server(*page) as server, ChatClient(server.url, timeout_s=0.3) as client:
        ask_it = {"json": lambda: client.json("GET", "/", timeout_s=0.3), "stream": lambda: client.stream({})}[method]
        with pytest.raises(RequestError, match="HTTP 500: xxx"):
            ask_it()


def test_an_event_larger_than_a_read_comes_whole() -> None:
    text = "word " * 100_000
    data = text_event(text)
    half = len(data) // 2
    assert reply_to(data[:half], 0.02, data[half:], FINISH).deltas[0].text == text


def test_nobody_listening_is_a_request_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with ChatClient(f"http://127.0.0.1:{port}") as client, pytest.raises(RequestError, match="ConnectError") as caught:
        client.stream(BODY)
    assert caught.value.status is None


@pytest.mark.parametrize("script", [(5.0,), (EVENT_STREAM, text_event("a"), 5.0)], ids=["silent", "stalls"])
def test_silence_is_a_timeout_that_names_the_setting(script: tuple[bytes | float, ...]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, ChatClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2) as client:

        def play() -> None:
            connection, _ = listener.accept()
            connections.append(connection)
            for step in script:
                if isinstance(step, bytes):
                    connection.sendall(step)

        connections: list[socket.socket] = []
        player = threading.Thread(target=play)
        player.start()
        with pytest.raises(ServerTimeout, match="server_timeout"):
            client.stream(BODY)
        player.join()
        connections[0].close()


def test_the_request_asks_for_a_stream_uncompressed_and_with_the_key_in_its_header_only() -> None:
    with stream_server(EVENT_STREAM, text_event("a"), FINISH) as server:
        with ChatClient(server.url + "/", api_key="sk-test-key") as client:
            client.stream(BODY)
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert json.loads(body)["stream"] is True
    assert b"authorization: bearer sk-test-key" in head.lower()
    assert b"accept-encoding: identity" in head.lower()
    assert head.startswith(b"POST /v1/chat/completions ")
    assert b"sk-test-key" not in body


def test_a_plain_exchange_gives_json_or_says_why_not() -> None:
    with stream_server(status(200, b'{"tokens": [1]}')) as server, ChatClient(server.url) as client:
        assert client.json("POST", "/tokenize", {"content": "a"}) == {"tokens": [1]}
    with (
        stream_server(status(200, b"<html>")) as server,
        ChatClient(server.url) as client,
        pytest.raises(RequestError, match="not JSON"),
    ):
        client.json("GET", "/props")
