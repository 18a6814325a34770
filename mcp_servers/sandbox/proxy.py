"""The way out of a run that may reach some hosts: a proxy on the loopback that connects it with those and no others."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from mcp_servers.addresses import is_public
from mcp_servers.sandbox.forward import relay
from mcp_servers.sandbox.policy import Door, Policy

PUBLIC = "*"
CONNECT_SECONDS, MOST_HEAD = 20.0, 64 * 1024
OWN_PORT = 3128  # in a network that belongs to the run
PORTS = {"http": 80, "https": 443}


class Refused(Exception):
    """A connection that is not made; the text is for the program that asked for it."""


@contextmanager
def opened(policy: Policy) -> Generator[tuple[Callable[[], None], Door]]:
    """A function that starts serving in the background, and where the run finds the proxy, at once.

    Landlock allows one port. In bubblewrap, whose network is the run's own, a socket is the way in.
    """
    if policy.tier != "bubblewrap":
        server = _Server(("127.0.0.1", 0), _Handler)
        with server:
            yield _serving(server, policy), (server.socket.getsockname()[1], None)
        return
    owner = os.getpid()
    folder = f"/tmp/sandbox-{os.urandom(8).hex()}"  # noqa: S108 - new, and short, as a socket's path must be
    os.mkdir(folder, 0o700)
    path = f"{folder}/proxy"
    try:
        local = _LocalServer(path, _Handler)
        with local:
            if policy.uid is not None:
                os.chown(path, policy.uid, policy.uid)
                os.chown(folder, policy.uid, policy.uid)
            yield _serving(local, policy), (OWN_PORT, path)
    finally:
        if os.getpid() == owner:  # not the child that could not start the program
            os.unlink(path)
            os.rmdir(folder)


def _serving(server: _Server | _LocalServer, policy: Policy) -> Callable[[], None]:
    server.hosts = policy.network
    return threading.Thread(target=server.serve_forever, name="proxy", daemon=True).start


def variables(port: int) -> dict[str, str]:
    """The environment by which programs find the proxy."""
    address = f"http://127.0.0.1:{port}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {name: address for upper in names for name in (upper, upper.lower())}


class _Quiet(socketserver.ThreadingMixIn, socketserver.BaseServer):
    daemon_threads = True
    hosts: tuple[str, ...] = ()

    def handle_error(self, request: object, client_address: object) -> None:
        return


class _Server(_Quiet, socketserver.TCPServer):
    request_queue_size = 128


class _LocalServer(_Quiet, socketserver.UnixStreamServer):
    request_queue_size = 128


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        client: socket.socket = self.request
        assert isinstance(self.server, _Quiet)
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
            relay(client, outside)


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
