"""Reads answers as DIAL Chat does: merges chunks by index, keeps content and state, sends back little else.

`ChatReader.version` says which Chat: 0.x, or 1.x, which shows other buttons, citations as pills, and has skills, a
client channel and the browser's time zone.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import aiohttp

from tests.support.core_more import Chat, chat_channel

Version = Literal["0.x", "1.x"]
TIMEZONE = "Europe/Vienna"


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
    annotations: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    state: dict[str, Any] | None = None
    form_schema: dict[str, Any] | None = None
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    done: bool = False
    content_times: list[float] = field(default_factory=list[float])  # seconds after the request was sent
    comments: int = 0

    def read(self, payload: dict[str, Any], seconds: float) -> None:
        if "error" in payload:
            self.error = payload["error"]
            return
        self.id = self.id or payload.get("id", "")
        self.usage = payload.get("usage") or self.usage
        self.statistics = payload.get("statistics") or self.statistics
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
        self.annotate(custom, delta.get("custom_fields"))
        for item in custom.get("stages") or ():
            self._stage(item)

    def _stage(self, item: dict[str, Any]) -> None:
        stage = self.stages.setdefault(item["index"], ReadStage(parent=item.get("parent_stage_index")))
        stage.name += item.get("name") or ""
        stage.content += item.get("content") or ""
        stage.status = item.get("status") or stage.status
        stage.attachments += item.get("attachments") or ()

    def annotate(self, *parts: Mapping[str, Any] | None) -> None:
        for item in (item for part in parts if part for item in part.get("annotations") or ()):
            self.annotations[item.get("index", len(self.annotations))] = item

    @property
    def text(self) -> str:
        """The content as users read it: Chat 0.x shows nothing for an empty tag."""
        return re.sub(r"<cit [^<>]*></cit>", "", self.content)

    def pills(self, attribute: str = "id") -> list[dict[str, Any]]:
        """The citations that Chat 1.x shows, in the order of the text: an annotation's `body` where an empty tag
        `<cit>` has its id in this attribute, `id` or `data-id`."""
        selectors = [(item["target"]["selector"], item["body"]) for item in self.annotations.values()]
        bodies = {at["id"]: body for at, body in selectors if (at["type"], at.get("tag")) == ("html_tag", "cit")}
        tags = re.findall(rf'<cit\b[^<>]*?\s{attribute}="([^"]*)"[^<>]*?(?:/>|></cit>)', self.content)
        return [bodies[tag] for tag in tags if tag in bodies]

    def as_message(self, version: Version = "0.x") -> dict[str, Any]:
        """The assistant message as the chat sends it back in the next turn: content, state, and from 1.x its form."""
        form = {"form_schema": self.form_schema} if self.form_schema and version == "1.x" else {}
        custom = {**({"state": self.state} if self.state else {}), **form}
        return {"role": "assistant", "content": self.content, **({"custom_content": custom} if custom else {})}


def buttons(schema: Mapping[str, Any] | None, version: Version) -> dict[str, tuple[str, dict[str, Any]]]:
    """What each button that the chat shows of a form sends, by its title: the text and `form_value`.

    Chat 0.x knows buttons with numbers only; Chat 1.x only those of properties named `button` or `starter`, and sends
    such a property's description, if it has one, in place of the button's own text.
    """
    shown = dict[str, tuple[str, dict[str, Any]]]()
    for name, shape in (schema or {}).get("properties", {}).items():
        if shape.get("dial:widget") != "buttons" or (version == "1.x" and name not in ("button", "starter")):
            continue
        for option in shape["oneOf"]:
            const, text = option["const"], option["dial:widgetOptions"]["populateText"] or ""
            assert version == "1.x" or type(const) in (int, float), "Chat 0.x does not show it"
            assert option["title"] not in shown, "two buttons look the same"
            described = shape.get("description") if version == "1.x" and option["dial:widgetOptions"]["submit"] else ""
            shown[option["title"]] = (described or text, {name: const})
    return shown


def pressed(button: str, schema: Mapping[str, Any] | None, version: Version) -> tuple[str, dict[str, Any]]:
    """What the one button sends whose title begins so: the text and `form_value`."""
    [sends] = [sends for title, sends in buttons(schema, version).items() if title.startswith(button)]
    return sends


class ChatReader:
    """One person's chat with one deployment. `messages` is what the chat keeps."""

    version: ClassVar[Version] = "0.x"
    seconds: float = 30  # for one answer

    def __init__(self, session: aiohttp.ClientSession, base_url: str, api_key: str, deployment: str) -> None:
        self.messages: list[dict[str, Any]] = []
        self.configuration: dict[str, Any] | None = None
        self.conversation_id = "conversations/bucket/chat"
        self.headers: dict[str, str] = {"X-Timezone": TIMEZONE} if self.version == "1.x" else {}
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

    async def ask(self, text: str, *attachments: dict[str, Any], **options: Any) -> Answer:
        """Send the next message of the user and read the answer to its end; `options` as in `watch`."""
        return [answer async for answer in self.watch(text, *attachments, **options)][-1]

    async def press(self, button: str, answer: Answer, **fields: Any) -> Answer:
        """Press the one button of the answer's form whose title begins so, with further fields of it filled in."""
        text, value = pressed(button, answer.form_schema, self.version)
        return await self.ask(text, form_value={**fields, **value})

    async def start(self, button: str) -> Answer:
        """Press a conversation starter, by its title."""
        place = f"{self._url}/v1/deployments/{self._deployment}/configuration"
        async with self._session.get(place, headers=self._key) as response:
            text, value = pressed(button, await response.json(), self.version)
        if self.version == "1.x":
            return await self.ask(text, form_value=value)
        self.configuration = {**(self.configuration or {}), **value}
        return await self.ask(text)

    @asynccontextmanager
    async def channel(self, answer: Callable[[Any], Awaitable[str | None]]) -> AsyncGenerator[Chat]:
        """Chat 1.x's client channel, whose id goes with each completion; `answer` as in `chat_channel`."""
        async with chat_channel(self._url, self._key["Api-Key"], answer) as chat:
            self.headers |= chat.headers
            yield chat
            self.headers = {name: value for name, value in self.headers.items() if name not in chat.headers}

    async def again(self) -> Answer:
        """Regenerate the last answer, as the chat's button does: the same messages, without that answer."""
        self.messages.pop()
        return [answer async for answer in self._watch(stream=True)][-1]

    async def watch(
        self,
        text: str,
        *attachments: dict[str, Any],
        stream: bool = True,
        form_value: Any = None,
        skills: Sequence[str] = (),
    ) -> AsyncGenerator[Answer]:
        """Send the next message, giving the answer as far as it has come after every event; closing it closes the
        connection. `skills` are the URLs of those that the user has picked."""
        custom: dict[str, Any] = {"attachments": list(attachments)} if attachments else {}
        if skills:
            assert self.version == "1.x", "Chat 0.x knows no skills"
            custom["skills"] = [{"url": url} for url in skills]
        if form_value is not None:
            custom["form_value"] = form_value
        message: dict[str, Any] = {"role": "user", "content": text}
        self.messages.append({**message, "custom_content": custom} if custom else message)
        async with aclosing(self._watch(stream)) as answers:
            async for answer in answers:
                yield answer

    async def _watch(self, stream: bool) -> AsyncGenerator[Answer]:
        answer = Answer()
        async with asyncio.timeout(self.seconds), self._post(stream) as response:
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
            self.messages.append(answer.as_message(self.version))

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
    answer.id, answer.usage, answer.statistics = payload["id"], payload.get("usage"), payload.get("statistics")
    answer.finish_reason = payload["choices"][0]["finish_reason"]
    answer.content, answer.state = message.get("content") or "", custom.get("state")
    answer.form_schema = custom.get("form_schema")
    for index, stage in enumerate(custom.get("stages") or ()):
        known = {key: stage.get(key) for key in ("name", "content", "status")}
        answer.stages[index] = ReadStage(known["name"] or "", known["content"] or "", known["status"])
    answer.attachments = dict(enumerate(custom.get("attachments") or ()))
    answer.annotate(custom, message.get("custom_fields"))


@asynccontextmanager
async def chat_reader(base_url: str, api_key: str) -> AsyncGenerator[ChatReader]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(180)) as session:
        yield ChatReader(session, base_url, api_key, "general-purpose-agent")
