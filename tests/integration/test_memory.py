"""Memory through the doors: consent, facts that are approved and given again, `/memory`, and what must not get in."""

from pathlib import Path
from typing import Any

from task.llm.scripted import Reply, says, wants
from tests.support.codes import codes_shown
from tests.support.core_files import CoreFiles
from tests.support.product import Product, product
from tests.support.upstream import Received

ON: dict[str, Any] = {"memory": {"enabled": True}}
NUTS, FILE = "The user is allergic to nuts.", "appdata/general-purpose-agent/.memory/memory.json"


def remembering(received: Received) -> Reply:
    """A model that keeps what it is asked to keep, and repeats what it was given."""
    last = received.messages[-1]
    text = str(last["content"])
    if last["role"] == "tool":
        return says(text)
    return wants("remember", fact=NUTS) if "allergic to nuts" in text.partition("[Note")[0] else says(f"I see: {text}")


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
        stored = (await files.get(FILE)).json
        assert [fact["text"] for fact in stored["facts"]] == [NUTS]
        p.reader.messages.clear()
        assert NUTS in (await p.reader.ask("What may I eat?")).content
        await p.other.ask("What may I eat?")
        assert NUTS not in str(p.upstream.requests[-1].messages)
        asked = len(p.upstream.requests)
        assert NUTS in (await p.reader.ask("/memory")).content
        assert NUTS in (await p.reader.ask("/memory export")).content
        await p.reader.ask(f"/memory edit {stored['facts'][0]['id']} The user likes nuts.")
        assert "likes nuts" in (await p.reader.ask("/memory")).content
        assert "Deleted" in (await p.reader.ask("/memory delete all")).content
        assert len(p.upstream.requests) == asked
        assert (await files.get(FILE)).status == 404
