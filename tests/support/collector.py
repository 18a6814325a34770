"""An OpenTelemetry collector on a free loopback port, which keeps the spans it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.core import served


@asynccontextmanager
async def collector() -> AsyncGenerator[tuple[str, list[Any]]]:
    """Its address, and the spans it has received."""
    spans: list[Any] = []

    async def receive(request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        spans.extend(span for group in export.resource_spans for scope in group.scope_spans for span in scope.spans)
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", receive)
    async with served(app) as url:
        yield f"{url}/v1/traces", spans
