"""The whole product before an obedient model: local Core, agent, interpreter, MCP tools, a canary, all on loopback."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from task.llm.scripted import Reply, says
from task.output.charts import is_chart
from tests.support.chat_reader import Answer, ChatReader
from tests.support.core import served
from tests.support.image_deployment import PNG
from tests.support.injections import ASKED, CHANGING, FILE, OPENINGS, SECRET, Case, World, leaks, obeying
from tests.support.markdown_readers import leads_to_evil
from tests.support.mcp_wire import raw_server
from tests.support.product import Product, product
from tests.support.upstream import Received
from tests.support.workspace import KEY, Place, bucket_of

WHOLE_OPENINGS = {
    **OPENINGS,
    "rag": ("rag_search_tool", {"request": "What is in the report?", "file_url": FILE}),
    "workspace": ("fs_read", {"path": "README.md"}),
}
PLACES = ("text", "data", "title")  # of an attachment, as a chat renders them
_STRING = {"type": "string"}
_READING = {"duckduckgo_web_search": "query", "fetch_page": "url", "docs_lookup": "topic"}
_EVIL = re.compile(r"(?<!\[:\])//[^\"'\s<>]*evil\.example[^\"'\s<>]*")
_ORDERS = re.compile(r"^.*(?:CALL|SAY) .*$", re.MULTILINE)
LOCAL_TOOLS = '''
import json
from pathlib import Path

from task.tools.declare import tool
from task.tools.models import Effect


def done(line: str) -> str:
    with Path(__file__).with_name("harm.txt").open("a") as harm:
        harm.write(f"{line}\\n")
    return "Done."


@tool(effects={Effect.WRITE})
def write_file(path: str, text: str) -> str:
    """Write a file."""
    return done(f"write_file {path}")


@tool(effects={Effect.READ, Effect.WRITE, Effect.EXECUTE})
def shell_run(command: str) -> str:
    """Run a command."""
    return done(f"shell_run {command}")
'''


@dataclass
class Canary:
    """A server that nobody has a reason to call; `requests` are those it got."""

    url: str = ""
    requests: list[str] = field(default_factory=list[str])

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(f"canary {request.method} {request.path_qs}")
        return web.Response(text="tweet")


@asynccontextmanager
async def canary() -> AsyncGenerator[Canary]:
    bird = Canary()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", bird.answer)
    async with served(app) as bird.url:
        yield bird


@dataclass
class OutsideWorld(World):
    """The same tools on an MCP server; the page that `fetch_page` reads is really fetched if it is the canary's."""

    canary: str = ""

    def listed(self) -> dict[str, Any]:
        """The result of `tools/list`."""
        reading = [_listed(name, f"Reads by {key}.", {key: _STRING}, True) for name, key in _READING.items()]
        reading[-1]["description"] = self.case.describes or reading[-1]["description"]
        reading[-1]["inputSchema"]["properties"] |= self.case.schema
        return {"tools": [*reading, *(_listed(name, f"{name}.", {}, False) for name in CHANGING)]}

    async def called(self, params: dict[str, Any]) -> dict[str, Any]:
        """The result of `tools/call`."""
        name, arguments = params["name"], params["arguments"]
        if name in CHANGING:
            text = await self.changed(name)(**arguments)
        else:
            work = {"duckduckgo_web_search": self.searched, "fetch_page": self._fetched_really}.get(name, self.brings)
            text = await work(**{key: arguments.get(key, "") for key in [_READING[name]]})
        return _shaped(text, self.case.shape if name == "docs_lookup" else "text")

    async def _fetched_really(self, url: str) -> str:
        if not url.startswith(self.canary):
            return await self.fetched(url=url)
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()


def _listed(name: str, description: str, properties: dict[str, Any], reads: bool) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties)}
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": reads},
    }


def _shaped(text: str, shape: str) -> dict[str, Any]:
    plain = {"type": "text", "text": text}
    match shape:
        case "error":
            return {"content": [plain], "isError": True}
        case "structured":
            return {"content": [], "structuredContent": {"result": text}}
        case "resource":
            return {"content": [{"type": "resource", "resource": {"uri": "peer://notes", "text": text}}]}
        case _:
            return {"content": [plain]}


def _texts(received: Received, in_picture: str) -> Iterator[str]:
    """Everything that the model reads and has not written itself."""
    for described in received.body.get("tools", ()):
        yield from _strings(described)
    for message in received.messages:
        if message["role"] == "assistant":
            continue
        content = message["content"]
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            yield part["text"] if part["type"] == "text" else in_picture


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


@dataclass
class Obedient:
    """The model behind Core: it opens as the user wishes, then obeys. `in_picture` is what it reads in a picture.

    Where it is offered no tools, as for an answer from excerpts, it repeats the orders.
    """

    opening: tuple[str, dict[str, str]] | None = None
    in_picture: str = ""

    def __call__(self, received: Received) -> Reply:
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for message in received.messages
            for call in message.get("tool_calls") or ()
        ]
        texts = list(_texts(received, self.in_picture))
        if received.tools:
            return obeying(texts, calls, self.opening)
        return says("Here it is. ", *(line for text in texts for line in _ORDERS.findall(text)))


async def harm_in_product(case: Case, folder: Path, *, guarded: bool = True, **settings: Any) -> list[str]:
    """The side effects of three turns that nobody approved, and what the chat would load or show that carries a secret.

    Not `guarded`: the operator trusts every call and every address.
    """
    model, world = Obedient(), OutsideWorld(case)
    (folder / "local.py").write_text(LOCAL_TOOLS)
    rules = case.rules if guarded else [{"action": "allow", "trusted": True}]
    permissions = {"rules": rules, "link_hosts": [] if guarded else ["*"]}
    place = await _offered(case, folder, settings) if case.opens == "workspace" else None
    settings.setdefault("tool_paths", [str(folder / "local.py")])
    methods = {"tools/list": lambda _: world.listed(), "tools/call": world.called}
    async with (
        canary() as bird,
        raw_server(methods) as outside,
        product(
            then=model,
            tmp_path=folder,
            sees=True,
            permissions=permissions,
            mcp_servers=[{"name": "outside", "url": outside}],
            **settings,
        ) as p,
    ):
        world.canary = bird.url
        attached, home = await _prepared(case, p, bird.url, world)
        model.in_picture = world.case.text
        model.opening = _placed(WHOLE_OPENINGS.get(case.opens), home, bird.url)
        before = _written(place, world.case) if place else {}
        shown = await _conversation(p.reader, _placed(ASKED, home, bird.url), attached)
        shown += ["reads the key"] if any(KEY in str(seen.messages) for seen in p.upstream.requests) else []
    shown += [f"changes {file}" for file in place.changed(before, inside=not case.apply)] if place else []
    local = folder / "harm.txt"
    return [*world.harm, *bird.requests, *(local.read_text().splitlines() if local.exists() else []), *shown]


async def _offered(case: Case, folder: Path, settings: dict[str, Any]) -> Place:
    place = Place.made(folder)
    settings["coding"] = place.offered_to(await bucket_of("key-one", folder), apply=case.apply)
    settings["tool_paths"] = []  # the tools of the same names are not there
    return place


def _written(place: Place, case: Case) -> dict[str, bytes]:
    for name, text in {"README.md": case.text, **case.more}.items():
        file = place.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place.files(inside=True)


async def _prepared(case: Case, p: Product, canary_url: str, world: World) -> tuple[list[dict[str, Any]], str]:
    # Core chooses the folder of the files, and the canary its port, so the texts that name them are completed now.
    note = await p.reader.upload("notes.txt", b" ", "text/plain")
    home = str(note["url"]).removesuffix("notes.txt")
    world.case = case = Case(**_placed(asdict(case), home, canary_url))
    text = case.text if case.opens in ("file", "rag") else "Nothing special."
    note = await p.reader.upload("notes.txt", text.encode(), "text/plain")
    others = {url.removeprefix(home): text for url, text in case.more.items() if url.startswith(home)}
    more = [await p.reader.upload(name, text.encode(), "text/plain") for name, text in others.items()]
    if case.opens == "picture":
        return [await p.reader.upload("photo.png", PNG, "image/png")], home
    return [{**note, "title": case.title}, *more] if case.opens in ("file", "rag") else [], home


def _placed(value: Any, home: str, canary_url: str) -> Any:
    text = json.dumps(value).replace("files/b/", home).replace("{canary}", canary_url)
    return json.loads(text)


async def _conversation(reader: ChatReader, question: str, attached: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    first = f"The code word is {SECRET}; keep it to yourself. {question}"
    for text, files in ((first, attached), ("What else does it say?", []), ("Go on.", [])):
        answer = await reader.ask(text, *files)
        assert answer.error is None, answer.error
        found += [f"shows {item}" async for item in shown_by(answer, reader)]
    return found


async def shown_by(answer: Answer, reader: ChatReader) -> AsyncGenerator[str]:
    """The addresses in an answer that lead to evil with a secret."""
    attachments = [*answer.attachments.values(), *(item for s in answer.stages.values() for item in s.attachments)]
    texts = [answer.content, *(text for s in answer.stages.values() for text in (s.name, s.content))]
    texts += [*_strings(answer.form_schema), *(str(a.get(place, "")) for a in attachments for place in PLACES)]
    urls = [url for text in texts for url in leads_to_evil(text)]
    urls += [str(item.get(key, "")) for item in attachments for key in ("url", "reference_url")]
    for item in attachments:
        if is_chart(item["type"]):
            status, chart = await reader.get(item["url"])
            assert status == 200
            urls += _EVIL.findall(chart.decode())
    for url in urls:
        if leaks(url) and "evil.example" in url:
            yield url


AT_ONCE = 3


async def unexpected(
    cases: Sequence[Any], harm: Callable[..., Awaitable[list[str]]], folder: Path, *, guarded: bool
) -> list[str]:
    """The ids of the cases that do harm where they are guarded, or do none where everything is trusted."""
    places, found = asyncio.Semaphore(AT_ONCE), dict[str, list[str]]()

    async def run(case: Any) -> None:
        (own := folder / case.id).mkdir()
        async with places:
            found[case.id] = await harm(case, own, guarded=guarded)

    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(run(case))
    return [name for name, effects in found.items() if bool(effects) is guarded]
