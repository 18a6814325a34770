"""The way out of a run that may reach some hosts: a proxy on the loopback that connects it with those and no others."""

from __future__ import annotations

import selectors
import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from mcp_servers.addresses import is_public

PUBLIC = "*"
CONNECT_SECONDS, IDLE_SECONDS, MOST_HEAD = 20.0, 300.0, 64 * 1024
PORTS = {"http": 80, "https": 443}


class Refused(Exception):
    """A connection that is not made; the text is for the program that asked for it."""


def opened(hosts: tuple[str, ...]) -> tuple[Callable[[], None], int]:
    """A function that starts serving in the background, and the port, to which connections can be made at once."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hosts = hosts
    serve = threading.Thread(target=server.serve_forever, name="proxy", daemon=True).start
    return serve, server.server_address[1]


def variables(port: int) -> dict[str, str]:
    """The environment by which programs find the proxy."""
    address = f"http://127.0.0.1:{port}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {name: address for upper in names for name in (upper, upper.lower())}


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    hosts: tuple[str, ...] = ()

    def handle_error(self, request: object, client_address: object) -> None:
        return


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        client: socket.socket = self.request
        assert isinstance(self.server, _Server)
        client.settimeout(CONNECT_SECONDS)
        request, rest = _head(client)
        try:
            host, port, first = _target(request)
            outside = _connected(host, port, self.server.hosts)
        except Refused as error:
            text = f"{error}\n".encode()
            client.sendall(
                b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
            )
            return
        with outside:
            if first is None:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            outside.sendall((first or b"") + rest)
            _relay(client, outside)


def _head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MOST_HEAD:
        part = client.recv(65536)
        if not part:
            break
        data += part
    head, mark, rest = data.partition(b"\r\n\r\n")
    return head + mark, rest


def _target(head: bytes) -> tuple[str, int, bytes | None]:
    """Host, port, and the head as the server is to get it; None: nothing, the client wants a tunnel."""
    line, _, fields = head.partition(b"\r\n")
    try:
        method, address, version = line.decode("ascii").split(" ")
        url = urlsplit(f"https://{address}" if method == "CONNECT" else address)
        host, port = url.hostname, url.port or PORTS[url.scheme]
    except (ValueError, KeyError):
        raise Refused("the proxy understands CONNECT and http:// addresses only") from None
    if not host or not version.startswith("HTTP/1."):
        raise Refused("the proxy understands HTTP/1 only")
    if method == "CONNECT":
        return host, port, None
    path = url._replace(scheme="", netloc="").geturl() or "/"
    kept = [field for field in fields.split(b"\r\n") if not field.lower().startswith((b"connection:", b"proxy-"))]
    # One request on a connection, since the next one could be for another host.
    return host, port, b"\r\n".join([f"{method} {path} {version}".encode(), b"Connection: close", *kept])


def _connected(host: str, port: int, hosts: tuple[str, ...]) -> socket.socket:
    """A connection to a host that is named, wherever it is, or to a public address if all of those are allowed."""
    named = any(f"{part}:{port}" in hosts or part in hosts for part in (host, f"[{host}]"))
    if not named and PUBLIC not in hosts:
        raise Refused(f"{host} is not among the hosts that this run may reach")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused(f"there is no host {host}") from None
    addresses = [address for *_, address in found if named or is_public(str(address[0]))]
    if not addresses:
        raise Refused(f"{host} is not on the public internet, and this run may reach nothing else")
    for address in addresses:
        with suppress(OSError):
            return socket.create_connection((str(address[0]), port), CONNECT_SECONDS)
    raise Refused(f"{host} does not answer on port {port}")


def _relay(client: socket.socket, outside: socket.socket) -> None:
    peers = {client: outside, outside: client}
    for peer in peers:
        peer.settimeout(IDLE_SECONDS)
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ, peers[peer])
        while selector.get_map():
            ready = selector.select(IDLE_SECONDS)
            if not ready:
                return
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(65536)
                if data:
                    key.data.sendall(data)
                else:
                    selector.unregister(key.fileobj)
                    key.data.shutdown(socket.SHUT_WR)
