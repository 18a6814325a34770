"""Files that go with a question and come back with an answer, through a real local Core."""

import base64
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.core import local_core, served
from tests.support.up import dial_agent

PIXEL = b"\x89PNG\r\n\x1a\n\x00\x01"


def application(seen: list[dict[str, Any]]) -> web.Application:
    """Answers with what was attached, under a hostile title, with a picture as data and with a link."""

    async def answer(request: web.Request) -> web.StreamResponse:
        message = (await request.json())["messages"][-1]
        seen.append(message)
        [sent] = message["custom_content"]["attachments"]
        picture = base64.b64encode(PIXEL).decode()
        back = [
            {"index": 0, "title": "../../report.csv", "url": sent["url"]},
            {"index": 1, "title": "pixel.png", "type": "image/png", "data": picture},
            {"index": 2, "title": "[1] source", "data": "quote", "reference_url": "https://example.org"},
        ]
        delta = {"content": "Here.", "custom_content": {"attachments": back}}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"}):
            chunk = {"id": "r", "object": "chat.completion.chunk", "created": 1, "choices": [{"index": 0, **choice}]}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/echo", answer)
    return app


async def test_attached_files_arrive_and_the_answers_files_are_kept_in_the_folder_only(tmp_path: Path) -> None:
    out, name = tmp_path / "out", "sales & 50% #1 é.csv"
    (tmp_path / name).write_text("a,b\n1,2\n")
    out.mkdir()
    (out / "report.csv").write_text("mine")
    seen: list[dict[str, Any]] = []
    async with served(application(seen)) as url:
        config = {"applications": {"echo": {"endpoint": f"{url}/echo"}}, "keys": {}}
        async with local_core(config, tmp_path) as core:
            environ = {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": core.api_key}
            done = await dial_agent(
                tmp_path, "ask", "Keep it", "--model", "echo", "--file", name, "--save", "out", **environ
            )
    assert (done.code, done.out) == (0, "Here.\n"), done.err
    assert seen[0]["custom_content"]["attachments"][0]["title"] == name
    assert sorted(path.name for path in out.iterdir()) == ["pixel.png", "report-2.csv", "report.csv"]
    assert (out / "report-2.csv").read_text() == "a,b\n1,2\n"
    assert (out / "report.csv").read_text() == "mine"
    assert (out / "pixel.png").read_bytes() == PIXEL
    assert "[1] source https://example.org" in done.err
