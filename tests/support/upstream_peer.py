"""The upstream of `tests.support.upstream` as a process of its own, scripted over `/peer/…` as Ollama's peer is.

python -m tests.support.upstream_peer PORT
"""

import sys
from collections import deque
from dataclasses import asdict
from typing import Any

from aiohttp import web

from task.errors import ProviderError
from task.llm.base import TextDelta
from task.llm.scripted import Reply
from tests.support.parts import reply_of
from tests.support.upstream import Item, Received, Upstream, error_in_stream, http_error, upstream_app


class Peer:
    def __init__(self) -> None:
        self.items = deque[Item]()
        self.upstream = Upstream(then=self.answer)

    def answer(self, received: Received) -> Any:
        item = self.items.popleft() if self.items else http_error(400, "nothing is scripted", code="script_exhausted")
        return item(received) if callable(item) else item

    async def script(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("reset"):
            self.items.clear()
            self.upstream.requests.clear()
        self.items.extend(_item(answer["parts"]) for answer in body["answers"])
        return web.json_response({})

    async def state(self, _: web.Request) -> web.Response:
        return web.json_response({"requests": [asdict(request) for request in self.upstream.requests]})


def _item(parts: list[dict[str, Any]]) -> Item:
    reply = reply_of(parts)
    error = next((event for event in reply.events if isinstance(event, ProviderError)), None)
    if error is None:
        return reply
    written = Reply(reply.events[: reply.events.index(error)])
    texts = sum(isinstance(event, TextDelta) for event in written.events)
    return error_in_stream(written, chunks=1 + texts, message=str(error))


def main(port: int) -> None:
    peer = Peer()
    app = upstream_app(peer.upstream)
    app.router.add_post("/peer/script", peer.script)
    app.router.add_get("/peer/state", peer.state)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, handler_cancellation=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
