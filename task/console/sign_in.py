"""Sign the user of the console in at an MCP server: in the browser, which comes back to a port of this machine."""

import asyncio
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from task.errors import InvalidRequest

if TYPE_CHECKING:
    from task.tools.mcp.oauth import UserSignIns

SECONDS = 600.0
_PAGE = "HTTP/1.1 {}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{}\n"


async def sign_in(sign_ins: "UserSignIns", owner: str, server: str, show: Callable[[str], None]) -> str:
    """What to tell the user, when he has signed in. Raises: InvalidRequest: he has not, or not in time."""
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("ascii", "replace").split()
        back = dict(parse_qsl(urlsplit(line[1] if len(line) > 1 else "").query))
        status, text = "200 OK", f"You are signed in to {server}. Go back to the console."
        try:
            await sign_ins.finish(owner, back.get("state", ""), back.get("code", ""), back.get("iss"))
            done.set_result(text)
        except InvalidRequest as error:  # also what others ask at this port: the user may still come
            status, text = "400 Bad Request", str(error)
        writer.write(_PAGE.format(status, text).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        address = await sign_ins.start(owner, server, f"http://127.0.0.1:{port}/")
        show(f"Sign in to {server} in the browser: {address}")
        await asyncio.to_thread(webbrowser.open, address)
        try:
            async with asyncio.timeout(SECONDS):
                await done
        except TimeoutError:
            raise InvalidRequest(f"You did not sign in to {server} in time.") from None
    return f"You are signed in to {server}."
