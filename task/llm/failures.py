"""Turn a model provider's failures into ProviderErrors, and those into sentences for users.

No text contains a body, a key or an address; addresses are in the log only.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import orjson

from task.errors import ProviderError, reference_of, with_reference

logger = logging.getLogger(__name__)

CONTEXT_LENGTH = "context_length_exceeded"
CONNECTION_FAILED = "connection_failed"
TIMEOUT = "timeout"
INTERRUPTED = "interrupted"
MALFORMED = "malformed_answer"
INSUFFICIENT_QUOTA = "insufficient_quota"
CORE, MODEL_SERVER = "DIAL Core", "The model's server"

_TEXT_LIMIT = 500
_KEY = re.compile(r"\bsk-[\w*.-]+")
_TAG = re.compile(r"<(script|style)(?>(?:[^<]|<(?!/?\1))*)</\1>|<[^<>]*+>", re.IGNORECASE)
# vLLM, Anthropic, Gemini and llama.cpp have no code for it.
_TOO_LONG = re.compile(
    r"maximum context length|prompt is too long|context (length|size|window).{0,40}exceed|exceeds? .{0,60}context|"
    r"input token count .{0,60}exceeds",
    re.IGNORECASE | re.DOTALL,
)
_NO_LIMIT = 2**63 - 1  # Core's word for "no limit"
_CORE_LIMIT = re.compile(r"(Minute|Hour|Day|Week|Month) limit: (\d{1,19}) / (\d{1,19}) (tokens|requests)\.")
_NAMES_A_MODEL = re.compile(r"model|deployment|application", re.IGNORECASE)
_CORE_REFUSALS = (
    (
        re.compile(r"Unknown api key|Bad Authorization header"),
        "DIAL Core does not know the key of this request. Use one that it knows; the agent's own is DIAL_API_KEY.",
    ),
    (
        re.compile(r"Access denied to the file"),
        "DIAL Core does not let this request read one of its files. Attach the file again.",
    ),
    (
        re.compile(r"Forbidden deployment|Access denied"),
        "You may not use the model {model}. Choose another one, or ask an operator for access.",
    ),
)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_TWICE = 2  # smaller amounts are given in the next smaller unit: "90 minutes", not "2 hours"
_KEY_REFUSED = "The model {model} refused the key. An operator has to check the model's credentials."
_REFUSED = "The model {model} did not accept the conversation: {error}"
_LATE = "The model {model} did not answer in time. Try again, or choose another model."
_UNCLEAR = "The model {model} did not answer properly. Try again, or choose another model."
_SENTENCES: Mapping[int | str, str] = {  # by status, or by code where there is none
    **dict.fromkeys((400, 413, 422), _REFUSED),
    **dict.fromkeys((408, 504), _LATE),
    404: "The server of the model {model} answers, but has no chat at its address. An operator has to correct it.",
    429: "The model {model} is busy or over its limit. Try again {again}.",
    503: "The model {model} is busy or away. Try again {again}.",  # also Core's word for a model's 429
    CONNECTION_FAILED: "{server} cannot be reached, so the model {model} was not asked. Try again later.",
    TIMEOUT: "{server} has been silent for too long. Try again, or choose another model.",
    INTERRUPTED: "The connection to the model {model} was lost. Try again.",
}


def http_failure(status: int, body: bytes, headers: Mapping[str, str], secrets: Iterable[str]) -> ProviderError:
    """The error for an HTTP status other than 200; `body` may be JSON, plain text or HTML."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    if isinstance(content, list):  # Gemini's errors are lists of one
        content = cast("list[Any]", content)[0] if content else None
    if isinstance(content, dict):
        error = cast("dict[str, Any]", content).get("error", content)
    else:
        error = " ".join(_TAG.sub(" ", body.decode("utf-8", "replace")).split())
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    failure = _failure(status, fields, secrets)
    failure.retry_after = retry_after(headers, datetime.now(UTC))
    return failure


def stream_failure(error: Any, secrets: Iterable[str] = ()) -> ProviderError:
    """The error for an `error` event inside a stream; its status is 500 unless the event names another."""
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    values = [str(fields.get(name, "")) for name in ("status_code", "status", "code")]
    statuses = [int(value) for value in values if value.isdecimal() and 400 <= int(value) <= 599]
    return _failure(statuses[0] if statuses else 500, fields, secrets)


def unsendable(sentence: str) -> ProviderError:
    """The error for a request that the provider has no form for; the sentence says what to do instead."""
    return ProviderError(sentence, status_code=400, code="invalid_request", display_message=sentence)


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
    message = error.get("message") or error.get("detail") or error.get("error_description") or ""
    text = _redacted(message if isinstance(message, str) else orjson.dumps(message).decode(), secrets)
    names = [str(value) for name in ("code", "type", "status") if (value := error.get(name)) is not None]
    code = names[0] if names else None
    sentence = "The model provider failed" if status >= 500 else "The model provider refused the request"
    if CONTEXT_LENGTH in names or _TOO_LONG.search(text):
        code, sentence = CONTEXT_LENGTH, "The conversation is too long for the model"
    shown = error.get("display_message")
    return ProviderError(
        f"{sentence} (HTTP {status}).",
        status_code=status,
        code=code,
        text=text,
        display_message=_redacted(shown, secrets) if isinstance(shown, str) else None,
    )


def _redacted(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _KEY.sub("***", text)[:_TEXT_LIMIT]


def reported(error: ProviderError, model: str) -> tuple[str, str]:
    """Log the failure with its address, for operators; the reference of that line, and the sentence for the caller."""
    reference, place = reference_of(error), f" at {error.address}" if error.address else ""
    details = f"reference {reference}, status {error.status_code}, code {error.code}"
    logger.error("the model %s failed (%s)%s: %s", model, details, place, error)
    return reference, with_reference(error.display_message or explained(error, model), reference)


def explained(error: ProviderError, model: str) -> str:
    """What went wrong, where, and what to do next."""
    status, server = error.status_code, error.server or MODEL_SERVER
    sentence = _SENTENCES.get(status or error.code or "", _UNCLEAR)
    if status in (401, 403):
        # Refusals of the model's own provider have other texts than Core's, even if Core passes them on.
        refusals = _CORE_REFUSALS if error.server == CORE else ()
        sentence = next((sentence for text, sentence in refusals if text.match(error.text)), _KEY_REFUSED)
    elif status == 404 and _NAMES_A_MODEL.search(f"{error.code} {error.text}"):
        sentence = "There is no model {model}. Choose another one."
    elif status == 429 and (spent := spent_limit(error, model)):
        return spent
    elif status == 429 and error.code == INSUFFICIENT_QUOTA:
        sentence = "The account behind the model {model} has used up its quota. An operator has to renew it."
    elif status == 502 and server == CORE:
        sentence = "{server} finds no working server for the model {model}. Try again later, or choose another model."
    again = f"in {duration(error.retry_after)}" if error.retry_after else "in a minute"
    return sentence.format(model=model, server=server, again=again, error=error)


def spent_limit(error: ProviderError, model: str) -> str | None:
    """Which of the caller's limits at DIAL Core is used up, and when it opens again; None for any other failure."""
    found = _CORE_LIMIT.findall(error.text)
    limits = ((window, int(used), int(allowed), unit) for window, used, allowed, unit in found)
    spent = [
        f"{used:,} of {allowed:,} {unit} in the last {window.lower()}"
        for window, used, allowed, unit in limits
        if allowed <= used and allowed != _NO_LIMIT
    ]
    if not spent:
        return None
    sentence = f"Your limit for the model {model} is used up: {' and '.join(spent)}."
    return sentence if error.retry_after is None else f"{sentence} It opens again in {duration(error.retry_after)}."


def duration(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two, rounded up."""
    whole = max(1, -int(-seconds // 1))
    name, size = next(((name, size) for name, size in _UNITS if whole >= _TWICE * size), _UNITS[-1])
    count = -(-whole // size)
    return f"{count} {name}{'' if count == 1 else 's'}"
