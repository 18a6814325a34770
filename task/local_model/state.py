"""What llama.cpp's server has worked out for a prompt, kept in a file: the next process need not read it again."""

from __future__ import annotations

from http import HTTPStatus

import aiohttp

SAVE = "/slots/0?action=save"  # the server works on one request at a time, in slot 0
SECONDS = 20


async def kept(url: str, key: str, name: str) -> bool:
    """Let the server write the file `name` into its folder for states; False: it cannot, which costs time only."""
    headers, limit = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=SECONDS)
    # A connection of its own: the server closes those that have streamed, and a pool may not know that yet.
    async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
        try:
            async with session.post(f"{url}{SAVE}", json={"filename": name}) as response:
                return response.status == HTTPStatus.OK
        except (aiohttp.ClientError, TimeoutError):
            return False
