"""A user's files and folders in DIAL through the door: as context, searched, written after approval, taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import FOLDER
from task.core_client.files import DialFiles
from task.core_client.models import DownloadedFile
from task.llm.scripted import Reply, ScriptedModel, says, wants
from task.search.readings import Readings
from task.search.shelf import DocumentCache
from task.tools.rag.rag_tool import MAX_BELOW, RagOptions, RagTool
from tests.support.codes import codes_shown
from tests.support.core import local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import config
from tests.support.documents import DirectReaders, manual
from tests.support.embedding import WordVectors
from tests.support.product import Product, product
from tests.support.tool_calls import call_of, caller_of, params_of
from tests.support.upstream import Received

KEY = "key-one"
READING = {"files_list", "files_search", "files_read"}


def folder_of(url: str) -> dict[str, str]:
    """The attachment that Chat makes of a folder."""
    return {"type": FOLDER, "title": url.rstrip("/").rpartition("/")[2], "url": f"metadata/{url}"}


def calling(*calls: Reply) -> Any:
    """A model that makes these calls, one for each of the user's messages, and reports their results."""

    def answer(received: Received) -> Reply:
        if received.messages[-1]["role"] == "tool":
            return says(str(received.messages[-1]["content"]))
        return calls[sum(message["role"] == "user" for message in received.messages) - 1]

    return answer


def prompt_of(p: Product, turn: int = -1) -> str:
    return str(p.upstream.requests[turn].messages[0]["content"])


async def test_the_files_of_an_attached_folder_are_listed_found_and_read(tmp_path: Path) -> None:
    script: list[Reply] = []
    async with product(then=lambda received: calling(*script)(received), tmp_path=tmp_path) as p:
        async with CoreFiles.of(p.core.url, KEY) as files:
            for path in ("plans/my%20plan.md", "plans/deep/b.md", "plans-2/c.md"):
                await files.put(path, b"The tray costs 40 euros.\n")
            urls = [files.url(path) for path in ("plans/my%20plan.md", "plans/deep/b.md", "plans-2/c.md")]
            script += [wants("files_list", path=files.url("plans/"), glob="*")]
            script += [wants("files_read", path=url) for url in (urls[0], urls[2])]
            script += [wants("files_search", pattern="tray", path=f"metadata/{files.url('plans/')}"), says("Hi.")]
            answer = await p.reader.ask("What do I plan?", folder_of(files.url("plans/")))
            assert f"{urls[1]}\n{urls[0]}" in answer.content
            assert "40 euros" in (await p.reader.ask("Read it.")).content
            offered = set(p.upstream.requests[0].tools)
            assert offered >= READING
            assert not {name for name in offered if name.startswith("files_")} - READING
            assert "No access to" in (await p.reader.ask("And the other one?")).content
            assert "my%20plan.md:1: The tray" in (await p.reader.ask("Search them.")).content
        await p.other.ask("Hi")
        assert not {name for name in p.upstream.requests[-1].tools if name.startswith("files_")}


@pytest.mark.fault("DIAL files: a folder of another user, attached")
async def test_another_users_folder_cannot_be_attached(tmp_path: Path) -> None:
    async with product(then=says("Hi."), tmp_path=tmp_path) as p, CoreFiles.of(p.core.url, "key-two") as theirs:
        await theirs.put("secret/a.md")
        answer = await p.reader.ask("What is in it?", folder_of(theirs.url("secret/")))
        assert "Access denied" in str(answer.error)
        assert not p.upstream.requests


async def test_a_change_waits_for_the_user_and_is_taken_back_in_a_later_turn(tmp_path: Path) -> None:
    script = [
        wants("files_write", path="my notes/a.md", content="one"),
        wants("files_edit", path="my notes/a.md", old_text="one", new_text="two"),
        wants("files_undo"),
    ]

    def model(received: Received) -> Reply:
        if received.messages[-1]["role"] == "tool":
            return says(str(received.messages[-1]["content"]))
        return script.pop(0)

    place = "appdata/general-purpose-agent/my%20notes/a.md"
    async with (
        product(then=model, tmp_path=tmp_path, dial_files={"enabled": True}) as p,
        CoreFiles.of(p.core.url, KEY) as files,
    ):
        for asked, result, content in (
            ("Note it.", "wrote my notes/a.md", "one"),
            ("Change it.", "edited my notes/a.md", "two"),
            ("Undo that.", "undone: my notes/a.md", "one"),
        ):
            before = (await files.get(place)).text
            question = await p.reader.ask(asked)
            [code] = codes_shown(question.content)
            assert (await files.get(place)).text == before
            assert result in (await p.reader.ask(f"approve {code}")).content
            assert (await files.get(place)).text == content


class CountingFiles(DialFiles):
    """Counts the downloads."""

    downloads = 0

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        self.downloads += 1
        return await super().download(url, api_key, max_size)


@pytest.mark.fault("search in documents: a folder with files that cannot be read, and with too many")
async def test_a_folder_is_searched_and_only_what_changed_is_read_again(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path) as core, CoreFiles.of(core.url, KEY) as stored:
        files = CountingFiles(core.url)
        model, vectors = ScriptedModel(*[says("The tray costs 40 euros [1].")] * 4), WordVectors()
        rag = RagTool(
            core.url, "writer", DocumentCache.create(), readings=Readings(files, DirectReaders()), embedder=vectors,
            model=lambda name, caller: model, options=RagOptions(whole_tokens=100),
        )  # fmt: skip

        async def answered() -> str:
            arguments = {"request": "What does the tray cost?", "file_url": f"metadata/{stored.url('docs/')}"}
            params = params_of(call_of("rag_search_tool", arguments), api_key=KEY)
            params.caller = caller_of("user", api_key=KEY)
            return (await rag.execute(params)).text()

        try:
            await stored.put("docs/my%20notes.txt", b"The tray costs 40 euros.")
            await stored.put("docs/deep/manual.txt", manual().encode())
            await stored.put("docs/picture.png", b"\x89PNG", type="image/png")
            assert '[1] my notes.txt, line 1: "The tray costs 40 euros."' in await answered()
            assert (files.downloads, vectors.calls) == (2, 3), "two documents, and the question"
            await answered()
            assert (files.downloads, vectors.calls) == (2, 4)
            await stored.put("docs/my%20notes.txt", b"The tray costs 40 euros. It is sold out.")
            assert "40 euros" in await answered()
            assert (files.downloads, vectors.calls) == (3, 6)
            await stored.put("docs/broken.pdf", b"%PDF-1.4 nothing", type="application/pdf")
            for number in range(MAX_BELOW):
                await stored.put(f"docs/z/{number:02}.txt", b"Nothing about it.")
            last = await answered()
            assert "broken.pdf' cannot be read" in last
            assert f"only the first {MAX_BELOW} documents of" in last
        finally:
            await rag.close()
