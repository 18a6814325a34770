"""The agent's connections: a bound and a time limit for what comes before a request can be looked at."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES, HEAD_SECONDS = 64 * 2**10, 30.0
REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol, which itself keeps any number of header lines, for any time.

    Bytes count until the parser has something whole: a head, or a piece of a body. So trailers are bounded as well.
    """

    _unread, _deadline, _refused = 0, 0.0, False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        while data and not self._refused and not self.transport.is_closing():
            room, cycle = HEAD_BYTES - self._unread, self.cycle
            piece, data = data[:room], data[room:]
            self._unread += len(piece)
            super().data_received(piece)
            if self.cycle is not cycle:
                self._unread = 0
            elif self._unread >= HEAD_BYTES:
                self._refuse()
        if not self._refused:
            self._limit_time()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def _limit_time(self) -> None:
        if self.cycle and self.cycle.scope is self.scope:  # the head that began last is whole
            self._deadline = 0.0
        else:  # in place of the timer for idle connections, which what arrives next cancels
            self._deadline = self._deadline or self.loop.time() + HEAD_SECONDS
            self.timeout_keep_alive_task = self.loop.call_at(self._deadline, self.transport.abort)

    def _refuse(self) -> None:
        self._refused = True
        if self.cycle and not self.cycle.response_complete:  # another answer is on its way
            self.transport.close()
            return
        # What still comes is dropped until a timer ends it: a connection closed before is reset, and its answer lost.
        self._limit_time()
        self.transport.write(REFUSAL)
        self.transport.write_eof()
