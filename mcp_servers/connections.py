"""The companion servers' connections: a bound and a time limit for what comes before a request can be looked at."""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES, HEAD_SECONDS = 64 * 2**10, 30.0
REFUSAL = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedConnection(H11Protocol):
    """uvicorn's protocol, which itself waits for the end of a head for any time, and takes any that comes at once."""

    _head, _deadline, _refused = 0, 0.0, False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        while data and not self._refused and not self.transport.is_closing():
            room = HEAD_BYTES - self._head
            piece, data = data[:room], data[room:]
            super().data_received(piece)
            self._head = self._head + len(piece) if self.conn.their_state is h11.IDLE else 0
            self._limit_time()
            if self._head >= HEAD_BYTES:
                # What still comes is dropped until the timer ends it: a connection closed before is reset, and its
                # answer lost.
                self._refused = True
                self.transport.write(REFUSAL)
                self.transport.write_eof()

    def _limit_time(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._deadline = 0.0
        else:  # in place of the timer for idle connections, which what arrives next cancels
            self._deadline = self._deadline or self.loop.time() + HEAD_SECONDS
            self.timeout_keep_alive_task = self.loop.call_at(self._deadline, self.transport.abort)
