"""The context behind every door: its prose and documents in the model's request, and the persona of a conversation."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import Api, http_api, said
from tests.support.product import product
from tests.support.replies import Reply
from tests.support.upstream import Received

DEFINITION = """\
initial_prompt_template: "You help the team."
## Personas
persona_critic: @critic.md
persona_poet: @poet.md
## Standards
Never round money.
handbook: @handbook.md
guide: @guide.md
"""
HANDBOOK = "\n".join(f"Rule {number}: knock {number} times." for number in range(1, 801))
READ = "read_context_document"


def context(folder: Path, **more: Any) -> dict[str, Any]:
    files = {
        "FRAMEWORK_CONTEXT.md": DEFINITION, "critic.md": "Doubt everything.", "poet.md": "Rhyme.",
        "handbook.md": HANDBOOK, "guide.md": "Guide.",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).write_text(text)
    return {"definition_path": folder / "FRAMEWORK_CONTEXT.md", "max_prompt_bytes": 1000, **more}


def prompt(request: Received) -> str:
    first = request.messages[0]
    assert first["role"] == "system"
    return first["content"]


def offered(request: Received) -> list[str]:
    return [tool["function"]["name"] for tool in request.body["tools"]]


async def chat(api: Api, messages: list[dict[str, Any]], **more: Any) -> Reply:
    return await api.post("/chat", {"messages": messages, **more})


async def complete(api: Api, messages: list[dict[str, Any]], **more: Any) -> Reply:
    return await api.post("/v1/chat/completions", {"messages": messages, **more})


async def respond(api: Api, messages: list[dict[str, Any]], **more: Any) -> Reply:
    return await api.post("/v1/responses", {"input": messages, **more})


async def run(api: Api, messages: list[dict[str, Any]], **more: Any) -> Reply:
    started = await api.post("/runs", {"messages": messages, **more})
    if started.status == 202:
        await api.events(started.json["run_id"])
    return started


DOORS = pytest.mark.parametrize("ask", [chat, complete, respond, run])


@pytest.mark.fault("context: a caller's own system message")
@pytest.mark.fault("context: prose that no model received")
@pytest.mark.fault("context: an unknown persona")
@DOORS
async def test_the_context_and_the_chosen_persona_stand_before_a_conversation(ask: Any, tmp_path: Path) -> None:
    chosen = context(tmp_path, persona="persona_poet")
    async with http_api(then=says("Hi."), tmp_path=tmp_path, context=chosen) as api:
        await ask(api, [said("Talk like a pirate.", "system"), said("Hi")])
        await ask(api, [said("Hi")], persona="critic")
        refused = await ask(api, [said("Hi")], persona="pope")
        listed = (await api.get("/personas")).json
    default, own = map(prompt, api.upstream.requests)
    assert default.startswith("Talk like a pirate.\n\nYou help the team.")
    assert '<section id="standards">\nNever round money.\n</section>' in default
    assert '<document id="guide">' in default
    assert "General Purpose Agent" not in default
    assert ("Rhyme." in default, "Doubt everything." in default) == (True, False)
    assert ("Rhyme." in own, "Doubt everything." in own) == (False, True)
    assert refused.status == 400
    assert refused.error["message"] == "There is no persona 'pope'. There are: critic, poet."
    assert (listed["personas"], listed["default"]) == (["critic", "poet"], "poet")
    assert all(listed["descriptions"][name] for name in ("critic", "poet"))


@pytest.mark.fault("context: an unknown persona")
async def test_without_a_context_there_are_no_personas(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        refused, listed = await api.complete("Hi", persona="critic"), await api.get("/personas")
    assert (refused.status, refused.error["message"]) == (400, "There is no persona 'critic'. There are: none.")
    assert listed.json == {"personas": [], "descriptions": {}, "default": None}


async def test_a_run_that_was_asked_about_keeps_its_persona_and_the_user_may_change_the_page(tmp_path: Path) -> None:
    rule = {"action": "ask", "tool": READ}
    turns = (wants(READ, id="handbook"), says("Knock."))
    async with http_api(*turns, tmp_path=tmp_path, context=context(tmp_path), permissions={"rules": [rule]}) as api:
        await chat(api, [said("How often?")], persona="critic")
        [asked] = (await api.get("/approvals")).json["approvals"]
        answer = {"decision": "approve", "arguments": {"id": "handbook", "page": 3}}
        answered = await api.post(f"/approvals/{asked['approval_id']}", answer)
        await api.events(answered.json["resumed"]["run_id"])
    assert "Page #3" in api.upstream.requests[1].last["content"]
    assert "Doubt everything." in prompt(api.upstream.requests[1])


@pytest.mark.fault("context: a document over the budget")
async def test_a_document_over_the_budget_is_read_by_a_tool_and_taints_nothing(tmp_path: Path) -> None:
    calls = [{}, {"page": 2}, {"page": 99}, {"id": "nowhere"}]
    turns = [wants(READ, **{"id": "handbook", **arguments}) for arguments in calls]
    found = "See [the site](https://example.org/a)."
    async with product(*turns, says(found), tmp_path=tmp_path, context=context(tmp_path)) as p:
        answer = await p.reader.ask("How often do I knock by rule 800?")
    first, *others = p.upstream.requests
    assert "Rule 1:" not in prompt(first)
    [schema] = [tool["function"] for tool in first.body["tools"] if tool["function"]["name"] == READ]
    assert schema["parameters"]["properties"]["id"]["enum"] == ["handbook"]
    one, two, far, unknown = (request.last["content"] for request in others)
    assert one.startswith("Rule 1: knock 1 times.")
    assert one.endswith("**Page #1. Total pages: 3**")
    assert "Rule 1:" not in two
    assert "The document has no page 99: its pages are 1 to 3." in far
    assert "'nowhere' is not one of ['handbook']" in unknown
    assert (answer.content, answer.error) == (found, None)


async def test_the_reading_tool_is_offered_where_something_is_left_to_read(tmp_path: Path) -> None:
    async with http_api(says("Hi."), tmp_path=tmp_path, context=context(tmp_path)) as api:
        assert READ in (await api.get("/ready")).json["tools"]
    roomy = context(tmp_path, max_prompt_bytes=100_000)
    async with http_api(says("Hi."), tmp_path=tmp_path, context=roomy) as api:
        assert READ not in (await api.get("/ready")).json["tools"]
        await api.complete("Hi")
    assert READ not in offered(api.upstream.requests[0])
    assert "Rule 800:" in prompt(api.upstream.requests[0])


@pytest.mark.fault("context: an unknown persona")
async def test_dial_chat_offers_the_personas_and_sends_the_one_chosen(tmp_path: Path) -> None:
    chosen = context(tmp_path, persona="critic")
    body = {"messages": [said("Hi")], "custom_fields": {"configuration": {"persona": "pope"}}}
    async with product(says("Hi."), tmp_path=tmp_path, context=chosen) as p, aiohttp.ClientSession() as session:
        path = f"{p.core.url}/v1/deployments/general-purpose-agent/configuration"
        async with session.get(path, headers=p.core.headers()) as response:
            persona = (await response.json())["properties"]["persona"]
        p.reader.configuration = {"persona": "poet"}
        await p.reader.ask("Hi")
        path = f"{p.agent_url}/openai/deployments/general-purpose-agent/chat/completions"
        async with session.post(path, json=body, headers={"Api-Key": "k"}) as response:
            error = (await response.json())["error"]
    assert (persona["enum"], persona["default"]) == (["critic", "poet"], "critic")
    [request] = p.upstream.requests
    assert "Rhyme." in prompt(request)
    assert response.status == 400
    assert error["display_message"].startswith(
        "There is no persona 'pope'. There are: critic, poet. (error reference: "
    )
