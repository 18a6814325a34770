"""The HTTP front doors of the matrix: one conversation of a person through each of them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from task.conversation.state import PENDING_KEY, TOOL_CALL_HISTORY_KEY
from task.prompts import SYSTEM_PROMPT
from tests.contract.matrix.projection import Outcome, called
from tests.support.chat_reader import ChatReader
from tests.support.codes import codes_shown

_VARIES = re.compile(r" \[\d+\.\d\ds\]|_[0-9a-f]{8}(?=\.)")  # in a stage's name: its duration, a stored file's mark


class Door(Protocol):
    """One conversation through a front door."""

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        """Add a file to the next message; its place, as tools are to name it."""
        ...

    async def say(self, text: str) -> Outcome:
        """Send a message of the user."""
        ...


class DialDoor:
    """The agent as an application of DIAL Core, with a chat before it."""

    def __init__(self, reader: ChatReader) -> None:
        self._reader, self._files = reader, list[dict[str, Any]]()

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        self._files.append(await self._reader.upload(name, content, content_type))
        return self._files[-1]["url"]

    async def say(self, text: str) -> Outcome:
        answer = await self._reader.ask(text, *self._files)
        self._files.clear()
        state = answer.state or {}
        calls, results = calls_and_results(state.get(TOOL_CALL_HISTORY_KEY, []))
        pending = {item["call_id"] for item in state.get(PENDING_KEY, ())}
        waits = [call["tool"] for number, call in calls.items() if number in pending]
        return Outcome(
            answer.content,
            list(calls.values()),
            results,
            waits,
            codes_shown(answer.content) if waits else (),
            failed=answer.error is not None,
            shown={"stages": [f"{_VARIES.sub('', item.name)} ({item.status})" for item in answer.stages.values()]},
        )


def calls_and_results(messages: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str | None]]:
    """The calls in these messages by their id, and the result of each."""
    made = [call for message in messages for call in message.get("tool_calls") or ()]
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    return {call["id"]: called(call["function"]) for call in made}, [results.get(call["id"]) for call in made]


def last_turn(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages from the last one of the user on."""
    return messages[max(place for place, message in enumerate(messages) if message["role"] == "user") :]


class HttpDoor:
    """A session of the HTTP API, which a subclass sends messages to."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._id, self._files = "", list[dict[str, Any]]()

    async def attach(self, name: str, content: bytes, content_type: str) -> str:
        form = aiohttp.FormData()
        form.add_field("file", content, filename=name, content_type=content_type)
        file = json.loads((await self._call("POST", "/v1/files", data=form))[1])
        self._files.append({"type": "file", "file": {"file_id": file["id"]}})
        return file["url"]

    async def say(self, text: str) -> Outcome:
        self._id = self._id or json.loads((await self._call("POST", "/session/start"))[1])["session_id"]
        content = [{"type": "text", "text": text}, *self._files] if self._files else text
        self._files.clear()
        body = {"messages": [{"role": "user", "content": content}], "system_prompt": SYSTEM_PROMPT}
        answer, failed = await self._answer({**body, "session_id": self._id})
        kept: Sequence[Mapping[str, Any]] = (await self._get(f"/session/{self._id}/messages"))["messages"]
        waiting = (await self._get(f"/approvals?session_id={self._id}"))["approvals"]
        turn = last_turn(kept)
        calls, results = calls_and_results(turn)
        if answer is None:
            texts = [message.get("content") for message in turn if message["role"] == "assistant"]
            answer = "\n\n".join(filter(None, texts))
        waits = [item["tool"] for item in waiting]
        return Outcome(answer, list(calls.values()), results, waits, codes_shown(answer) if waits else (), failed)

    async def _answer(self, body: dict[str, Any]) -> tuple[str | None, bool]:
        """The text, None where the reply has none, and whether the run failed."""
        raise NotImplementedError

    async def _get(self, path: str) -> Any:
        return json.loads((await self._call("GET", path))[1])

    async def _call(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        async with self._session.request(method, f"{self._url}{path}", **options) as response:
            return response.status, await response.text()


class CompletionsDoor(HttpDoor):
    """`/v1/chat/completions`."""

    async def _answer(self, body: dict[str, Any]) -> tuple[str | None, bool]:
        status, text = await self._call("POST", "/v1/chat/completions", json=body)
        return (json.loads(text)["choices"][0]["message"]["content"], False) if status == 200 else (None, True)


class StreamingDoor(HttpDoor):
    """`/v1/chat/completions` with `stream`."""

    async def _answer(self, body: dict[str, Any]) -> tuple[str | None, bool]:
        status, text = await self._call("POST", "/v1/chat/completions", json={**body, "stream": True})
        if status != 200:  # it failed before a word was written
            return None, True
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        chunks = [json.loads(line) for line in lines if line != "[DONE]"]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas), any("error" in chunk for chunk in chunks)


class ChatDoor(HttpDoor):
    """`/chat`."""

    async def _answer(self, body: dict[str, Any]) -> tuple[str | None, bool]:
        status, text = await self._call("POST", "/chat", json=body)
        return (json.loads(text)["response"], False) if status == 200 else (None, True)
