"""Skills at the front doors: the documented one draws a chart at each, and a workspace's wait for an agreement."""

import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from playwright.async_api import expect

from task.llm.scripted import says, wants
from task.product.skills import workspace_skills
from task.settings import Settings
from task.tools.skills.read_skill_tool import OUTSIDE
from tests.support.browser import WIDE, visit
from tests.support.coding import CODER, plan, project
from tests.support.console import console, openai
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.product import MODEL, Product, product
from tests.support.skill_folders import ASKED, documented_skill, follows_skills
from tests.support.terminal import KEYS, terminal
from tests.support.up import dial_agent, environment
from tests.support.upstream import openai_upstream
from tests.support.web import PAGE_MARKS, Person

pytestmark = [*PAGE_MARKS]
PNG = b"\x89PNG"


async def test_a_skill_with_a_script_makes_a_chart_through_every_door(tmp_path: Path) -> None:
    skills = documented_skill(tmp_path / "skills")
    with running_interpreter(tmp_path / "interpreter", "--spares", "0") as server:
        variables = {"pyinterpreter_mcp_url": server.url, "mcp_token": TOKEN, "dial_api_key": "key-one"}
        given: dict[str, Any] = {**variables, "skills": {"folders": [str(skills)]}}
        async with product(then=follows_skills, tmp_path=tmp_path, **given) as p:
            await through_dial(p)
            await through_v1(p)
            await through_the_page(p)
            await through_the_console(p, tmp_path, server.url, skills)
    offered = [tool["function"]["name"] for tool in p.upstream.requests[0].body["tools"]]
    assert {"read_skill", "execute_code"} <= set(offered)


async def through_dial(p: Product) -> None:
    answer = await p.reader.ask(ASKED)
    assert [stage.status for stage in answer.stages.values()] == ["completed"] * 2, answer.stages
    [chart] = [item for item in answer.attachments.values() if item["title"] == "bars.png"]
    status, content = await p.reader.get(chart["url"])
    assert (status, content[:4], answer.content) == (200, PNG, "Here it is.")


async def through_v1(p: Product) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": ASKED}]}
    async with ClientSession() as session, session.post(f"{p.agent_url}/v1/chat/completions", json=body) as response:
        answer = (await response.json())["choices"][0]["message"]
    [chart] = answer["custom_content"]["attachments"]
    status, content = await p.reader.get(chart["url"])
    assert (status, content[:4], answer["content"]) == (200, PNG, "Here it is.")


async def through_the_page(p: Product) -> None:
    async with visit(f"{p.agent_url}/", WIDE) as visited:
        person = Person(visited, p.upstream, p.agent_url)
        await person.asks(ASKED)
        await expect(person.answers.last.locator(".picture img").last).to_be_visible()
        assert visited.faults == []


async def through_the_console(p: Product, folder: Path, interpreter: str, skills: Path) -> None:
    (folder / "home").mkdir()
    done = await dial_agent(
        folder / "home", "chat", "--json", "-p", ASKED,
        DIAL_ENDPOINT=p.core.url, DIAL_API_KEY="key-one", DEPLOYMENT_NAME=MODEL, AGENT_BACKEND="dial",
        PYINTERPRETER_MCP_URL=interpreter, AGENT_MCP_TOKEN=TOKEN, AGENT_SKILLS__FOLDERS=json.dumps([str(skills)]),
    )  # fmt: skip
    assert done.code == 0, done.err
    titles = [event["attachment"]["title"] for event in done.events() if event["type"] == "attachment"]
    assert "bars.png" in titles


MINUTES = "---\nname: minutes\ndescription: Write minutes.\n---\nBegin with the date.\n"


async def test_the_skills_of_a_folder_are_asked_about_once_at_a_terminal_and_used_then(tmp_path: Path) -> None:
    place = tmp_path / "work" / ".agents" / "skills" / "minutes"
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(MINUTES)
    (tmp_path / "home").mkdir()
    async with openai_upstream(wants("read_skill", name="minutes"), says("Today.")) as upstream:
        variables = environment(tmp_path / "home", AGENT_DATA_DIR=str(tmp_path / "data"), **openai(upstream.url))
        command = [sys.executable, "-m", "task", "chat"]
        async with terminal(command, variables, tmp_path / "work") as window:
            await window.wait_for("minutes: Write minutes.")
            await window.wait_for("[y/N]")
            await window.send("y" + KEYS["enter"])
            await window.wait_for("/help")
        async with console(tmp_path, **openai(upstream.url)) as person:  # is not asked again
            exchange = await person.say("Write the minutes.")
        [result] = [message for message in upstream.requests[1].messages if message["role"] == "tool"]
    assert (exchange.answer, exchange.waits) == ("Today.", [])
    assert result["content"].startswith(OUTSIDE)
    assert "Begin with the date." in result["content"]


async def test_a_coding_task_reads_the_skills_of_its_folder_that_the_user_has_agreed_to(tmp_path: Path) -> None:
    coding = (wants("read_skill", name="minutes"), wants("fs_write", path="a.txt", content="Today."), says("Done."))
    files = {".agents/skills/minutes/SKILL.md": MINUTES, "b.txt": ""}
    script = (plan(), says("Done."), plan(), *coding)
    async with project(tmp_path, *script, files=files) as here:
        await here.run("Write the minutes.", "--apply", "--verify", "true")
        settings = Settings(data_dir=here.home / ".local/share/dial-agent")
        assert workspace_skills(settings, here.folder, lambda _: True) != []
        done = await here.run("Write the minutes.", "--apply", "--verify", "true")
        offered = [{tool["function"]["name"] for tool in asked["tools"]} for asked in await here.requests(CODER)]
    assert done.code == 0, done.out
    assert (here.folder / "a.txt").read_text() == "Today."
    assert ["read_skill" in names for names in offered] == [False, True, True, True]
