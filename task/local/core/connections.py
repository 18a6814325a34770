"""Local Core's connections: a request whose head is too large, or does not end, is not looked at."""

from asyncio import BaseTransport

from aiohttp import web, web_protocol, web_server
from aiohttp.http_exceptions import BadHttpMessage

from task.local.core.responses import PlainResponse

HEAD_BYTES, HEAD_SECONDS = 64 * 2**10, 30.0
HEAD_TOO_LARGE = "Request header fields are too large"
_PARSERS = ("Got more than", "Too many headers")  # how the messages of its parser begin


class BoundedConnection(web_protocol.RequestHandler):
    """aiohttp's own, which bounds each line and their number, but answers with a 400 and a traceback in the log, and
    waits minutes for the end of a head."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._loop.call_later(HEAD_SECONDS, lambda: self._request_count or self.force_close())

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        if isinstance(exc, BadHttpMessage) and exc.message.startswith(_PARSERS):
            response = PlainResponse(431, HEAD_TOO_LARGE)
            response.force_close()
            return response
        return super().handle_error(request, status, exc, message)


web_server.RequestHandler = BoundedConnection  # type: ignore[misc]  # aiohttp has no setting for the class
