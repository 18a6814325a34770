"""Several real interpreter servers behind the real nginx, and conversations of a person with the agent's own tool."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from mcp_servers.callers import AGENT
from mcp_servers.python_interpreter.meta import handle_of
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.core_client.files import DialFiles
from task.tools.mcp.connection import CONVERSATION, PRINCIPAL, conversation_meta
from task.tools.models import Caller, ToolCallParams
from task.tools.py_interpreter.execution import remembered
from task.tools.py_interpreter.interpreter_server import Way
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from tests.support.balancer import balancer
from tests.support.choices import RecordedStage, RecordingChoice
from tests.support.core import local_core
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.ports import free_port

KEY = "key-one"


@dataclass
class Fleet:
    """The servers by the address of the balancer, which is all that the `tool` knows."""

    folder: Path
    url: str
    options: tuple[str, ...]
    servers: list[RunningInterpreter]
    tool: PythonCodeInterpreterTool
    stack: AsyncExitStack

    def talk(self, person: str = "somebody") -> Conversation:
        return Conversation(self, uuid4().hex, person)

    async def start(self, number: int) -> None:
        """The server with this number, at its old address, with what it remembers."""
        port = self.servers[number].port
        again = running_interpreter(self.folder / f"s{number}", *self.options, port=port)
        self.servers[number] = await asyncio.to_thread(self.stack.enter_context, again)

    def signal(self, number: int, which: signal.Signals) -> None:
        self.servers[number].process.send_signal(which)

    async def ended(self, number: int, seconds: float = 40) -> None:
        await asyncio.to_thread(self.servers[number].process.wait, seconds)


@dataclass
class Conversation:
    """One person's conversation; its tool messages are what an agent would have in its state."""

    fleet: Fleet
    name: str
    person: str
    messages: list[Message] = field(default_factory=list[Message])
    stage: RecordedStage = field(default_factory=lambda: RecordedStage(""))  # of the latest call

    async def run(self, code: str) -> Message:
        """The tool message of a call with the code."""
        return await self.begin(code)

    def begin(self, code: str) -> asyncio.Task[Message]:
        """The same in the background, with a stage of its own at once."""
        self.stage = RecordedStage("execute_code", opened=True, choice=RecordingChoice())
        return asyncio.create_task(self._called(code, self.stage))

    async def _called(self, code: str, stage: RecordedStage) -> Message:
        call = ToolCall(uuid4().hex, FunctionCall("execute_code"))
        params = ToolCallParams(
            call, stage, RecordingChoice(), KEY, self.name, {"code": code}, Caller(KEY, self._principal, self.name),
            earlier=tuple(self.messages),
        )  # fmt: skip
        message = await self.fleet.tool.execute(params)
        self.messages.append(message)
        return message

    async def output(self, code: str) -> str:
        """The text of a call that succeeds."""
        message = await self.run(code)
        assert not message.failed, message.text()
        return message.text()

    async def place(self, name: str, origin: str = "") -> None:
        """Put an empty file of this name into the working directory, at this server or through the balancer."""
        session = conversation_meta(self.name, self.person)
        handle = handle_of(TOKEN, AGENT, session[PRINCIPAL], session[CONVERSATION])
        headers = {"Authorization": f"Bearer {TOKEN}", **Way(session).headers}
        async with httpx.AsyncClient(trust_env=False, headers=headers) as http:
            address = origin or self.fleet.url.removesuffix("/mcp")
            (await http.put(f"{address}/sessions/{handle}/inputs/{name}", content=b"")).raise_for_status()

    async def started(self, call: asyncio.Task[Any]) -> None:
        """Return once the stage of the call says that its code runs."""
        while "*running for" not in self.stage.content:
            assert not call.done(), call.result()
            await asyncio.sleep(0.02)

    @property
    def server(self) -> str:
        """The name of the server that has the conversation's session."""
        return remembered(self.messages, "execute_code").server

    def branch(self) -> Conversation:
        """The same conversation as it is now, to be continued apart."""
        return replace(self, messages=list(self.messages))

    async def _principal(self) -> str:
        return self.person


@asynccontextmanager
async def interpreter_fleet(
    folder: Path, count: int, *options: str, changes: dict[str, str] | None = None
) -> AsyncGenerator[Fleet]:
    """So many servers with these options behind nginx with compose/interpreters.conf."""
    port = free_port()
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(running_interpreter(folder / f"s{number}", *options)) for number in range(count)]
        addresses = [server.origin for server in servers]
        await stack.enter_async_context(balancer(folder, port, *addresses, file="interpreters.conf", changes=changes))
        core = await stack.enter_async_context(
            local_core({"keys": {KEY: {"project": "ONE", "role": "default"}}}, folder)
        )
        files = DialFiles(core.url)
        url = f"http://127.0.0.1:{port}/mcp"
        tool = PythonCodeInterpreterTool(core.url, url, token=TOKEN, files=files)
        stack.push_async_callback(tool.close)
        yield Fleet(folder, url, options, servers, tool, stack)
