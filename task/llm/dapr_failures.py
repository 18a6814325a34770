"""Turn the failures of calls to a Dapr sidecar into ProviderErrors, as every other provider's are."""

from __future__ import annotations

import re
from collections.abc import Mapping

import grpc

from task.errors import ProviderError
from task.llm.failures import CONNECTION_FAILED, CONTEXT_LENGTH, INTERRUPTED, TIMEOUT, stream_failure

DAPR = "The Dapr sidecar"
OLDEST: tuple[int, int] = (1, 16)  # of the runtimes that have tools in their Conversation API
COMPONENT = "AGENT_DAPR__COMPONENT"
# The components pass a provider's status on in the text only, each with the words of its client.
_STATUS = re.compile(r"(?:[:,]|status code|[Ee]rror|HTTP) ([45]\d\d)\b")
_UNREACHED = re.compile(r"failed to connect|DNS resolution|errors resolving|connection attempt")
_LOST = re.compile(r"network error|connection (reset|refused)|broken pipe|\bEOF\b|no such host")
_SLOW = re.compile(r"request timeout|deadline exceeded")
_TOO_LARGE = re.compile(r"larger than max")


def without_component(place: str, name: str, components: Mapping[str, str]) -> ProviderError:
    """The error for a component that the sidecar at `place` does not have, or for one that is not named."""
    named = f"conversation component {name}" if name else "single conversation component"
    listed = f"It has {', '.join(components)}: choose one with {COMPONENT}." if components else "It has none: add one."
    sentence = f"{DAPR} at {place} has no {named}. {listed}"
    return ProviderError(sentence, status_code=400, code="invalid_request", display_message=sentence)


def too_old(place: str) -> ProviderError:
    """The error for a runtime before `OLDEST`."""
    needed = ".".join(map(str, OLDEST))
    sentence = f"What answers at {place} has no conversations with tools: it must be Dapr {needed} or newer."
    return ProviderError(sentence, status_code=404, display_message=sentence)


def call_failure(code: grpc.StatusCode, text: str, place: str, token: str) -> ProviderError:
    """The error for a call to the sidecar at `place` that ended with `code`."""
    error = _error(code, text, place, token)
    error.server, error.address = DAPR, place
    return error


def _error(code: grpc.StatusCode, text: str, place: str, token: str) -> ProviderError:
    status, problem, sentence = _meaning(code, text, place)
    if status is None:
        return ProviderError(sentence or f"{DAPR} broke off.", code=problem, text=text, display_message=sentence)
    error = stream_failure({"message": text, "status": status, "display_message": sentence}, (token,))
    error.code = problem or error.code
    return error


def _meaning(code: grpc.StatusCode, text: str, place: str) -> tuple[int | None, str | None, str | None]:
    """The HTTP status and the code that other providers would have sent, and a sentence where it is Dapr's own."""
    status = grpc.StatusCode
    match code:
        case status.UNAVAILABLE if _UNREACHED.search(text):
            sentence = f"{DAPR} does not answer at {place}. Start it, or correct DAPR_GRPC_ENDPOINT or DAPR_GRPC_PORT."
            return None, CONNECTION_FAILED, sentence
        case status.UNAVAILABLE | status.CANCELLED:
            return None, INTERRUPTED, None
        case status.DEADLINE_EXCEEDED:
            return None, TIMEOUT, None
        case status.UNAUTHENTICATED:
            return 401, None, f"{DAPR} at {place} refuses the token. Set DAPR_API_TOKEN to the one it was started with."
        case status.PERMISSION_DENIED:
            return 403, None, f"{DAPR} at {place} does not allow this call."
        case status.UNIMPLEMENTED:
            return 404, None, str(too_old(place))
        case status.RESOURCE_EXHAUSTED if _TOO_LARGE.search(text):
            sentence = (
                f"The conversation is too long for the Dapr sidecar at {place}. Start a new one, or ask an operator to"
                " raise the sidecar's limit (--max-body-size)."
            )
            return 413, CONTEXT_LENGTH, sentence
        case status.RESOURCE_EXHAUSTED:
            return 429, None, None
        case status.INVALID_ARGUMENT | status.NOT_FOUND | status.FAILED_PRECONDITION | status.OUT_OF_RANGE:
            return 400, None, None
        case _ if found := _STATUS.search(text):
            return int(found[1]), None, None
        case _ if _LOST.search(text):
            return None, INTERRUPTED, None
        case _ if _SLOW.search(text):
            return None, TIMEOUT, None
        case _:
            return 500, None, None
