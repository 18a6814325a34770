"""Failures of the HTTP front door: OpenAI's error bodies under their real status, for every route."""

import logging
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Self

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from task import errors
from task.api.schemas import SCHEMA_REFERENCE, JsonResponse, ResponseModel
from task.llm.failures import reported
from task.runs.events import RunError
from task.runs.request import RunState

logger = logging.getLogger(__name__)
FILE_TOO_LARGE = (
    "The file is larger than {limit:,} bytes, the most that can be uploaded. Upload a smaller file or a part of it; an "
    "operator can raise the limit: AGENT_LIMITS__MAX_UPLOAD_BYTES."
)
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 409: "conflict_error"} | {
    **dict.fromkeys((400, 405, 413, 415, 422), "invalid_request_error"),
    429: "rate_limit_error",
}
# What a model's failure is for our caller; any other is a 502.
_PROVIDER_STATUSES = {n: n for n in (400, 404, 429, 503, 504)} | {413: 400, 422: 400, 408: 504}
# By name: given as a model, FastAPI would build it again for every failure of every route.
_ERROR = {"content": {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(model="ErrorBody")}}}}
_REFUSALS: dict[type, tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_request"),
    errors.NotFound: (404, "not_found"),
    errors.Conflict: (409, "conflict"),
    errors.KeyReused: (422, "idempotency_key_reused"),
    errors.TooManyRuns: (429, "rate_limit_exceeded"),
    errors.StoreUnavailable: (503, "store_unavailable"),
}


class ErrorDetail(ResponseModel):
    message: str
    type: str
    param: str | None
    code: str | None
    display_message: str | None = None
    reference: str | None = None


class ErrorBody(ResponseModel):
    """`error` is OpenAI's; the ids are present where a run failed."""

    error: ErrorDetail
    session_id: str | None = None
    run_id: str | None = None
    trace_id: str | None = None


def failures(*more: int) -> dict[int | str, dict[str, Any]]:
    """The failures of a route as FastAPI's `responses`: those that every route has, and `more`."""
    models = (422, 502, 504) if 409 in more else ()
    return dict.fromkeys(sorted({400, 401, 403, 429, 503, *more, *models}), _ERROR)


class Failure(errors.AgentError):
    """What a caller receives: OpenAI's error with a reference into the log, the seconds to wait, and a run's ids."""

    def __init__(
        self,
        status: int,
        error: Mapping[str, Any],
        retry_after: int | None = None,
        ids: Mapping[str, str | None] | None = None,
    ) -> None:
        super().__init__(error["message"])
        self.status, self.error, self.retry_after, self.ids = status, error, retry_after, ids or {}

    def body(self) -> dict[str, Any]:
        """The data of an `ErrorBody`."""
        return {"error": {**self.error, "type": _TYPES.get(self.status, "api_error")}, **self.ids}

    def event(self) -> RunError:
        """The `error` event of a run that ended with this failure."""
        return RunError(self.body()["error"], self.status, self.retry_after)

    @classmethod
    def of_run(cls, state: RunState) -> Self:
        """The failure that the run's `error` event has recorded, for the run's caller."""
        assert state.failure is not None
        recorded = state.failure
        return cls(recorded.get("status", 500), recorded["error"], recorded.get("retry_after"), state.ids)

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        given = dict(headers or {})
        if self.retry_after is not None:
            given["Retry-After"] = str(self.retry_after)
        if self.ids:
            given |= {"X-Run-Id": self.ids["run_id"] or "", "X-Trace-Id": self.ids["trace_id"] or ""}
        return JsonResponse(self.body(), self.status, given)


def failure_of(error: BaseException, model: str = "") -> Failure:
    """The caller's view of the error; details for the operator go to the log."""
    reference = errors.reference_of(error)
    match error:
        case Failure():
            return error
        case errors.InvalidRequest() | errors.StoreUnavailable():
            status, code = next(_REFUSALS[kind] for kind in type(error).__mro__ if kind in _REFUSALS)
            param = "Idempotency-Key" if isinstance(error, errors.KeyReused) else None
            return refused(status, str(error), code, param, 5 if status >= 429 else None, reference=reference)
        case errors.ToolError():  # a server outside, of which a route asked something
            return refused(503, str(error), "server_unavailable", reference=reference)
        case errors.ProviderError():
            reference, text = reported(error, model)
            status = _PROVIDER_STATUSES.get(error.status_code or 0, 502)
            return _failure(status, text, error.code, None, reference, error.retry_after)
        case RequestValidationError():
            return _malformed(error)
        case HTTPException(status_code=404):
            return refused(404, "This address does not exist; /openapi.json lists those that do.", "not_found")
        case HTTPException(status_code=405):
            text = "This address does not accept that method; /openapi.json lists those it accepts."
            return refused(405, text, "method_not_allowed")
        case HTTPException():
            return refused(error.status_code, str(error.detail))
        case ResponseValidationError():  # its text quotes the data
            faults = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['type']}" for item in error.errors()[:5])
            logger.error("an answer of %s does not fit (reference %s): %s", error.endpoint_path, reference, faults)
        case _:
            logger.error("a request failed unexpectedly (reference %s)", reference, exc_info=error)
    text = errors.with_reference("Something went wrong on our side. Try again.", reference)
    return _failure(500, text, "internal_error", None, reference)


def refused(
    status: int,
    message: str,
    code: str | None = None,
    param: str | None = None,
    retry_after: float | None = None,
    *,
    reference: str = "",
    detail: str = "",
) -> Failure:
    """A request that is not answered, under a reference into the log, which never repeats what was sent."""
    reference = reference or errors.new_reference()
    level = logging.WARNING if status >= 500 else logging.INFO
    why = f": {detail}" if detail else ""
    logger.log(level, "a request was refused (reference %s, status %s, code %s)%s", reference, status, code, why)
    return _failure(status, message, code, param, reference, retry_after)


def _failure(
    status: int, message: str, code: str | None, param: str | None, reference: str, retry_after: float | None = None
) -> Failure:
    error = {"message": message, "param": param, "code": code, "reference": reference or None}
    seconds = max(1, ceil(retry_after)) if retry_after is not None else None
    return Failure(status, {**error, "display_message": errors.with_reference(message, reference)}, seconds)


_OF_TYPES = frozenset("([")  # tagged-union[…], function-after[…], (text)


def add_failure_handlers(app: FastAPI) -> None:
    """Answer every failure of the application's routes in OpenAI's shape."""

    async def failed(_: Request, error: Exception) -> Response:
        return failure_of(error).response(error.headers if isinstance(error, HTTPException) else None)

    for kind in (errors.AgentError, RequestValidationError, ResponseValidationError, HTTPException, 500):
        app.add_exception_handler(kind, failed)


def _malformed(error: RequestValidationError) -> Failure:
    faults, body = error.errors(), error.body
    if faults[0]["type"] == "json_invalid":
        return refused(400, "The body is not valid JSON.", "invalid_json")
    text = "; ".join(f"{_place(fault['loc'], body) or 'body'}: {fault['msg']}" for fault in faults[:5])
    param = _place(faults[0]["loc"], body) or None
    return refused(400, f"The request does not fit: {text}.", "invalid_value", param)


def _place(found: Sequence[Any], body: Any) -> str:
    names: list[str] = []
    for number, part in enumerate(found[1:], 2):
        inside = part in body if isinstance(body, dict) else isinstance(part, int) and isinstance(body, list)
        if inside or (number == len(found) and not set(str(part)) & _OF_TYPES):
            names.append(str(part))
            body = body[part] if inside else None
    return ".".join(names)
