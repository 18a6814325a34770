"""One backend's row of the matrix: its peer, DIAL Core, the product, and conversations through its doors."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web

from tests.contract.matrix.backends import MODEL, Backend, Peer
from tests.contract.matrix.cells import RENAMING
from tests.contract.matrix.coding import CodingDoor, coding_product
from tests.contract.matrix.doors import ChatDoor, CompletionsDoor, DialDoor, Door, StreamingDoor
from tests.contract.matrix.editor import EditorDoor
from tests.contract.matrix.projection import continues, documented_names, expected, projected, stored
from tests.contract.matrix.terminal import ConsoleDoor, console_process
from tests.support.acp_editor import editor
from tests.support.agent import agent_process
from tests.support.balancer import balancer
from tests.support.callees import callee, entry, stage
from tests.support.chat_reader import ChatReader
from tests.support.core import API_KEY, RunningCore, local_core
from tests.support.core_more import Chat, chat_channel
from tests.support.core_peers import calling, make_application
from tests.support.mcp_wire import listed, raw_server
from tests.support.ports import free_port
from tests.support.product import DEPLOYMENT, TYPE, core_config
from tests.support.scripts import Conversation, Made
from tests.support.upstream import Received

FOLDER = Path(__file__).parent
REPLICAS = 2  # of a balanced row
STEPS = 4  # of one run, through every door
SEARCH = "duckduckgo_web_search"
ORACLE = "oracle"
OFFERED = (
    "file_content_extraction_tool", "rag_search_tool", "calculator", "read_file_lines", "search_in_file", "write_note",
    "long_report", SEARCH, "refused_report", "broken_report",
    ORACLE,
)  # fmt: skip
TOOLS = ("notes.py", "reports.py")


@dataclass
class Row:
    """What is started is shared by the conversations, and ends with the row."""

    backend: Backend
    folder: Path
    session: aiohttp.ClientSession
    stack: AsyncExitStack
    peer: Peer
    core: RunningCore
    port: int
    signed_in: asyncio.Event  # to the toolset of the row
    _started: dict[str, Any] = field(default_factory=dict[str, Any])

    async def talk(self, conversation: Conversation, door: str) -> list[dict[str, Any]]:
        """Each turn's projection."""
        await self.backend.reset(self.peer)
        places, turns = dict[str, str](), list[dict[str, Any]]()
        made, seen, sent = conversation.application, 0, list[Received]()
        person = await (OPENED[door](self) if made is None else self.application(made))
        for turn in conversation.turns:
            for item in turn.attachments:
                content = (FOLDER / item["file"]).read_bytes()
                places[item["title"].replace(".", "_")] = await person.attach(item["title"], content, item["type"])
            await self.peer.script(*(data.reply(places) for data in turn.model))
            text = turn.user
            for name, place in places.items():
                text = text.replace(name, place)
            outcome = await person.say(text)
            requests = (await self.backend.requests(self.peer))[seen:]
            seen += len(requests)
            sent += requests
            places |= stored(requests)
            turns.append(projected(outcome, requests, places))
            places |= {f"CODE_{number}": code for number, code in enumerate(outcome.codes, 1)}
        assert all(continues(later, earlier) for earlier, later in pairwise(sent))
        return turns

    @property
    def variables(self) -> dict[str, str]:
        """The settings of every process of the product."""
        return {
            "AGENT_BACKEND": self.backend.name, "DEPLOYMENT_NAME": MODEL, "DIAL_ENDPOINT": self.core.url,
            "DIAL_API_KEY": API_KEY, "AGENT_TOOL_PATHS": ",".join(str(FOLDER / name) for name in TOOLS),
            "AGENT_LIMITS__STEPS": str(STEPS), "AGENT_HTTP__STEPS": str(STEPS), "AGENT_LLM__ATTEMPTS": "1",
            "AGENT_HTTP__REQUESTS_PER_MINUTE": "100000", "EMBEDDING_MODEL": "/no/embedding",
            "AGENT_DEPLOYMENTS__TOOLS": ORACLE,
            **self.backend.settings(self.peer),
        }  # fmt: skip

    async def dial_door(self) -> Door:
        await self.agent()
        return DialDoor(self.reader())

    async def application(self, made: Made) -> Door:
        """An application that the user has made of the agent, with Chat's channel where it is to sign in."""
        await self.agent()
        async with calling(self.core) as session:
            name = await make_application(session, f"made-{uuid4().hex}", made.properties, type=TYPE)
        reader = ChatReader(self.session, self.core.url, "key-one", name)
        self.signed_in.clear()
        if made.signs_in:
            reader.headers |= (await self._once("channel", self._channel)).headers
        return DialDoor(reader)

    def _channel(self) -> AbstractAsyncContextManager[Chat]:
        async def sign_in(_: Mapping[str, Any]) -> str:
            self.signed_in.set()
            return "success"

        return chat_channel(self.core.url, "key-one", sign_in)

    async def http_door(self, door: Callable[[aiohttp.ClientSession, str], Door]) -> Door:
        return door(self.session, await self.agent())

    async def coding_door(self) -> Door:
        opened = await self._once("coding", lambda: coding_product(self.folder / "coding", self.variables))
        services, profile = opened
        return CodingDoor(services, profile, self.reader())

    async def console(self) -> Door:
        process = await self._once("console", lambda: console_process(self.folder / "console", self.variables))
        return ConsoleDoor(process, self.core, self.session)

    async def editor(self) -> Door:
        return EditorDoor(
            await self._once("editor", lambda: editor(self.folder / "editor", files=True, **self.variables))
        )

    def reader(self) -> ChatReader:
        return ChatReader(self.session, self.core.url, "key-one", DEPLOYMENT)

    async def agent(self) -> str:
        """The address of the product, served by a process of its own."""
        await self._once("agent", lambda: self.product(self.folder / "agent"))
        return f"http://127.0.0.1:{self.port}"

    def product(self, home: Path) -> AbstractAsyncContextManager[Any]:
        """What answers at the row's port."""
        return agent_process(home, self.port, self.variables)

    async def _once(self, name: str, opened: Callable[[], Any]) -> Any:
        if name not in self._started:
            self._started[name] = await self.stack.enter_async_context(opened())
        return self._started[name]


@dataclass
class BalancedRow(Row):
    """The product is two agents that share a PostgreSQL, behind HAProxy: a conversation changes between them."""

    _: KW_ONLY
    store_url: str

    @asynccontextmanager
    async def product(self, home: Path) -> AsyncGenerator[None]:
        home.mkdir()
        shared = {"AGENT_STORE__URL": self.store_url, "AGENT_STATE_SECRET": "the replicas agree on it"}
        ports = [free_port() for _ in range(REPLICAS)]
        async with AsyncExitStack() as stack:
            agents = (agent_process(home / str(port), port, {**self.variables, **shared}) for port in ports)
            await asyncio.gather(*map(stack.enter_async_context, agents))
            urls = (f"http://127.0.0.1:{port}" for port in ports)
            await stack.enter_async_context(balancer(home, self.port, *urls))
            yield


OPENED: Mapping[str, Callable[[Row], Awaitable[Door]]] = {
    "DIAL": Row.dial_door,
    "/v1": lambda row: row.http_door(CompletionsDoor),
    "/v1 streaming": lambda row: row.http_door(StreamingDoor),
    "/chat": lambda row: row.http_door(ChatDoor),
    "console": Row.console,
    "coding": Row.coding_door,
    "editor": Row.editor,
}


def expectation(conversation: Conversation, backend: Backend, door: str) -> list[dict[str, Any]]:
    """What the conversation gives in this cell."""
    turns = expected(conversation, OFFERED, sees=backend.sees, streams=backend.streams)
    if door in RENAMING:
        turns = [documented_names(turn) for turn in turns]
    stages = [{"stages": turn.stages} if door == "DIAL" else {} for turn in conversation.turns]
    return [{**turn, **shown} for turn, shown in zip(turns, stages, strict=True)]


@asynccontextmanager
async def opened_row(backend: Backend, folder: Path, store_url: str = "") -> AsyncGenerator[Row]:
    """The row, its processes started as conversations need them; with `store_url` its product is balanced replicas."""
    port, opened = free_port(), partial(BalancedRow, store_url=store_url) if store_url else Row
    signed_in, deltas = asyncio.Event(), [stage(0, name="Look", status="completed"), {"content": "It will."}]

    def behind_sign_in(result: Mapping[str, Any]) -> Callable[[Any], Mapping[str, Any]]:
        def answer(_: Any) -> Mapping[str, Any]:
            if not signed_in.is_set():
                raise web.HTTPUnauthorized
            return result

        return answer

    tickets = {"tools/list": listed("find"), "tools/call": {"content": [{"type": "text", "text": "Two are open."}]}}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session,
        backend.peer() as peer,
        callee(deltas) as oracle,
        raw_server({method: behind_sign_in(result) for method, result in tickets.items()}) as url,
        local_core(
            core_config(port, peer.url, sees=backend.sees, applications={ORACLE: entry(oracle)})
            | {"toolsets": {"tickets": {"endpoint": url}}},
            folder,
        ) as core,
        AsyncExitStack() as stack,
    ):
        yield opened(backend, folder, session, stack, peer, core, port, signed_in)
