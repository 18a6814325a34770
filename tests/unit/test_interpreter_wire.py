"""Messages to and from kernels: signed, and nothing that is not."""

from __future__ import annotations

import pytest

from mcp_servers.python_interpreter.envelope import DELIMITER, Envelope, Message

KEY = b"key of one kernel"


def test_what_is_sealed_can_be_opened_with_the_same_key_only() -> None:
    _, frames = Envelope(KEY).sealed("stream", {"text": "hi \ud800"})
    assert Envelope(KEY).opened([b"topic", *frames]) == Message("stream", "", {"text": "hi ?"}, 21)
    assert Envelope(b"another").opened(frames) is None


def test_an_answer_names_the_request_it_belongs_to() -> None:
    envelope = Envelope(KEY)
    asked, request = envelope.sealed("execute_request", {})
    parts = [b'{"msg_type": "status"}', request[2], b"{}", b'{"execution_state": "idle"}']
    answer = envelope.opened([DELIMITER, envelope._signature(parts), *parts])
    assert answer == Message("status", asked, {"execution_state": "idle"}, 27)


@pytest.mark.parametrize(
    "frames", [[], [b"x"], [DELIMITER], [DELIMITER, b"sig"], [DELIMITER, b"", b"{}", b"{}", b"{}", b"{}"]]
)
def test_frames_that_are_no_message_are_none(frames: list[bytes]) -> None:
    assert Envelope(KEY).opened(frames) is None


@pytest.mark.fault("interpreter: a kernel message forged by its code")
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize(
    "part", [b"", b"[]", b"{", b"\xff", b"1", b"NaN", b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 100_000, b"9" * 5000]
)
def test_a_signed_message_of_nonsense_is_dropped(part: bytes, place: int) -> None:
    envelope = Envelope(KEY)
    parts = [b"{}"] * 4
    parts[place] = part
    assert envelope.opened([DELIMITER, envelope._signature(parts), *parts]) is None


def test_what_is_nested_or_missing_is_no_text() -> None:
    envelope = Envelope(KEY)
    parts = [b'{"msg_type": [[]]}', b'{"msg_id": {}}', b"{}", b'{"text": "\\ud800 \xff", "number": NaN}']
    answer = envelope.opened([DELIMITER, envelope._signature(parts), *parts])
    assert answer == Message("", "", {"text": "? \ufffd", "number": None}, len(parts[3]))
