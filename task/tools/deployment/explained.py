"""What a deployment's failure means for the model that asked for it."""

from __future__ import annotations

from task.errors import ProviderError
from task.llm.failures import CONTEXT_LENGTH, TIMEOUT

REFUSED = (
    "The deployment {} refused this by its content rules. Ask for something else in other words, or tell the user."
)
_REFUSALS = frozenset({"content_filter", "content_policy_violation", "moderation_blocked", "responsible_ai_policy"})
_SAID_CHARS = 300


def explained(error: ProviderError, deployment: str) -> str:
    """One or two sentences: what happened and what to do next."""
    said = " ".join((error.display_message or error.text).split())[:_SAID_CHARS]
    told = f" It said: {said}" if said and (error.status_code or 500) < 500 else ""
    return f"{_sentence(error, deployment)}{told}"


def _sentence(error: ProviderError, deployment: str) -> str:
    if error.code in _REFUSALS:
        return REFUSED.format(deployment)
    if error.code == TIMEOUT or error.status_code in (408, 504):
        return f"The deployment {deployment} took too long. Try something simpler, or tell the user."
    if error.code == CONTEXT_LENGTH:
        return f"The request is too long for the deployment {deployment}. Send a shorter one."
    match error.status_code:
        case 404:
            return f"There is no deployment {deployment} on this DIAL Core. Tell the user that it is not available."
        case 401 | 403:
            return f"The deployment {deployment}, or a file passed to it, is not open to this user. Tell the user."
        case 400 | 413 | 415 | 422:
            return f"The deployment {deployment} did not accept the request. Correct it, or tell the user."
        case _:
            return f"The deployment {deployment} did not answer properly. Try again later, or tell the user."
