"""A provider's failure becomes a ProviderError that people can read and code can act on."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from task.llm.failures import CONTEXT_LENGTH, http_failure, retry_after, stream_failure

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def test_openai_error_objects_keep_code_and_message() -> None:
    body = {"error": {"message": "Slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    error = http_failure(429, json.dumps(body).encode(), {"Retry-After": "7"}, ())
    assert (error.status_code, error.code, error.text, error.retry_after) == (
        429,
        "rate_limit_exceeded",
        "Slow down",
        7,
    )
    assert str(error) == "The model provider is receiving too many requests (HTTP 429)."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"Access denied to the file files/b/x.csv", "Access denied to the file files/b/x.csv"),
        (
            b"<html><head><style>p{}</style></head><body><h1>502  Bad</h1><p>gateway</p></body></html>",
            "502 Bad gateway",
        ),
        (b'[{"error": {"message": "Unknown name", "status": "INVALID_ARGUMENT"}}]', "Unknown name"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"object": "error", "message": "too big"}', "too big"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b'"just text"', '"just text"'),
        (b"\xff\xfe not utf-8", "\ufffd\ufffd not utf-8"),
        (b"", ""),
        (b"[]", "[]"),
    ],
)
def test_other_bodies_are_read_leniently(body: bytes, text: str) -> None:
    error = http_failure(400, body, {}, ())
    assert error.text == text
    assert str(error) == "The model provider refused the request (HTTP 400)."


@pytest.mark.parametrize(
    "error",
    [
        {"message": "x", "code": "context_length_exceeded"},
        {"message": "x", "type": "context_length_exceeded", "code": "400"},
        {"message": "This model's maximum context length is 4096 tokens.", "code": 400},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request_error"},
        {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed"},
        {"message": "the request exceeds the available context size"},
    ],
)
def test_a_conversation_that_is_too_long_is_recognised(error: dict[str, str]) -> None:
    failure = http_failure(400, json.dumps({"error": error}).encode(), {}, ())
    assert failure.code == CONTEXT_LENGTH
    assert str(failure) == "The conversation is too long for the model (HTTP 400)."


def test_no_key_gets_into_an_error() -> None:
    body = {
        "error": {"message": "Incorrect API key provided: sk-ab***yz. dial-key-1 is wrong", "code": "invalid_api_key"}
    }
    error = http_failure(401, json.dumps(body).encode(), {}, ["dial-key-1"])
    assert error.text == "Incorrect API key provided: *** *** is wrong"
    assert str(error) == "The model provider refused the key (HTTP 401)."


def test_a_long_body_is_cut() -> None:
    assert len(http_failure(500, b"x" * 100_000, {}, ()).text) == 500


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "boom"}, 500),
        ({"message": "slow down", "code": "429"}, 429),
        ({"message": "slow down", "code": 429}, 429),
        ({"message": "overloaded", "status": 503}, 503),
        ({"message": "boom", "code": "server_error"}, 500),
        ("just words", 500),
    ],
)
def test_an_error_in_a_stream_is_a_500_unless_it_names_another(error: object, status: int) -> None:
    assert stream_failure(error).status_code == status


def test_a_message_meant_for_people_is_kept() -> None:
    assert stream_failure({"message": "x", "display_message": "Try later."}).display_message == "Try later."


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("12", 12.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Mon, 04 May 2026 12:00:30 GMT", 30.0),
        ("Mon, 04 May 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
def test_retry_after_contains_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": value}, NOW) == seconds
