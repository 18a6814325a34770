"""Reads answers as DIAL Chat does: merges chunks by index, keeps content and state, sends back nothing else."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import quote

import aiohttp


@dataclass
class ReadStage:
    name: str = ""
    content: str = ""
    status: str | None = None
    parent: int | None = None
    attachments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass
class Answer:
    """What a person sees of one answer, and what the chat keeps of it."""

    status: int = 200
    id: str = ""
    content: str = ""
    stages: dict[int, ReadStage] = field(default_factory=dict[int, ReadStage])
    attachments: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    state: dict[str, Any] | None = None
    form_schema: dict[str, Any] | None = None
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    done: bool = False
    content_times: list[float] = field(default_factory=list[float])  # seconds after the request was sent
    comments: int = 0

    def read(self, payload: dict[str, Any], seconds: float) -> None:
        if "error" in payload:
            self.error = payload["error"]
            return
        self.id = self.id or payload.get("id", "")
        self.usage = payload.get("usage") or self.usage
        for choice in payload["choices"][:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self._delta(choice["delta"], seconds)

    def _delta(self, delta: dict[str, Any], seconds: float) -> None:
        assert "tool_calls" not in delta, "no DIAL client runs our tools"
        if delta.get("content"):
            self.content += delta["content"]
            self.content_times.append(seconds)
        custom = delta.get("custom_content") or {}
        self.state = custom.get("state") or self.state
        self.form_schema = custom.get("form_schema") or self.form_schema
        for item in custom.get("attachments") or ():
            self.attachments[item.pop("index")] = item
        for item in custom.get("stages") or ():
            self._stage(item)

    def _stage(self, item: dict[str, Any]) -> None:
        stage = self.stages.setdefault(item["index"], ReadStage(parent=item.get("parent_stage_index")))
        stage.name += item.get("name") or ""
        stage.content += item.get("content") or ""
        stage.status = item.get("status") or stage.status
        stage.attachments += item.get("attachments") or ()

    def as_message(self) -> dict[str, Any]:
        """The assistant message as the chat sends it back in the next turn: content and state only."""
        custom = {"custom_content": {"state": self.state}} if self.state else {}
        return {"role": "assistant", "content": self.content, **custom}


class ChatReader:
    """One person's chat with one deployment. `messages` is what the chat keeps."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, api_key: str, deployment: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.configuration: dict[str, Any] | None = None
        self.conversation_id = "conversations/bucket/chat"
        self.headers: dict[str, str] = {}
        self._session, self._url, self._deployment = session, base_url, deployment
        self._key = {"Api-Key": api_key}

    async def upload(self, name: str, content: bytes, content_type: str, *, by_program: bool = False) -> dict[str, Any]:
        """Put a file into the user's bucket and give the attachment that the chat would send.

        The chat takes files of the types that the application's listing declares only, a program others too.
        """
        if not by_program:
            declared = await self._declared_types()
            assert content_type.lower() in declared, f"the chat does not offer {content_type}: {declared}"
        async with self._session.get(f"{self._url}/v1/bucket", headers=self._key) as response:
            bucket = (await response.json())["bucket"]
        form = aiohttp.FormData()
        form.add_field("attachment", content, filename=name, content_type=content_type)
        place = f"{self._url}/v1/files/{bucket}/{quote(name)}"
        async with self._session.put(place, headers=self._key, data=form) as response:
            assert response.status == 200, await response.text()
            return {"type": content_type, "title": name, "url": (await response.json())["url"]}

    async def _declared_types(self) -> list[str]:
        place = f"{self._url}/openai/applications/{self._deployment}"
        async with self._session.get(place, headers=self._key) as response:
            assert response.status == 200, await response.text()
            return (await response.json())["input_attachment_types"]

    async def get(self, url: str) -> tuple[int, bytes]:
        async with self._session.get(f"{self._url}/v1/{url}", headers=self._key) as response:
            return response.status, await response.read()

    async def delete(self, url: str) -> None:
        async with self._session.delete(f"{self._url}/v1/{url}", headers=self._key) as response:
            assert response.status == 200, await response.text()

    async def ask(self, text: str, *attachments: dict[str, Any], stream: bool = True, form_value: Any = None) -> Answer:
        """Send the next message of the user and read the answer to its end."""
        return [answer async for answer in self.watch(text, *attachments, stream=stream, form_value=form_value)][-1]

    async def press(self, button: str, answer: Answer, **fields: Any) -> Answer:
        """Press a button of the answer's form, by its title, with further fields of the form filled in."""
        properties = (answer.form_schema or {})["properties"]
        [(field_name, option)] = [
            (name, option)
            for name, shape in properties.items()
            for option in shape.get("oneOf", ())
            if option["title"] == button
        ]
        options = option["dial:widgetOptions"]
        assert options["submit"], "only such a button sends at once"
        return await self.ask(options["populateText"], form_value={**fields, field_name: option["const"]})

    async def again(self) -> Answer:
        """Regenerate the last answer, as the chat's button does: the same messages, without that answer."""
        self.messages.pop()
        return [answer async for answer in self._watch(stream=True)][-1]

    async def watch(
        self, text: str, *attachments: dict[str, Any], stream: bool = True, form_value: Any = None
    ) -> AsyncGenerator[Answer]:
        """The same, giving the answer as far as it has come after every event; closing it closes the connection."""
        custom: dict[str, Any] = {"attachments": list(attachments)} if attachments else {}
        if form_value is not None:
            custom["form_value"] = form_value
        message: dict[str, Any] = {"role": "user", "content": text}
        self.messages.append({**message, "custom_content": custom} if custom else message)
        async with aclosing(self._watch(stream)) as answers:
            async for answer in answers:
                yield answer

    async def _watch(self, stream: bool) -> AsyncGenerator[Answer]:
        answer = Answer()
        async with asyncio.timeout(30), self._post(stream) as response:
            started = perf_counter()
            answer.status = response.status
            if not stream or response.content_type != "text/event-stream":
                _read_block(answer, await response.read())
            else:
                async for line in response.content:
                    if read_line(answer, line, perf_counter() - started):
                        yield answer
        yield answer
        if answer.error is None:
            self.messages.append(answer.as_message())

    def _post(self, stream: bool) -> Any:
        body: dict[str, Any] = {"messages": self.messages, "stream": stream, "model": self._deployment}
        if self.configuration:
            body["custom_fields"] = {"configuration": self.configuration}
        headers = {**self._key, "X-CONVERSATION-ID": quote(self.conversation_id, safe=""), **self.headers}
        path = f"/openai/deployments/{self._deployment}/chat/completions?api-version=2024-02-01"
        return self._session.post(self._url + path, json=body, headers=headers)


def read_line(answer: Answer, line: bytes, seconds: float) -> bool:
    """Take one line of the stream; True when the answer has grown."""
    if line.startswith(b":"):
        answer.comments += 1
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    assert not answer.done, "nothing may follow [DONE]"
    if data == b"[DONE]":
        answer.done = True
        return False
    answer.read(json.loads(data), seconds)
    return True


def _read_block(answer: Answer, body: bytes) -> None:
    try:
        payload = json.loads(body)
    except json.JSONDecodeError:
        answer.error = {"message": body.decode(errors="replace")}
        return
    if "error" in payload:
        answer.error = payload["error"]
        return
    message = payload["choices"][0]["message"]
    custom = message.get("custom_content") or {}
    answer.id, answer.usage = payload["id"], payload.get("usage")
    answer.finish_reason = payload["choices"][0]["finish_reason"]
    answer.content, answer.state = message.get("content") or "", custom.get("state")
    answer.form_schema = custom.get("form_schema")
    for index, stage in enumerate(custom.get("stages") or ()):
        known = {key: stage.get(key) for key in ("name", "content", "status")}
        answer.stages[index] = ReadStage(known["name"] or "", known["content"] or "", known["status"])
    answer.attachments = dict(enumerate(custom.get("attachments") or ()))


@asynccontextmanager
async def chat_reader(base_url: str, api_key: str) -> AsyncGenerator[ChatReader]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:
        yield ChatReader(session, base_url, api_key, "general-purpose-agent")
