"""Failures as the HTTP front door tells them: OpenAI's error bodies under their real status."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from task.api.edge.rendering import json_response
from task.errors import AgentError, Conflict, InvalidRequest, NotFound, ProviderError, StoreUnavailable, new_reference

logger = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 409: "conflict_error", 413: "invalid_request_error", 415: "invalid_request_error",
    422: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip
RETRY_SECONDS = 5
_OF_TYPES = frozenset("([")  # tagged-union[…], function-after[…], (text)


class Refused(AgentError):
    """A request that is turned away with this status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after


@dataclass(frozen=True, slots=True)
class Failure:
    """What a caller is told: a sentence, a status, OpenAI's type and code, and a reference into the log."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    reference: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "api_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        if self.status >= 500 or self.reference:
            error |= {"display_message": self.message, "reference": self.reference}
        return {"error": error}

    def response(self) -> Response:
        return json_response(self.body(), self.status, self.headers)


def failure_of(error: BaseException, model: str = "") -> Failure:
    """What the error means to the caller; what only the operator may know goes to the log."""
    match error:
        case Refused():
            return Failure(error.status, str(error), error.code, error.param, headers=_retry(error.retry_after))
        case NotFound():
            return Failure(404, str(error), "not_found")
        case Conflict():
            return Failure(409, str(error), "conflict")
        case InvalidRequest():
            return Failure(400, str(error), "invalid_request")
        case StoreUnavailable():
            return Failure(503, str(error), "store_unavailable", headers=_retry(RETRY_SECONDS))
        case ProviderError():
            return _provider_failure(error, model)
        case _:
            reference = new_reference()
            logger.error("a request failed unexpectedly (reference %s)", reference, exc_info=error)
            told = f"Something went wrong on our side. Try again (error reference: {reference})."
            return Failure(500, told, "internal_error", reference=reference)


def _provider_failure(error: ProviderError, model: str) -> Failure:
    reference = new_reference()
    logger.error(
        "the model %s failed (reference %s, status %s, code %s): %s",
        model, reference, error.status_code, error.code, error,
    )  # fmt: skip
    status, told = _told(error, model)
    told = error.display_message or f"{told} (error reference: {reference})"
    return Failure(status, told, error.code, reference=reference, headers=_retry(error.retry_after))


def _told(error: ProviderError, model: str) -> tuple[int, str]:
    match error.status_code:
        case 401 | 403:
            return 502, f"The model {model} refused the key. An operator has to look at the model's credentials."
        case 404:
            return 404, f"There is no model {model}. Choose another one."
        case 429:
            return 429, f"The model {model} is busy or over its limit. Try again in a minute."
        case 503:  # also DIAL Core's word for a model's 429
            return 503, f"The model {model} is busy or away. Try again in a minute."
        case 400 | 413 | 422:
            return 400, f"The model {model} did not accept the conversation: {error}"
        case 408 | 504:
            return 504, f"The model {model} did not answer in time. Try again, or choose another model."
        case _:
            return 502, f"The model {model} did not answer properly. Try again, or choose another model."


def _retry(seconds: float | None) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds + 0.499)))} if seconds is not None else {}


def tell_failures(app: FastAPI) -> None:
    """Have every failure of the application's routes told in OpenAI's shape."""

    async def told(_: Request, error: Exception) -> Response:
        return failure_of(error).response()

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _malformed(error.errors(), error.body).response()

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, RecursionError):
            return Failure(400, "The body is JSON that is nested too deeply.", "invalid_json").response()
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request))
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return Failure(error.status_code, _routing_text(error), code, headers=headers).response()

    app.add_exception_handler(AgentError, told)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, routing)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What the address knows: several routes may share it, of which the framework names one."""
    fitting = [path for path in app.openapi()["paths"] if _fits(path, request.url.path)]
    return sorted(method.upper() for path in fitting[:1] for method in app.openapi()["paths"][path])


def _fits(template: str, path: str) -> bool:
    wanted, given = template.split("/"), path.split("/")
    if template.endswith("}") and template.startswith("/v1/models/"):
        return path.startswith("/v1/models/")
    pairs = zip(wanted, given, strict=False)
    return len(wanted) == len(given) and all(part.startswith("{") or part == other for part, other in pairs)


def _routing_text(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "There is nothing at this address; /openapi.json lists what there is."
        case 405:
            return "This address does not know that method; /openapi.json lists those it knows."
        case _:
            return str(error.detail)


def _malformed(faults: Sequence[Any], body: Any) -> Failure:
    if faults[0]["type"] == "json_invalid":
        return Failure(400, "The body is not valid JSON.", "invalid_json")
    told = "; ".join(f"{_place(fault['loc'], body) or 'body'}: {fault['msg']}" for fault in faults[:5])
    return Failure(400, f"The request does not fit: {told}.", "invalid_value", _place(faults[0]["loc"], body) or None)


def _place(found: Sequence[Any], body: Any) -> str:
    """The place in the request, without the names of our types on the way to it."""
    names: list[str] = []
    for number, part in enumerate(found[1:], 2):
        inside = part in body if isinstance(body, dict) else isinstance(part, int) and isinstance(body, list)
        if inside or (number == len(found) and not set(str(part)) & _OF_TYPES):
            names.append(str(part))
            body = body[part] if inside else None
    return ".".join(names)
