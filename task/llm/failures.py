"""Turn a provider's failures into ProviderErrors whose texts for people contain no bodies and no keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import orjson

from task.errors import ProviderError

CONTEXT_LENGTH = "context_length_exceeded"
CONNECTION_FAILED = "connection_failed"
TIMEOUT = "timeout"
INTERRUPTED = "interrupted"
MALFORMED = "malformed_answer"
INSUFFICIENT_QUOTA = "insufficient_quota"
CORE, MODEL_SERVER = "DIAL Core", "The model's server"

_TEXT_LIMIT = 500
_KEY = re.compile(r"\bsk-[\w*.-]+")
_TAG = re.compile(r"<(script|style)(?:[^<]|<(?!/?\1))*+</\1>|<[^<>]*+>", re.IGNORECASE)
# vLLM, Anthropic, Gemini and llama.cpp have no code for it.
_TOO_LONG = re.compile(
    r"maximum context length|prompt is too long|context (length|size|window).{0,40}exceed|exceeds? .{0,60}context|"
    r"input token count .{0,60}exceeds",
    re.IGNORECASE | re.DOTALL,
)
_SENTENCES = {
    400: "The model provider refused the request",
    401: "The model provider refused the key",
    403: "The model provider does not allow this key to use the model",
    404: "The model provider does not know the model or the address",
    408: "The model provider timed out",
    413: "The request is too large for the model provider",
    429: "The model provider is receiving too many requests",
}


def http_failure(
    status: int, body: bytes, headers: Mapping[str, str], secrets: Iterable[str], now: datetime | None = None
) -> ProviderError:
    """The error for an HTTP status other than 200; `body` may be JSON, plain text or HTML."""
    error = _error_object(body)
    failure = _failure(status, error if error is not None else {"message": _plain(body)}, secrets)
    failure.retry_after = retry_after(headers, now or datetime.now(UTC))
    return failure


def stream_failure(error: Any, secrets: Iterable[str] = ()) -> ProviderError:
    """The error for an `error` event inside a stream; its status is 500 unless the event names another."""
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    return _failure(_status_in(fields) or 500, fields, secrets)


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that the provider asks to wait; the header contains seconds or a date."""
    value = headers.get("Retry-After", "").strip()
    try:
        numeric = value[:1].isdecimal() or value[:1] == "-"
        seconds = float(value) if numeric else (parsedate_to_datetime(value) - now).total_seconds()
    except (TypeError, ValueError):
        return None
    return max(seconds, 0.0)


def _failure(status: int, error: Mapping[str, Any], secrets: Iterable[str]) -> ProviderError:
    text = _redacted(_text(error), secrets)
    code = _code(error, text)
    sentence = _SENTENCES.get(status, "The model provider failed" if status >= 500 else _SENTENCES[400])
    if code == CONTEXT_LENGTH:
        sentence = "The conversation is too long for the model"
    shown = error.get("display_message")
    return ProviderError(
        f"{sentence} (HTTP {status}).",
        status_code=status,
        code=code,
        text=text,
        display_message=_redacted(shown, secrets) if isinstance(shown, str) else None,
    )


def _error_object(body: bytes) -> dict[str, Any] | None:
    # The `error` of a JSON body: an object, a text, the body itself, or the first item if the body is a list.
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(content, list):
        content = cast("list[Any]", content)[0] if content else None
    if not isinstance(content, dict):
        return None
    fields = cast("dict[str, Any]", content)
    error = fields.get("error", fields)
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}


def _text(error: Mapping[str, Any]) -> str:
    text = error.get("message") or error.get("detail") or error.get("error_description") or ""
    return text if isinstance(text, str) else orjson.dumps(text).decode()


def _code(error: Mapping[str, Any], text: str) -> str | None:
    names = [str(value) for name in ("code", "type", "status") if (value := error.get(name)) is not None]
    if CONTEXT_LENGTH in names or _TOO_LONG.search(text):
        return CONTEXT_LENGTH
    return names[0] if names else None


def _status_in(error: Mapping[str, Any]) -> int | None:
    for name in ("status_code", "status", "code"):
        value = str(error.get(name, ""))
        if value.isdecimal() and 400 <= int(value) <= 599:
            return int(value)
    return None


def _plain(body: bytes) -> str:
    return " ".join(_TAG.sub(" ", body.decode("utf-8", "replace")).split())


def _redacted(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _KEY.sub("***", text)[:_TEXT_LIMIT]
