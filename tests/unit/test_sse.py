"""Server-sent events are parsed correctly wherever their bytes were split."""

from __future__ import annotations

import collections
import json

import pytest

from task.llm.sse import DONE, EventTooLong, SseReader

FIRST = json.dumps({"text": "Grüße 🙂 漢字"}, ensure_ascii=False).encode()
SECOND = b'{"n": 2}'

LOOKS = {
    "plain": b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n",
    "crlf": b"data: %b\r\n\r\ndata: %b\r\n\r\ndata: [DONE]\r\n\r\n",
    "cr": b"data: %b\r\rdata: %b\r\rdata: [DONE]\r\r",
    "mixed line ends": b"data: %b\r\n\ndata: %b\n\r\ndata: [DONE]\r\r\n",
    "no space": b"data:%b\n\ndata:%b\n\ndata:[DONE]\n\n",
    "comments": b": ping\n\ndata: %b\n\n: ping\n: pong\n\ndata: %b\n\n:\n\ndata: [DONE]\n\n",
    "comment inside an event": b": a\ndata: %b\n: b\n\n: c\ndata: %b\n\ndata: [DONE]\n\n",
    "other fields": b"event: message\nid: 7\ndata: %b\nretry: 3\n\nevent: x\ndata: %b\n\ndata: [DONE]\n\n",
    "many blank lines": b"\n\n\ndata: %b\n\n\n\n\ndata: %b\n\n\ndata: [DONE]\n\n\n",
    "byte order mark": b"\xef\xbb\xbfdata: %b\n\ndata: %b\n\ndata: [DONE]\n\n",
    "no blank line at the end": b"data: %b\n\ndata: %b\n\ndata: [DONE]",
    "one line end at the end": b"data: %b\r\n\r\ndata: %b\r\n\r\ndata: [DONE]\r\n",
}


def payloads(*pieces: bytes) -> list[bytes]:
    reader = SseReader()
    return [payload for piece in pieces for payload in reader.feed(piece)] + reader.close()


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_events_split_at_any_byte_come_out_whole(look: bytes) -> None:
    stream = look % (FIRST, SECOND)
    expected = [FIRST, SECOND, DONE]
    assert payloads(stream) == expected
    assert payloads(*(stream[n : n + 1] for n in range(len(stream)))) == expected
    for cut in range(1, len(stream)):
        assert payloads(stream[:cut], stream[cut:]) == expected, f"cut at {cut}"


def test_an_event_is_returned_with_the_bytes_that_complete_it() -> None:
    reader = SseReader()
    assert reader.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert reader.feed(b"\ndata: 3\n\n") == [b"2", b"3"]


def test_data_lines_of_one_event_are_joined_by_line_feeds() -> None:
    assert payloads(b'data: {\ndata:  "a":\ndata: 1}\n\n') == [b'{\n "a":\n1}']


@pytest.mark.parametrize("body", [b'{"choices": []}', b' \n{\n\n"data: x": 1}\n', b'[{"error": {}}]'])
def test_a_body_of_plain_json_comes_out_as_one_payload(body: bytes) -> None:
    for cut in range(len(body)):
        (payload,) = payloads(body[:cut], body[cut:])
        assert json.loads(payload) == json.loads(body)


@pytest.mark.parametrize(
    "body", [b"", b": nothing but a comment\n\n", b"event: end\n\n", b"<html>\n\nno events</html>"]
)
def test_a_body_without_data_has_no_payloads(body: bytes) -> None:
    assert payloads(body) == []


def test_a_large_event_in_many_pieces_is_read_in_linear_time() -> None:
    event = b'data: "' + b"x" * 5_000_000 + b'"\n\n'
    pieces = [event[n : n + 16_384] for n in range(0, len(event), 16_384)]
    assert payloads(*pieces) == [event[6:-2]]


@pytest.mark.parametrize("piece", [b"data: xxxxxxxx", b'{"a": "xxxxxxxx'])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    reader = SseReader(limit=100)
    with pytest.raises(EventTooLong):
        collections.deque((reader.feed(piece) for _ in range(100)), maxlen=0)
