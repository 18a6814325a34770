"""The page lets the user sign in to an MCP server in another tab, and the run that waits goes on by itself."""

from pathlib import Path

from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.oauth_peer import oauth_peer
from tests.support.web import PAGE_MARKS, person

pytestmark = PAGE_MARKS


async def test_a_sign_in_in_another_tab_lets_the_run_go_on(tmp_path: Path, size: tuple[int, int]) -> None:
    script = (wants("sign_in_tickets", server="tickets"), wants("read_ticket"), says("It is the printer."))
    async with oauth_peer() as peer:
        server = {"name": "tickets", "url": peer.url, "sign_in": True}
        async with person(*script, tmp_path=tmp_path, size=size, mcp_servers=[server]) as p:
            await p.says("What is in ticket 7?")
            button = p.button("Sign in to tickets")
            await button.scroll_into_view_if_needed()
            await expect(button).to_be_enabled()
            assert await p.finds_serious() == []
            async with p.page.expect_popup() as opened:
                await button.click()
            tab = await opened.value
            await expect(tab.get_by_text("You are signed in to tickets. You can close this tab.")).to_be_visible()
            assert "code=" not in tab.url
            await p.sees("It is the printer.")
            await p.sees_the_end()
        assert len(peer.calls) == 1
