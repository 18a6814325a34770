"""Answer every failure of the HTTP front door's routes in OpenAI's shape."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from task.api.edge.failures import Failure, failure_of, internal_failure, refused
from task.errors import AgentError, new_reference

logger = logging.getLogger(__name__)

_OF_TYPES = frozenset("([")  # tagged-union[…], function-after[…], (text)


def add_failure_handlers(app: FastAPI) -> None:
    """Answer every failure of the application's routes in OpenAI's shape."""

    async def failed(_: Request, error: Exception) -> Response:
        return failure_of(error).response()

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _malformed(error.errors(), error.body).response()

    async def unfit(request: Request, error: Exception) -> Response:
        assert isinstance(error, ResponseValidationError)
        reference, model = new_reference(), request.scope["route"].response_model.__name__
        # The error's own text quotes the data.
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['type']}" for fault in error.errors()[:5])
        logger.error("an answer does not fit %s (reference %s): %s", model, reference, faults)
        return internal_failure(reference).response()

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, request))
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        return refused(error.status_code, _routing_text(error), code, headers=headers).response()

    app.add_exception_handler(AgentError, failed)
    app.add_exception_handler(500, failed)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(ResponseValidationError, unfit)
    app.add_exception_handler(HTTPException, routing)


def _methods(app: FastAPI, request: Request) -> list[str]:
    # Several routes may share the address, of which the framework names one.
    found = (route for route in app.routes if isinstance(route, Route | APIRoute))
    matching = (route.methods for route in found if route.matches(request.scope)[0] is not Match.NONE)
    return sorted(method for methods in matching for method in methods or ())


def _routing_text(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "This address does not exist; /openapi.json lists those that do."
        case 405:
            return "This address does not accept that method; /openapi.json lists those it accepts."
        case _:
            return str(error.detail)


def _malformed(faults: Sequence[Any], body: Any) -> Failure:
    if faults[0]["type"] == "json_invalid":
        return refused(400, "The body is not valid JSON.", "invalid_json")
    text = "; ".join(f"{_place(fault['loc'], body) or 'body'}: {fault['msg']}" for fault in faults[:5])
    return refused(400, f"The request does not fit: {text}.", "invalid_value", _place(faults[0]["loc"], body) or None)


def _place(found: Sequence[Any], body: Any) -> str:
    names: list[str] = []
    for number, part in enumerate(found[1:], 2):
        inside = part in body if isinstance(body, dict) else isinstance(part, int) and isinstance(body, list)
        if inside or (number == len(found) and not set(str(part)) & _OF_TYPES):
            names.append(str(part))
            body = body[part] if inside else None
    return ".".join(names)
