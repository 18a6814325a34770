"""A page on the loopback that counts its visitors, for what must reach it and what must not."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class PageServer(HTTPServer):
    """Answers every GET with `page PATH`; `paths` are those that were asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.paths: list[str] = []


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, PageServer)
        self.server.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"page " + self.path.encode())

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def serving() -> Generator[PageServer]:
    """The server, in a thread of its own."""
    server = PageServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
