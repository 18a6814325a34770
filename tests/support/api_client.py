"""A client of `/v1/chat/completions` with its own tool, and an agent with a tool that needs approval."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from task.llm import scripted
from task.llm.base import ToolCallDelta
from tests.support.http_api import Api, http_api, said
from tests.support.product import product
from tests.support.replies import Reply

NOTES = str(Path(__file__).parent.parent / "contract" / "matrix" / "notes.py")
LOOKUP: dict[str, Any] = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


@asynccontextmanager
async def agent(*script: Any, tmp_path: Path, **settings: Any) -> AsyncGenerator[Api]:
    """The agent with the tool `write_note`."""
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[NOTES], **settings) as api:
        yield api


@asynccontextmanager
async def behind_core(*script: Any, tmp_path: Path, **settings: Any) -> AsyncGenerator[Api]:
    """The agent beside a local Core, as `product` makes them."""
    async with product(*script, tmp_path=tmp_path, **settings) as running, ClientSession() as session:
        yield Api(running.agent_url, running.upstream, session)


class Client:
    """Sends its whole history, or in a session only new messages; reads answers as a stream or whole."""

    def __init__(
        self, api: Api, *, stream: bool = False, session_id: str | None = None, whole: bool | None = None
    ) -> None:
        self.api, self.stream, self.session_id = api, stream, session_id
        self.whole = session_id is None if whole is None else whole
        self.history: list[dict[str, Any]] = []
        self.finish_reason: str | None = None

    async def send(self, *messages: dict[str, Any]) -> dict[str, Any]:
        """Send the messages and keep the assistant's answer in the history."""
        self.history += messages
        answer = await self.again(*messages)
        self.history.append(answer)
        return answer

    async def again(self, *messages: dict[str, Any]) -> dict[str, Any]:
        """The assistant's answer to a request; it is not added to the history."""
        reply = await self.post(*messages)
        assert reply.status == 200, reply.text
        if self.stream:
            return self._joined(reply.chunks)
        self.finish_reason = reply.json["choices"][0]["finish_reason"]
        return reply.json["choices"][0]["message"]

    async def post(self, *messages: dict[str, Any]) -> Reply:
        session = {"session_id": self.session_id} if self.session_id is not None else {}
        sent = self.history if self.whole else messages
        body = {"tools": [LOOKUP], "stream": self.stream, "messages": sent, **session}
        return await self.api.post("/v1/chat/completions", body)

    async def decide(self, word: str) -> dict[str, Any]:
        """The answer to a decision about the question that the agent has just put."""
        return await self.send(said(coded(word, self.history[-1]["content"])))

    async def result(self, content: str) -> dict[str, Any]:
        """The answer to the result of the one call that the agent handed out."""
        [call] = self.history[-1]["tool_calls"]
        assert call["function"]["name"] == "lookup"
        return await self.send({"role": "tool", "tool_call_id": call["id"], "content": content})

    def _joined(self, chunks: list[dict[str, Any]]) -> dict[str, Any]:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        self.finish_reason = chunks[-1]["choices"][0]["finish_reason"]
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for delta in deltas
            for call in delta.get("tool_calls", ())
        ]
        text = "".join(delta.get("content") or "" for delta in deltas)
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def coded(word: str, question: str) -> str:
    """The decision with the code that the question names."""
    found = re.search(r"approve ([a-z]\d[a-z]\d)", question)
    assert found is not None, question
    head, because, reason = word.partition(" because ")
    return f"{head} {found[1]}{because}{reason}"


def results(api: Api, request: int = -1) -> list[str]:
    return [item["content"] for item in api.upstream.requests[request].messages if item["role"] == "tool"]


async def waiting(api: Api) -> list[dict[str, Any]]:
    return (await api.get("/approvals")).json["approvals"]


def numbered(reply: scripted.Reply) -> scripted.Reply:
    """The reply as sent by servers that number the calls of each answer from zero."""
    calls = (event for event in reply.events if isinstance(event, ToolCallDelta))
    return scripted.Reply(tuple(replace(call, id=f"call_{number}") for number, call in enumerate(calls)))
