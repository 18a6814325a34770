"""What the HTTP front door needs of the agent it stands before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from task.connection import Connection
from task.store.access import StoreAccess
from task.tools.base import BaseTool


@dataclass(frozen=True, slots=True)
class Engine:
    """The agent's models, tools, words and memory.

    `connection`, `tools` and `prompt` are asked for each request; `model` is the name of the agent's own model, `steps`
    how many model requests with tools one run may make, `detach_seconds` how long a run goes on without a listener.
    `painter` is the deployment that makes pictures, which Core lists among the chat models.
    """

    connection: Callable[[], Connection]
    tools: Callable[[], Awaitable[list[BaseTool]]]
    prompt: Callable[[], Awaitable[str]]
    store: StoreAccess
    model: str
    steps: int = 10
    detach_seconds: float = 120
    heartbeat_seconds: float = 15
    painter: str = "off"
