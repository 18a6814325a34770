"""Sign the user of the console in at an MCP server: in the browser, which comes back to a port of this machine."""

from __future__ import annotations

import asyncio
import webbrowser
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from task.closing import run_blocking
from task.errors import InvalidRequest

if TYPE_CHECKING:
    from task.console.controller import FrameworkController

SECONDS = 600.0
_PAGE = "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{}\n"


def sign_in(console: FrameworkController, server: str) -> str:
    """What to tell the user, when he has signed in. Raises: InvalidRequest: he has not, or not in time."""
    known = console.product.services.mcp.signing_in
    return run_blocking(_signed_in, console, server) if server else f"Servers to sign in to: {', '.join(known.servers)}"


async def _signed_in(console: FrameworkController, server: str) -> str:
    sign_ins, owner = console.product.services.mcp.signing_in, console.caller.owner
    done, text = asyncio.Event(), f"You are signed in to {server}."

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", "replace").split()
        back = dict(parse_qsl(urlsplit(line[1] if len(line) > 1 else "").query))
        status, shown = "200 OK", f"{text} Go back to the console."
        try:
            await sign_ins.finish(owner, back.get("state", ""), back.get("code", ""), back.get("iss"))
        except InvalidRequest as error:  # also what others ask at this port: the user may still come
            status, shown = "400 Bad Request", str(error)
        writer.write(_PAGE.format(status, shown).encode())
        writer.close()
        if status == "200 OK":
            done.set()

    # Closed without waiting: browsers open connections on which they ask nothing.
    with closing(await asyncio.start_server(answer, "127.0.0.1", 0)) as listening:
        port = listening.sockets[0].getsockname()[1]
        address = await sign_ins.start(owner, server, f"http://127.0.0.1:{port}/")
        console.ui.display_system_message(f"Sign in to {server} in the browser: {address}")
        await asyncio.to_thread(webbrowser.open, address)
        try:
            await asyncio.wait_for(done.wait(), SECONDS)
        except TimeoutError:
            raise InvalidRequest(f"You did not sign in to {server} in time.") from None
    return text


def sign_out(console: FrameworkController, server: str) -> str:
    run_blocking(console.product.services.mcp.signing_in.forget, console.caller.owner, server)
    return f"The tokens of {server} are deleted."
