"""The editor of an application in a frame of DIAL Chat: what it shows, saves and says, and to whom."""

from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from tests.support.editor_host import KEY, NAME, editing
from tests.support.web import PAGE_MARKS

pytestmark = PAGE_MARKS
OTHER = "files/public/other/"
STORED = {"instructions": "Be brief.", "tools": ["jira"]}


async def test_an_application_is_edited_in_chat_and_saved_to_core(tmp_path: Path) -> None:
    async with editing(tmp_path, STORED) as e:
        await e.got(f"{NAME}/readyToInteract")
        await e.got(f"{NAME}/loggedOut")
        await e.saves()
        assert "Sign in" in (await e.got("SAVE_ERROR"))["error"]
        await e.signs_in()
        await e.saves()
        assert await e.got("SAVE_SUCCESS") == {"type": "SAVE_SUCCESS", "hasChanges": False}

        frame = e.frame
        await expect(frame.get_by_label("Instructions")).to_have_value("Be brief.")
        await frame.get_by_label("Instructions").fill("Answer in rhymes.")
        await frame.get_by_label("Model").fill("test-model")
        await frame.get_by_role("group", name="Tools", exact=True).get_by_role("button", name="Add").click()
        await e.page.keyboard.type("research")
        await frame.get_by_role("group", name="Conversation starters").get_by_role("button", name="Add").click()
        await e.page.keyboard.type("Hello")
        await frame.get_by_label("Text that it sends").fill("Say hello!")
        await frame.get_by_label("calculator").uncheck()
        await frame.get_by_label("Permissions").select_option("Read only")
        await frame.get_by_label("Steps of an answer").fill("5")
        await frame.get_by_role("button", name="Credentials").last.click()
        assert (await e.got("REQUEST_APPLICATION_CREDENTIALS"))["appId"] == "research"
        await expect(frame.get_by_role("button", name="Credentials")).to_have_count(1)  # a toolset has none
        await e.saves({"name": "Poet", "topics": ["fun"], "display_version": "1.0.1"})
        updated = await e.got(f"{NAME}/updatedApplicationSuccess")
        assert await e.got("SAVE_SUCCESS") == {"type": "SAVE_SUCCESS", "hasChanges": True}
        written = await e.stored()
        assert updated["payload"]["application"] == written
        kept = written["application_properties"].pop("builtin")
        assert "rag_search_tool" in kept
        assert "calculator" not in kept
        assert written["application_properties"] == {
            "instructions": "Answer in rhymes.",
            "model": "test-model",
            "tools": ["jira", "research"],
            "starters": [{"title": "Hello", "text": "Say hello!"}],
            "permission_mode": "read_only",
            "limits": {"steps": 5},
        }
        general = {name: written[name] for name in ("display_name", "description_keywords", "display_version")}
        assert general == {"display_name": "Poet", "description_keywords": ["fun"], "display_version": "1.0.1"}
        assert KEY not in str(await e.page.evaluate("[window.got, window.strange]"))


@pytest.mark.fault("editor: properties that do not fit")
@pytest.mark.fault("editor: an application that was changed elsewhere")
@pytest.mark.fault("editor: a key that expires while the user writes")
async def test_what_is_refused_stands_at_its_field_and_nothing_written_is_lost(tmp_path: Path) -> None:
    async with editing(tmp_path, {"context": ["files/public/report/"]}) as e:
        await e.signs_in()
        files = e.frame.get_by_role("group", name="Context files")
        context = files.get_by_role("textbox").last
        await context.fill("")
        await files.get_by_role("button", name="Add").click()
        await context.fill("report.pdf")  # of two entries, the empty one is none
        await e.saves()
        sentence = (await e.got("SAVE_ERROR"))["error"]
        assert "context.0" in sentence
        await expect(context).to_have_attribute("aria-invalid", "true")
        await expect(context).to_be_focused()
        await expect(e.frame.get_by_role("alert")).to_have_text(sentence)
        await context.fill(OTHER)
        await e.changed_elsewhere(instructions="Mine.")
        await e.saves()
        assert "changed elsewhere" in (await e.got("SAVE_ERROR"))["error"]
        await expect(e.frame.get_by_role("alert")).to_contain_text("changed elsewhere")
        await expect(context).not_to_have_attribute("aria-invalid", "true")
        await e.page.frames[1].evaluate("sessionStorage.setItem('agent.core', '\"gone\"')")
        await e.saves()
        assert "has expired" in (await e.got("SAVE_ERROR"))["error"]
        await e.signs_in()
        await context.fill("files/b/of-another/")
        await e.saves()
        assert (await e.got("SAVE_ERROR"))["error"].startswith("DIAL Core refused it: Failed to access")
        await context.fill(OTHER)
        await e.saves()
        await e.got("SAVE_SUCCESS")
        assert (await e.stored())["application_properties"] == {"context": [OTHER]}


@pytest.mark.fault("editor: an application of another user, and an id that leads elsewhere")
async def test_only_an_application_of_the_users_own_is_shown(tmp_path: Path) -> None:
    async with editing(tmp_path, STORED) as e:
        await e.signs_in("key-two")
        await expect(e.frame.get_by_role("alert")).to_contain_text("There is no such application")
        for id in ("applications/../user/info", "applications/b/%2e%2e/%2e%2e/user", "files/b/x", ""):
            await e.page.goto(f"{e.url}?{urlencode({'id': id})}")
            await expect(e.page.get_by_role("alert")).to_contain_text("There is no such application")


@pytest.mark.fault("editor: a page of another origin shows it, opens it or sends it messages")
async def test_a_page_of_another_origin_gets_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async with editing(tmp_path, STORED) as e:
        await e.signs_in()
        await e.frame.get_by_label("Instructions").fill("Mine.")
        hostile = await e.page.context.new_page()
        await hostile.goto(e.stranger)
        async with hostile.expect_popup() as popup:
            await hostile.evaluate(f"() => {{ window.shown = open({e.url!r} + '?id=' + {e.id!r}); }}")
        await expect((await popup.value).get_by_label("Key or access token")).to_be_visible()
        await hostile.evaluate("() => { shown.postMessage({ type: 'TRIGGER_SAVE' }, '*'); window.triggerSave(); }")
        # A page that Chat shows beside the editor reaches its window.
        await e.page.evaluate(
            """(address) => new Promise((done) => {
                const other = document.createElement("iframe");
                other.onload = done;
                other.src = address;
                document.body.append(other);
            })""",
            e.stranger.partition("?")[0] + "sender",
        )
        await e.page.frames[-1].evaluate("() => parent.frames[0].postMessage({ type: 'TRIGGER_SAVE' }, '*')")
        await e.saves()  # comes after the stranger's
        assert (await e.got("SAVE_SUCCESS"))["hasChanges"]
        assert await hostile.evaluate("[...window.got, ...window.strange]") == []
        assert await e.page.evaluate("window.strange") == []
        await expect(hostile.frame_locator("iframe").get_by_role("main")).to_have_count(0)


@pytest.mark.parametrize("size", [(1280, 860), (400, 844)], ids=["1280", "400"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_it_fits_and_axe_finds_nothing_serious(tmp_path: Path, size: tuple[int, int], theme: str) -> None:
    properties = {
        **STORED,
        "starters": [{"title": "Hello", "text": "Say hello!"}],
        "context": [f"files/public/{'x' * 90}/"],
    }
    async with editing(tmp_path, properties, size, theme=theme) as e:
        await e.signs_in()
        inner = e.page.frames[1]
        assert await inner.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert await inner.evaluate("document.documentElement.dataset.theme") == theme
        await e.saves()
        found = (await Axe().run(inner)).response["violations"]
        assert [
            (one["id"], one["nodes"][0]["target"]) for one in found if one["impact"] in ("serious", "critical")
        ] == []
