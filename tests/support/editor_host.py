"""DIAL Chat's side of the editor: a page of another origin with its frame, and a Core that keeps an application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from playwright.async_api import FrameLocator, Page, expect

from tests.support.browser import WIDE, Visit, visit
from tests.support.core import served
from tests.support.http_api import http_api

KEY, NAME = "key-of-anna", "General Purpose Agent"
APPLICATION = "applications/b/My agent__1.0.0"
# What Chat 1.2 does: it believes only its frame at the editor's origin, and says nothing to others.
CHAT = """<!doctype html><title>Chat</title><style>body{margin:0}iframe{width:100%;height:100vh;border:0}</style>
<iframe title="Editor"></iframe><script>
const query = new URLSearchParams(location.search), frame = document.querySelector("iframe");
const editor = query.get("editor"), origin = new URL(editor).origin;
query.delete("editor");
window.got = []; window.strange = [];
addEventListener("message", (event) => (event.origin === origin && event.source === frame.contentWindow
    ? window.got : window.strange).push(event.data));
window.triggerSave = (general) => frame.contentWindow.postMessage({ type: "TRIGGER_SAVE", general }, origin);
frame.src = `${editor}?${query}`;
</script>"""


@dataclass
class Keeper:
    """A Core that keeps one application for the owner of `KEY`, with Core's rules for browsers."""

    properties: dict[str, Any] = field(default_factory=dict[str, Any])
    version: int = 1
    written: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refusal: str = ""
    key: str = KEY
    document: dict[str, Any] = field(
        default_factory=lambda: {"name": APPLICATION, "display_name": "My agent", "application_type_schema_id": "x:y"}
    )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "OPTIONS":
            return web.Response()
        if request.headers.get("Api-Key") != self.key and "Authorization" not in request.headers:
            return web.Response(status=401, text="Unknown api key")
        if request.path.startswith("/openai/"):
            names = {"models": ["gpt-4o", "o9"], "applications": ["research", "oracle"], "toolsets": ["jira"]}
            return web.json_response({"data": [{"id": one} for one in names[request.path.rsplit("/", 1)[-1]]]})
        if request.path != f"/v1/{APPLICATION}":
            return web.Response(status=404, text="Not found")
        if request.method == "PUT":
            if request.headers.get("If-Match") != f'"{self.version}"':
                return web.Response(status=412, text="ETag does not match")
            if self.refusal:
                return web.Response(status=400, text=self.refusal)
            self.version += 1
            self.document = await request.json()
            self.properties = self.document.pop("application_properties")
            self.written.append({**self.document, "application_properties": self.properties})
        document = {**self.document, "application_properties": self.properties}
        return web.json_response(document, headers={"ETag": f'"{self.version}"'})

    @staticmethod
    async def opened_to_all(request: web.Request, response: web.StreamResponse) -> None:
        for asked, name in (("Method", "Methods"), ("Headers", "Headers")):
            if wanted := request.headers.get(f"Access-Control-Request-{asked}"):
                response.headers[f"Access-Control-Allow-{name}"] = wanted
        response.headers.update({"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "etag"})


@dataclass
class Editing:
    """A user in front of Chat, with the editor in its frame."""

    visit: Visit
    keeper: Keeper
    url: str  # of the editor
    chat: str  # of the host, with the frame's query
    stranger: str  # of a page whose origin the operator has not named

    @property
    def page(self) -> Page:
        return self.visit.page

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("iframe")

    async def signs_in(self) -> None:
        await self.frame.get_by_label("Key or access token").fill(KEY)
        await self.frame.get_by_role("button", name="Use this key").click()
        await self.got(f"{NAME}/readyToSave")

    async def got(self, kind: str) -> dict[str, Any]:
        """The first message of that type that Chat got, which it then forgets with those before it."""
        at = "window.got.findIndex((one) => one.type === kind)"
        await self.page.wait_for_function(f"(kind) => {at} >= 0", arg=kind)
        return await self.page.evaluate(f"(kind) => window.got.splice(0, {at} + 1).at(-1)", kind)

    async def saves(self, general: dict[str, Any] | None = None) -> None:
        await self.page.evaluate("(general) => window.triggerSave(general)", general)


@asynccontextmanager
async def editing(
    tmp_path: Path, properties: dict[str, Any] | None = None, size: tuple[int, int] = WIDE, **query: str
) -> AsyncGenerator[Editing]:
    """Chat with the editor of an application with these properties; `query` replaces what Chat asks the editor for."""
    keeper, chat = Keeper(properties or {}), web.Application()

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=CHAT, content_type="text/html")

    chat.router.add_get("/", page)
    core = web.Application()
    core.router.add_route("*", "/{path:.*}", keeper.answer)
    core.on_response_prepare.append(keeper.opened_to_all)
    async with served(chat) as host, served(chat_twin(page)) as stranger, served(core) as core_url:
        http = {"editor_origins": [host], "editor_core": core_url}
        async with http_api(tmp_path=tmp_path, http=http) as api:
            given = {
                "authProvider": "keycloak", "id": APPLICATION, "theme": "light",
                "applicationCredentials": "true", "applicationName": NAME, **query,
            }  # fmt: skip
            asked = urlencode({"editor": f"{api.url}/editor", **{k: v for k, v in given.items() if v}})
            async with visit(f"{host}/?{asked}", size) as visited:
                e = Editing(visited, keeper, f"{api.url}/editor", f"{host}/?{asked}", f"{stranger}/?{asked}")
                await expect(e.frame.get_by_role("main")).to_be_visible()
                yield e
                assert visited.faults == []


def chat_twin(page: Any) -> web.Application:
    app = web.Application()
    app.router.add_get("/", page)
    return app
