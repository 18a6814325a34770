"""An OpenTelemetry collector on a free loopback port, which keeps the spans it is sent."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.core import served


@asynccontextmanager
async def collector(respond: Callable[[], web.Response] = web.Response) -> AsyncGenerator[tuple[str, list[Any]]]:
    """Its address, for `OTEL_EXPORTER_OTLP_ENDPOINT`, and the spans it has received."""
    spans: list[Any] = []

    async def receive(request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        spans.extend(span for group in export.resource_spans for scope in group.scope_spans for span in scope.spans)
        return respond()

    app = web.Application()
    app.router.add_post("/v1/traces", receive)
    async with served(app) as url:
        yield url, spans


@asynccontextmanager
async def silent_collector() -> AsyncGenerator[str]:
    """The address of a collector that takes requests and never answers them."""
    ending = asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ending.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ending.set()


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}
