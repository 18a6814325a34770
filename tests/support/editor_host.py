"""DIAL Chat's side of the editor: a page of another origin with its frame, before the product and its Core."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import ClientSession, web
from playwright.async_api import FrameLocator, Page, expect
from yarl import URL

from tests.support.browser import WIDE, Visit, visit
from tests.support.core import served
from tests.support.core_peers import calling, make_application
from tests.support.product import TYPE, product

KEY, NAME, APPLICATION = "key-one", "General Purpose Agent", "My%20agent__1.0.0"
OTHERS: dict[str, Any] = {
    "applications": {"research": {"endpoint": "http://127.0.0.1:9/chat/completions"}},
    "toolsets": {"jira": {"endpoint": "http://127.0.0.1:9/mcp"}},
}
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
class Editing:
    """A user in front of Chat, with the editor in its frame."""

    visit: Visit
    user: ClientSession  # at Core
    id: str  # of the application
    url: str  # of the editor
    stranger: str  # of a page whose origin the operator has not named

    @property
    def page(self) -> Page:
        return self.visit.page

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator("iframe")

    async def signs_in(self, key: str = KEY) -> None:
        await self.frame.get_by_label("Key or access token").fill(key)
        await self.frame.get_by_role("button", name="Use this key").click()
        if key == KEY:
            await self.got(f"{NAME}/readyToSave")

    async def stored(self) -> dict[str, Any]:
        """The application as Core has it."""
        async with self.user.get(URL(f"/v1/{self.id}", encoded=True)) as answer:
            return await answer.json()

    async def changed_elsewhere(self, **fields: Any) -> None:
        await make_application(self.user, APPLICATION, fields, type=TYPE)

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
    async with (
        served(chat()) as host,
        served(chat()) as stranger,
        product(tmp_path=tmp_path, http={"editor_origins": [host]}, **OTHERS) as p,
        calling(p.core, KEY) as user,
    ):
        id = await make_application(user, APPLICATION, properties or {}, type=TYPE, display_name="My agent")
        given = {
            "authProvider": "keycloak", "id": id, "theme": "light",
            "applicationCredentials": "true", "applicationName": NAME, **query,
        }  # fmt: skip
        asked = urlencode({"editor": f"{p.agent_url}/editor", **given})
        async with visit(f"{host}/?{asked}", size) as visited:
            e = Editing(visited, user, id, f"{p.agent_url}/editor", f"{stranger}/?{asked}")
            await expect(e.frame.get_by_role("main")).to_be_visible()
            yield e
            assert visited.faults == []


def chat() -> web.Application:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=CHAT, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    return app
