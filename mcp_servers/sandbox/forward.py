"""In a run with a network of its own: lead a port of its loopback to the proxy's socket, then become the program."""

import os
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress

IDLE_SECONDS, PIECE = 300.0, 65536
NOT_FOUND_EXIT = 127


def main(path: str, port: int, argv: list[str]) -> int:
    """Serve in the background, in a process that is not the program's child; returns only if there is no program."""
    server = socket.create_server(("127.0.0.1", port), backlog=128)
    if os.fork() == 0:
        if os.fork() == 0:
            _serve(server, path)
        os._exit(0)
    os.wait()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as error:
        print(f"sandbox: {argv[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND_EXIT


def relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what either sends until both have ended, or nothing comes for long."""
    peers = {one: other, other: one}
    for peer in peers:
        peer.settimeout(IDLE_SECONDS)
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ, peers[peer])
        while selector.get_map() and (ready := selector.select(IDLE_SECONDS)):
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(PIECE)
                if data:
                    key.data.sendall(data)
                else:
                    selector.unregister(key.fileobj)
                    key.data.shutdown(socket.SHUT_WR)


def _serve(server: socket.socket, path: str) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # who reads the program's output waits for its end
        os.dup2(nothing, number)
    while True:
        connection = server.accept()[0]
        threading.Thread(target=_forward, args=(connection, path), daemon=True).start()


def _forward(connection: socket.socket, path: str) -> None:
    with connection, socket.socket(socket.AF_UNIX) as outside, suppress(OSError):
        outside.connect(path)
        relay(connection, outside)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
