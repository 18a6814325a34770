"""Routes that know their caller before they read a body: who may not knock is not listened to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response


def caller_first(caller: Callable[[Request], Awaitable[object]]) -> type[APIRoute]:
    """The kind of route that asks `who` calls first; what it raises is the answer."""

    class CallerFirst(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handled(request: Request) -> Response:
                await caller(request)
                return await handle(request)

            return handled

    return CallerFirst
