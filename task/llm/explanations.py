"""The sentence that a person reads when a model's provider refuses or fails; addresses stay in the log."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta

from task.errors import ProviderError, reference_of, with_reference
from task.llm.failures import CONNECTION_FAILED, CORE, INSUFFICIENT_QUOTA, INTERRUPTED, MODEL_SERVER, TIMEOUT

logger = logging.getLogger(__name__)

_NO_LIMIT = 2**63 - 1  # Core's word for it
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
        "You may not use the model {}. Choose another one, or ask an operator for access.",
    ),
)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_TWICE = 2  # smaller amounts are given in the next smaller unit: "90 minutes", not "2 hours"


def reported(error: ProviderError, model: str) -> tuple[str, str]:
    """Log the failure with its address, for operators; the reference of that line, and the sentence for the caller."""
    reference = reference_of(error)
    logger.error(
        "the model %s failed (reference %s, status %s, code %s)%s: %s",
        model, reference, error.status_code, error.code, error.address and f" at {error.address}", error,
    )  # fmt: skip
    return reference, with_reference(error.display_message or explained(error, model), reference)


def explained(error: ProviderError, model: str, now: datetime | None = None) -> str:
    """What went wrong, where, and what to do next; `now` is for the hour at which a spent limit opens again."""
    server = error.server or MODEL_SERVER
    match error.status_code:
        case 401 | 403:
            return _refused(error, model)
        case 404:
            return _not_found(error, model)
        case 429:
            return _over_limit(error, model, now)
        case 503:  # also Core's word for a model's 429
            return f"The model {model} is busy or away. Try again {_again(error)}."
        case 400 | 413 | 422:
            return f"The model {model} did not accept the conversation: {error}"
        case 502 if server == CORE:
            return f"{CORE} finds no working server for the model {model}. Try again later, or choose another model."
        case 408 | 504:
            return f"The model {model} did not answer in time. Try again, or choose another model."
        case None if error.code == CONNECTION_FAILED:
            return f"{server} cannot be reached, so the model {model} was not asked. Try again later."
        case None if error.code == TIMEOUT:
            return f"{server} has been silent for too long. Try again, or choose another model."
        case None if error.code == INTERRUPTED:
            return f"The connection to the model {model} was lost. Try again."
        case _:
            return f"The model {model} did not answer properly. Try again, or choose another model."


def spent_limit(error: ProviderError, model: str, now: datetime | None = None) -> str | None:
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
    opens = f" It opens again {_opening(error.retry_after, now)}." if error.retry_after is not None else ""
    return f"Your limit for the model {model} is used up: {' and '.join(spent)}.{opens}"


def _refused(error: ProviderError, model: str) -> str:
    # What Core passes on from the model's provider has other texts than its own refusals.
    for text, sentence in _CORE_REFUSALS if error.server == CORE else ():
        if text.match(error.text):
            return sentence.format(model)
    return f"The model {model} refused the key. An operator has to check the model's credentials."


def _over_limit(error: ProviderError, model: str, now: datetime | None) -> str:
    if (sentence := spent_limit(error, model, now)) is not None:
        return sentence
    if error.code == INSUFFICIENT_QUOTA:
        return f"The account behind the model {model} has used up its quota. An operator has to renew it."
    return f"The model {model} is busy or over its limit. Try again {_again(error)}."


def _not_found(error: ProviderError, model: str) -> str:
    if _NAMES_A_MODEL.search(f"{error.code} {error.text}"):
        return f"There is no model {model}. Choose another one."
    return f"The server of the model {model} answers, but has no chat at its address. An operator has to correct it."


def _again(error: ProviderError) -> str:
    return f"in {duration(error.retry_after)}" if error.retry_after else "in a minute"


def _opening(seconds: float, now: datetime | None) -> str:
    if seconds < _TWICE * 3_600:
        return f"in {duration(seconds)}"
    at = (now or datetime.now(UTC)) + timedelta(seconds=seconds)
    return f"in {duration(seconds)}, on {at.day} {at:%B at %H:%M} UTC"


def duration(seconds: float) -> str:
    """Seconds in the largest unit of which there are at least two, rounded up."""
    whole = max(1, -int(-seconds // 1))
    name, size = next(((name, size) for name, size in _UNITS if whole >= _TWICE * size), _UNITS[-1])
    count = -(-whole // size)
    return f"{count} {name}{'' if count == 1 else 's'}"
