"""Sockets outside that wait for a message from inside."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass

HOST = "127.0.0.1"
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listeners:
    """Nobody answers: the kernel accepts and keeps what arrives until it is read."""

    tcp: socket.socket
    tcp6: socket.socket | None
    udp: socket.socket
    stream: socket.socket
    abstract: socket.socket
    datagram: socket.socket
    sequence: socket.socket

    @staticmethod
    def open(folder: str) -> Listeners:
        """Listen on loopback, in the folder, and under an abstract name that the kernel chooses."""
        tcp6 = None
        with suppress(OSError):
            tcp6 = _bound(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))
        return Listeners(
            tcp=_bound(socket.AF_INET, socket.SOCK_STREAM, (HOST, 0)),
            tcp6=tcp6,
            udp=_bound(socket.AF_INET, socket.SOCK_DGRAM, (HOST, 0)),
            stream=_bound(socket.AF_UNIX, socket.SOCK_STREAM, f"{folder}/service.sock"),
            abstract=_bound(socket.AF_UNIX, socket.SOCK_STREAM, ""),
            datagram=_bound(socket.AF_UNIX, socket.SOCK_DGRAM, f"{folder}/datagram.sock"),
            sequence=_bound(socket.AF_UNIX, socket.SOCK_SEQPACKET, f"{folder}/sequence.sock"),
        )

    def close(self) -> None:
        """Close every socket."""
        for listener in self._streams() + self._datagrams():
            listener.close()

    def received(self) -> str:
        """Everything that arrived, one message after the other, each ended by a bar."""
        texts = [_read(listener) for listener in self._datagrams()]
        for listener in self._streams():
            with suppress(BlockingIOError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.setblocking(False)
                        texts.append(_read(connection))
        return "".join(texts)

    def _streams(self) -> list[socket.socket]:
        return [self.tcp, self.stream, self.abstract, self.sequence, *([self.tcp6] if self.tcp6 else [])]

    def _datagrams(self) -> list[socket.socket]:
        return [self.udp, self.datagram]


def _bound(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.setblocking(False)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    if kind != socket.SOCK_DGRAM:
        if family == socket.AF_INET:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 5)
        listener.listen(BACKLOG)
    return listener


def _read(source: socket.socket) -> str:
    texts: list[bytes] = []
    with suppress(BlockingIOError, ConnectionError):
        while text := source.recv(65536):
            texts.append(text)
    return b"".join(texts).decode(errors="replace")
