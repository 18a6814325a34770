"""Memory through the doors: consent, facts that are approved and given again, `/memory`, and forged files."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.core_client.files import DialFiles
from task.core_client.models import Caller
from task.errors import InvalidRequest
from task.llm.scripted import Reply, says, wants
from task.memory.memories import Memories, UserMemory
from task.product.opening import opened, seal_of
from task.settings import Settings
from tests.support.chat_reader import ChatReader
from tests.support.codes import codes_shown
from tests.support.command_console import talking
from tests.support.core import local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import config
from tests.support.http_api import Api, http_api, said
from tests.support.mcp_wire import raw_server
from tests.support.product import TYPE, Product, product
from tests.support.upstream import Received

ON: dict[str, Any] = {"memory": {"enabled": True}}
NUTS, FILE = "The user is allergic to nuts.", "appdata/general-purpose-agent/.memory/memory.json"


def remembering(received: Received) -> Reply:
    """A model that keeps what it is asked to keep, and repeats what it was given."""
    last = received.messages[-1]
    text = str(last["content"])
    if last["role"] == "tool":
        return says(text)
    own = text.partition("[Note")[0]
    return wants("remember", fact=NUTS) if "allergic to nuts" in own else says(f"I see: {text}")


async def kept(p: Product) -> None:
    assert "memory is on" in (await p.reader.ask("/memory on")).content
    question = await p.reader.ask("I am allergic to nuts.")
    [code] = codes_shown(question.content)
    assert NUTS in question.content
    assert "Done" in (await p.reader.ask(f"approve {code}")).content


async def test_a_fact_that_a_user_approves_in_chat_is_in_the_users_bucket_and_in_later_chats_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    async with product(then=remembering, tmp_path=tmp_path, **ON) as p, CoreFiles.of(p.core.url, "key-one") as files:
        assert "memory is off" in (await p.reader.ask("/memory")).content
        await p.reader.ask("I am allergic.")
        assert "remember" not in p.upstream.requests[-1].tools
        await kept(p)
        [fact] = (await files.get(FILE)).json["facts"]
        assert (fact["text"], fact["source"].split()[0]) == (NUTS, "dial")
        p.reader.messages.clear()
        assert NUTS in (await p.reader.ask("What may I eat?")).content
        await p.other.ask("What may I eat?")
        assert NUTS not in str(p.upstream.requests[-1].messages)
        asked = len(p.upstream.requests)
        assert NUTS in (await p.reader.ask("/memory")).content
        assert NUTS in (await p.reader.ask("/memory export")).content
        await p.reader.ask(f"/memory edit {fact['id']} The user likes nuts.")
        assert "likes nuts" in (await p.reader.ask("/memory")).content
        assert "cannot read" in (await p.reader.ask("/memory delete")).content
        assert "Deleted" in (await p.reader.ask("/memory delete all")).content
        assert len(p.upstream.requests) == asked
        assert (await files.get(FILE)).status == 404


async def test_what_a_turn_sends_begins_with_what_the_turn_before_it_sent_up_to_its_message(tmp_path: Path) -> None:
    async with product(then=remembering, tmp_path=tmp_path, **ON) as p:
        await kept(p)
        p.reader.messages.clear()
        for text in ("What may I eat?", "And drink?", "And now?"):
            await p.reader.ask(text)
        first, second, third = (request.messages for request in p.upstream.requests[-3:])
        assert second[: len(first) - 1] == first[:-1]
        assert third[: len(second) - 1] == second[:-1]
        assert third[1]["content"] == "What may I eat?"
        assert NUTS in third[-1]["content"]


@pytest.mark.fault("memory: a forged file in the bucket, and another user's")
async def test_a_file_that_the_agent_did_not_write_is_refused_with_a_sentence_and_not_used(tmp_path: Path) -> None:
    async with (
        product(then=remembering, tmp_path=tmp_path, **ON) as p,
        CoreFiles.of(p.core.url, "key-one") as files,
        CoreFiles.of(p.core.url, "key-two") as theirs,
    ):
        await kept(p)
        own = (await files.get(FILE)).body
        assert (await theirs.put(FILE, own, if_none_match="*")).status == 200
        await p.other.ask("What may I eat?")
        assert "remember" not in p.upstream.requests[-1].tools
        for forged in (own.replace(b"is allergic", b"likes to eat"), b"[]", b"{", b'{"facts": []}', b"[" * 100_000):
            await files.put(FILE, forged)
            await p.reader.ask("What may I eat?")
            assert "[Note from the system, not from the user: facts" not in str(p.upstream.requests[-1].messages)
            assert "changed outside the agent" in (await p.reader.ask("/memory")).content
        assert "Deleted" in (await p.reader.ask("/memory delete all")).content
        assert "memory is off" in (await p.reader.ask("/memory")).content


@pytest.mark.fault("memory: two writers at once")
@pytest.mark.parametrize("place", ["bucket", "store"])
async def test_of_changes_at_once_none_is_lost(place: str, tmp_path: Path) -> None:
    async def principal() -> str:
        return "dial:ann" if place == "bucket" else "ann"

    async with local_core(config(), tmp_path) as core:
        settings = Settings.model_validate({"dial_endpoint": core.url, "data_dir": tmp_path / "agent", **ON})
        services, _ = opened(settings, tools=())
        try:
            memories = Memories(services.store, DialFiles(core.url, session=services.session), seal_of(settings))
            writers = [await memories.of(Caller("key-one", principal), "chat") for _ in range(4)]
            await writers[0].change(lambda known: known.with_consent(True, 1.0))

            async def writes(number: int, memory: UserMemory) -> None:
                await memory.change(lambda known: known.with_fact(f"Fact {number}.", 1.0))

            await asyncio.gather(*map(writes, range(4), writers))
            await asyncio.gather(*map(writes, range(4, 24), writers[:1] * 20))  # in one step of one turn
            known = await writers[0].load()
            assert {fact.text for fact in known.facts} == {f"Fact {number}." for number in range(24)}
            await writers[1].delete()
            with pytest.raises(InvalidRequest, match="memory is off"):
                await writers[0].change(lambda known: known.with_fact(NUTS, 1.0))
        finally:
            await services.close()


async def approved(api: Api) -> None:
    """A fact that the model proposes in a session, and the user allows."""
    await api.post("/chat", {"messages": [said("I am allergic to nuts.")]})
    [asked] = (await api.get("/approvals")).json["approvals"]
    await api.post(f"/approvals/{asked['approval_id']}", {"decision": "approve"})


async def test_the_api_shows_changes_exports_and_deletes_and_a_trace_names_the_facts_of_its_turn(
    tmp_path: Path,
) -> None:
    async with http_api(then=remembering, tmp_path=tmp_path, **ON) as api:
        assert (await api.get("/memory")).json == {"consented": "", "facts": []}
        await api.complete("I am allergic.")
        assert "remember" not in api.upstream.requests[-1].tools
        assert (await api.call("PATCH", "/memory", {"consent": True})).json["consented"]
        await approved(api)
        [fact] = (await api.get("/memory")).json["facts"]
        assert fact["text"] == NUTS
        answer = await api.post("/chat", {"messages": [said("What may I eat?")]})
        assert answer.json["trace"]["facts"] == [fact["id"]]
        assert NUTS in answer.json["response"]
        changed = await api.call("PATCH", "/memory", {"facts": {fact["id"]: "The user likes nuts."}})
        assert changed.json["facts"][0]["text"] == "The user likes nuts."
        assert (await api.call("PATCH", "/memory", {"facts": {"none": None}})).status == 404
        off = (await api.call("PATCH", "/memory", {"consent": False})).json
        assert (off["consented"], len(off["facts"])) == ("", 1)
        await api.complete("What may I eat?")
        assert "likes nuts" not in str(api.upstream.requests[-1].messages)
        assert (await api.call("PATCH", "/memory", {"facts": {fact["id"]: None}})).json["facts"] == []
        assert (await api.call("DELETE", "/memory")).status == 204
        assert (await api.get("/memory")).json == {"consented": "", "facts": []}


async def test_where_the_operator_allows_none_every_door_says_so(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        assert "operator" in (await api.get("/memory")).error["message"]
    async with product(tmp_path=tmp_path / "dial") as p:
        assert "operator" in (await p.reader.ask("/memory on")).content
    async with talking(tmp_path) as console:
        [shown] = await console.types("/memory")
        assert "operator" in shown


async def test_the_console_has_the_memory_of_the_page_on_the_same_machine(tmp_path: Path) -> None:
    async with talking(tmp_path, then=remembering, **ON) as console:
        await console.types("/memory on")
        [shown] = await console.types(f"/memory add {NUTS}")
        assert NUTS in shown
        await console.types("What may I eat?")
        assert NUTS in str(console.upstream.requests[-1].messages)


async def test_in_an_application_only_the_user_adds_facts_which_stay_there(tmp_path: Path) -> None:
    made = {"type": "chat", "applicationTypeSchemaId": TYPE, "applicationProperties": {"instructions": "Remember all."}}
    async with product(then=remembering, tmp_path=tmp_path, applications={"cook": made}, **ON) as p:
        await p.reader.ask("/memory on")
        cook = ChatReader(p.reader._session, p.core.url, "key-one", "cook")
        assert "memory is off" in (await cook.ask("/memory")).content, "Core gives each application a folder of its own"
        async with CoreFiles.of(p.core.url, "key-one") as files:
            place = FILE.replace("general-purpose-agent", "cook")
            await files.put(place, (await files.get(FILE)).body, if_none_match="*")
        assert "changed outside the agent" in (await cook.ask("/memory on")).content, "it is another place's"
        await cook.ask("/memory delete all")
        await cook.ask("/memory on")
        assert "only in cook" in (await cook.ask(f"/memory add {NUTS}")).content
        assert NUTS in (await cook.ask("What may I eat?")).content
        assert "remember" not in p.upstream.requests[-1].tools
        await p.reader.ask("What may I eat?")
        assert NUTS not in str(p.upstream.requests[-1].messages)


async def test_a_memory_server_has_the_place_of_our_own_for_users_who_consent(tmp_path: Path) -> None:
    tools = [{"name": "store", "description": "Keeps.", "inputSchema": {"type": "object"}}]
    async with (
        raw_server({"tools/list": {"tools": tools}}) as url,
        http_api(
            then=says("Hi."),
            tmp_path=tmp_path,
            mcp_servers=[{"name": "dialmemory", "url": url}],
            memory={"enabled": True, "server": "dialmemory"},
        ) as api,
    ):
        await api.complete("Hi")
        assert "store" not in api.upstream.requests[-1].tools
        await api.call("PATCH", "/memory", {"consent": True})
        await api.complete("Hi")
        assert "store" in api.upstream.requests[-1].tools
        assert "remember" not in api.upstream.requests[-1].tools
