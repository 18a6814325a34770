"""A chat in the test's own process with a tool that writes, which somebody has to approve, and one that reads."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from task.llm.scripted import Reply, ScriptedModel
from task.permissions.decisions import Effect
from task.permissions.taint import Origin
from tests.support.in_process import Agents, Chat, agents
from tests.support.tools import MadeTool, answering

WRITES = frozenset({Effect.WRITE})
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


@dataclass
class Scene:
    """A chat whose model plays a script; `written` is what the tool that writes was called with."""

    model: ScriptedModel
    agents: Agents
    chat: Chat
    written: list[str]

    def sent_texts(self, number: int = -1) -> list[str]:
        """What the model read in a request, without the system prompt."""
        return [message.text() for message in self.model.requests[number][1:]]


@asynccontextmanager
async def scene(*replies: Reply, **options: Any) -> AsyncGenerator[Scene]:
    written: list[str] = []

    async def write(text: str = "") -> str:
        written.append(text)
        return f"wrote {text}"

    model = ScriptedModel(*replies)
    tools = (
        MadeTool("write", write, TEXT, WRITES, origin=Origin.OWN),
        answering("look", "seen", tool_effects=frozenset({Effect.READ})),
    )
    async with agents(model, *tools, **options) as running:
        yield Scene(model, running, Chat(running), written)
