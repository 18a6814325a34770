"""Slash commands look things up and change the conversation, and complete as they are typed; none asks a model."""

import asyncio
import json
from pathlib import Path

import pytest

from task.closing import run_blocking
from task.console.slash.completion import LONGEST, MOST, MOST_READ, complete
from task.console.slash.table import COMMANDS
from task.console.terminal.rendering import last_word
from task.conversation.message_manager import MessageManager
from task.llm.scripted import says
from tests.support.command_console import OWNER, ListedConsole, command_console, talking
from tests.support.core import local_core
from tests.support.ollama import ollama_peer
from tests.support.upstream import openai_upstream

NO_MODEL = "http://127.0.0.1:9/v1"
WRONG = {
    "/system": "Command: Usage: /system <message_content>",
    "/system   ": "Command: Usage: /system <message_content>",
    "/save": "Command: Usage: /save [--overwrite] <path>",
    "/save --overwrite": "Command: Usage: /save [--overwrite] <path>",
    "/permissions revoke": "Command: Usage: /permissions [revoke number|id|all]",
    "/permissions forget 1": "Command: Usage: /permissions [revoke number|id|all]",
    "/permissions revoke 7": "Nothing is allowed for longer than one call.",
    "/persona coder": "Command: There is no persona 'coder'. There are: none.",
    "/resume 3": "Command: There is no session 3; /resume lists 0.",
    "/retry": "Command: There is no message to repeat.",
    "/cost": "Nothing was asked in this conversation yet.",
    "/files nothing.txt": "Command: nothing.txt cannot be read: No such file or directory.",
    "/files .": "Command: . is not a file; name files one by one.",
    "/files detach x.txt": "Command: x.txt is not attached; /files lists what is.",
}
PERSONAS = "## Personas\n\npersona_coder: @coder.md\npersona_poet: @poet.md\n"


@pytest.mark.fault("console commands: an unknown command, and one a megabyte long")
async def test_commands_ask_no_model_and_unknown_ones_suggest_the_nearest(tmp_path: Path) -> None:
    async with talking(tmp_path) as console:
        listed = await console.types("/help")
        await console.shows("/hlep me", "Command: Unknown command: /hlep. Did you mean /help?")
        await console.shows("/zzzzzzzz", "Command: Unknown command: /zzzzzzzz. Type /help for available commands.")
        long = await console.types("/" + "x" * 1_000_000)
        await console.shows("/help SYSTEM", "/system <message_content>: Add a system message to the conversation.")
        await console.shows("/help clera", "Command: Unknown command: /clera. Did you mean /clear?")
        await console.shows("/debug", "Debug mode enabled.")
        await console.shows("/DEBUG", "Debug mode disabled.")
        await console.types("   ")
        for name in COMMANDS:
            await console.types(name)
    assert [line.partition(":")[0].split()[0] for line in listed] == list(COMMANDS)
    assert len(long[0]) < 200
    assert console.upstream.requests == []


@pytest.mark.fault("console commands: a command without its argument, or with a wrong one")
@pytest.mark.fault("console commands: a persona, model, session, grant or file that there is not")
@pytest.mark.fault("console commands: a folder, or a file over the limit, to attach")
async def test_a_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        shown = {line: await console.types(line) for line in WRONG}
    assert shown == {line: [sentence] for line, sentence in WRONG.items()}


async def test_clear_keeps_system_messages_and_starts_a_new_session(tmp_path: Path) -> None:
    async with talking(tmp_path, says("One."), says("Two.")) as console:
        await console.shows("/system Answer in French.", "Added system message: Answer in French.")
        await console.types("first")
        before = console.session_id
        await console.shows("/clear", "Conversation history cleared.")
        kept = console.history.get_messages()
        await console.types("second")
        after = console.session_id
        prompt, *sent = [item["content"] for item in console.upstream.requests[-1].messages]
    assert [item["content"] for item in kept] == ["Answer in French."]
    assert "Answer in French." in prompt
    assert sent == ["second"]
    assert before != after


@pytest.mark.fault("console commands: a persona, model, session, grant or file that there is not")
async def test_a_persona_is_chosen_for_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "coder.md").write_text("You write code.")
    (tmp_path / "poet.md").write_text("You write verse.")
    (tmp_path / "context.md").write_text(PERSONAS)
    context = {"definition_path": str(tmp_path / "context.md"), "persona": "coder"}
    async with talking(tmp_path, says("A poem."), context=context) as console:
        await console.shows("/persona", "Personas:\n- coder (current)\n- poet")
        wrong = await console.types("/persona painter")
        await console.shows("/persona persona_poet", "Persona: poet.")
        await console.types("Go on.")
        await console.shows("/persona default", "Persona: coder.")
        prompt = console.upstream.requests[0].messages[0]["content"]
    assert "no persona 'painter'" in wrong[0]
    assert "poet" in wrong[0]
    assert "You write verse." in prompt


@pytest.mark.fault("console commands: a persona, model, session, grant or file that there is not")
async def test_models_are_listed_and_one_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(tmp_path, says("Hi.")) as console:
        await console.shows("/model", "Model: test-model. The provider has:\n- test-model (current)")
        await console.shows(
            "/model test-modle", "Command: The provider has no model 'test-modle'. Did you mean test-model?"
        )
        await console.shows("/model test-model", "Model: test-model, from the next message on.")
    async with command_console(tmp_path, NO_MODEL) as console:
        await console.shows("/model", "Model: test-model. Its provider lists no others; /model NAME takes any.")
        await console.shows("/model any-other", "Model: any-other, from the next message on.")
        assert console.conversation.model == "any-other"
    async with ollama_peer() as peer:
        monkeypatch.setenv("OLLAMA_LOCAL", peer.url)  # tests have one that leads nowhere
        async with command_console(tmp_path, NO_MODEL, backend="ollama") as console:
            await console.shows("/model", "Model: test-model. The provider has:\n- test-model:latest (current)")
            await console.shows("/model test-model", "Model: test-model, from the next message on.")


async def test_tools_are_listed_with_effects_source_size_and_what_is_missing(tmp_path: Path) -> None:
    teps, servers = {"allowed_tools": ["calculator", "fs_read"]}, [{"name": "notes", "url": "http://127.0.0.1:9/mcp"}]
    async with command_console(tmp_path, NO_MODEL, teps=teps, mcp_servers=servers) as console:
        [listed] = await console.types("/tools")
    lines = listed.splitlines()
    assert lines[0].startswith("2 tools, about ")
    assert any(line.startswith("- calculator: ") and "agent" in line and line.endswith("tokens") for line in lines)
    assert any(line.startswith("- file_read or fs_read: working directory") for line in lines)
    assert "\n- notes: " in listed
    assert "- Python: no interpreter server is connected" in listed
    assert "- web search: no search server is connected" in listed
    assert "- not offered by the rules: " in listed
    assert "- files of DIAL Core: none is connected" in listed


@pytest.mark.fault("console commands: a persona, model, session, grant or file that there is not")
async def test_grants_are_listed_and_revoked_one_by_one_or_all(tmp_path: Path) -> None:
    async def granted(console: ListedConsole) -> None:
        store = await console.product.services.store.get()
        for text in ("every call of fs_write", "shell_run: commands that begin with 'git'", "every call of fs_edit"):
            await store.grants.add(OWNER, {"description": text}, seconds=3600)
        await store.grants.add("somebody else", {"description": "theirs"})

    async with command_console(tmp_path, NO_MODEL) as console:
        await asyncio.to_thread(run_blocking, granted, console)
        [listed] = await console.types("/permissions")
        await console.shows("/permissions revoke 4", "Command: There is no grant '4'; /permissions lists them.")
        [revoked] = await console.types("/permissions revoke 2")
        [rest] = await console.types("/permissions")
        await console.types("/permissions revoke all")
        await console.shows("/permissions", "Nothing is allowed for longer than one call.")
    assert [line.partition(",")[0] for line in listed.splitlines()[1:]] == [
        "1. every call of fs_write", "2. shell_run: commands that begin with 'git'", "3. every call of fs_edit",
    ]  # fmt: skip
    assert revoked.startswith("Revoked: shell_run: commands that begin with 'git'")
    assert "shell_run" not in rest


async def made_elsewhere(console: ListedConsole) -> list[str]:
    sessions = (await console.product.services.store.get()).sessions
    return [(await sessions.start(OWNER, title)).session_id for title in ("From the web page", "Another")]


@pytest.mark.fault("console commands: a persona, model, session, grant or file that there is not")
async def test_sessions_of_every_door_are_listed_and_chosen_by_number_or_id(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        await console.shows("/resume", "There are no sessions yet.")
        older, newer = await asyncio.to_thread(run_blocking, made_elsewhere, console)
        [listed] = await console.types("/resume")
        await console.types("/resume 2")
        by_number = console.session_id
        await console.types(f"/resume {newer}")
        by_id = console.session_id
        await console.shows("/resume 9", "Command: There is no session 9; /resume lists 2.")
    assert [line.partition(": ")[0] for line in listed.splitlines()[1:3]] == ["1. Another", "2. From the web page"]
    assert (by_number, by_id) == (older, newer)


@pytest.mark.fault("console commands: a conversation saved over a file, a folder, or where nothing can be written")
async def test_a_saved_conversation_is_the_same_when_it_is_read_and_is_never_overwritten(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        console.history.add_system_message("Be brief.")
        console.history.add_user_message("What is **25*47**?")
        console.history.add_tool_result_message("calculator", "1175", "call_1")
        console.history.add_assistant_message("1175")
        saved = await console.types("/save talk.json")
        [again] = await console.types("/save talk.json")
        await console.types("/clear")
        replaced = await console.types("/save --overwrite talk.md")
        file = console.folder / "talk.json"
        data = json.loads(file.read_text())
        page = (console.folder / "talk.md").read_text()
        [folder] = await console.types("/save --overwrite .")
        [nowhere] = await console.types("/save no/such/folder/x.md")
    history = MessageManager()
    history.deserialize(data)
    assert saved == [f"Saved 4 messages to {console.folder / 'talk.json'}."]
    assert again == f"Command: {file} exists already; /save --overwrite {file} replaces it."
    assert [item["content"] for item in history.get_messages()] == ["Be brief.", "What is **25*47**?", "1175", "1175"]
    assert (page, len(replaced)) == ("# Conversation\n\n## System\n\nBe brief.\n", 1)
    assert "cannot be written" in folder
    assert "cannot be written" in nowhere


async def test_the_cost_of_a_session_is_that_of_all_its_runs(tmp_path: Path) -> None:
    prices = {"test-model": {"prompt": 1_000_000, "completion": 2_000_000}}
    async with openai_upstream(then=says("Hi.")) as upstream:
        async with command_console(tmp_path, upstream.url, prices=prices) as console:
            await console.types("one")
            await console.types("two")
            [priced] = await console.types("/cost")
        async with command_console(tmp_path, upstream.url) as console:
            await console.types("three")
            [unpriced] = await console.types("/cost")
    total = int(priced.split()[0])
    assert "2 runs" in priced
    assert total > 0
    assert float(priced.rpartition("Cost: ")[2].removesuffix(".")) > total
    assert unpriced.endswith("Cost: unknown; the setting `prices` has the prices of models.")


async def test_retry_repeats_the_last_message_in_a_branch(tmp_path: Path) -> None:
    async with talking(tmp_path, says("One."), says("Two."), says("Better.")) as console:
        await console.types("first")
        await console.types("second")
        before = console.session_id
        await console.shows("/retry", "> second")
        after = console.session_id
        sent = [item["content"] for item in console.upstream.requests[-1].messages if item["role"] != "system"]
        asked = [item["content"] for item in console.history.get_messages(include_roles=["user"])]
    assert sent == ["first", "One.", "second"]
    assert asked == ["first", "second"]
    assert before != after


@pytest.mark.fault("console commands: a command while a turn runs")
async def test_while_a_turn_runs_only_commands_that_need_none_run(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        console.answering = True
        refused = [await console.types(line) for line in ("/clear", "/retry", "/system x", "/resume", "/reload")]
        ran = [await console.types(line) for line in ("/debug", "/cost", "/files", "/permissions")]
    assert refused == [
        [f"Command: {name} waits until the answer is complete; Ctrl-C stops it."]
        for name in ("/clear", "/retry", "/system", "/resume", "/reload")
    ]
    assert all(not shown[0].startswith("Command:") for shown in ran)


async def test_files_are_uploaded_to_core_and_go_with_the_next_message(tmp_path: Path) -> None:
    async with (
        openai_upstream(says("Read.")) as upstream,
        local_core({}, tmp_path) as core,
        command_console(tmp_path, upstream.url, dial_endpoint=core.url, dial_api_key=core.api_key) as console,
    ):
        (console.folder / "my notes.txt").write_text("notes")
        (console.folder / "table.csv").write_text("a,b\n1,2\n")
        attached = await console.types("/files my notes.txt")
        again = await console.types("/files 'my notes.txt'")
        await console.shows("/files", "Files of the next message:\n- my notes.txt")
        await console.types("Compare @table.csv, and write to me@example.com or @nobody.")
        await console.shows(
            "/files", "No file is attached. /files PATH attaches one to the next message; so does @PATH in a message."
        )
        question = upstream.requests[0].messages[-1]["content"]
    assert attached == again == ["Attached my notes.txt"]
    assert "- my notes.txt (text/plain): files/" in question
    assert "- table.csv (text/csv): files/" in question


@pytest.mark.fault("console commands: a folder, or a file over the limit, to attach")
@pytest.mark.fault("console commands: a file attached without DIAL Core")
async def test_without_core_pictures_travel_along_and_files_stay_where_tools_read_them(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "elsewhere.txt").write_text("outside")
    (work / "notes.txt").write_text("inside")
    (work / "dot.png").write_bytes(b"\x89PNG\r\n")
    (work / "huge.txt").write_text("x" * 1001)
    limits = {"max_upload_bytes": 1000}
    async with talking(tmp_path, says("Seen."), limits=limits) as console:
        await console.shows("/files notes.txt", "Attached notes.txt (the model reads it in the working directory)")
        await console.shows("/files dot.png", "Attached dot.png")
        [refused] = await console.types(f"/files {tmp_path / 'elsewhere.txt'}")
        await console.shows(
            "/files huge.txt", "Command: huge.txt has 1,001 bytes, 1,000 are allowed; attach the part that matters."
        )
        await console.shows("/files detach dot.png", "Detached: dot.png.")
        await console.types("What is in it?")
        question = console.upstream.requests[0].messages[-1]["content"]
    assert "cannot be attached: there is no DIAL Core to store it" in refused
    assert question == "What is in it?\n\nFiles in the working directory:\n- notes.txt"


@pytest.mark.fault("console commands: a bad or unknown setting at /reload")
async def test_reload_takes_edited_files_and_keeps_the_old_ones_in_use_when_they_are_bad(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text("Old guide.")
    (tmp_path / "context.md").write_text("## Docs\n\nguide: @guide.md\nmissing: @nothing.md\n")
    context = {"definition_path": str(tmp_path / "context.md")}
    async with talking(tmp_path, then=says("Yes."), context=context) as console:
        await console.types("one")
        session = console.session_id
        (tmp_path / "guide.md").write_text("New guide.")
        good = console.file.read_text()
        edited = json.loads(good) | {"deployment_name": "other-model", "history": {"max_length": 30}}
        console.file.write_text(json.dumps(edited))
        [read] = await console.types("/reload")
        await console.types("two")
        console.file.write_text("backend: [")
        [bad] = await console.types("/reload")
        console.file.write_text(json.dumps(edited | {"unknown_key": 1}))
        [unknown] = await console.types("/reload")
        await console.types("three")
        prompts = [item.messages[0]["content"] for item in console.upstream.requests]
        models = [item.body["model"] for item in console.upstream.requests]
        assert console.session_id == session
        asked = [item["content"] for item in console.history.get_messages(include_roles=["user"])]
        assert (asked, console.history.config.max_length) == (["one", "two", "three"], 30)
    assert "Old guide." in prompts[0]
    assert "New guide." in prompts[1]
    assert models == ["test-model", "other-model", "other-model"]
    assert "other-model" in read
    assert str(console.file) in bad
    assert "unknown_key" in unknown
    assert all("\n" not in line for line in (bad, unknown))


async def completed(console: ListedConsole, text: str) -> list[str]:
    return await asyncio.to_thread(complete, console, text)


async def test_commands_and_their_arguments_are_completed(tmp_path: Path) -> None:
    expected = {
        "/re": ["/resume", "/reload", "/retry"], "/Q": ["/quit"], "/permissions ": ["revoke"], "/help sy": ["system"],
        "/persona poet x": [], "re": [], "": [],
    }  # fmt: skip
    async with command_console(tmp_path, NO_MODEL) as console:
        assert {text: await completed(console, text) for text in expected} == expected


@pytest.mark.fault("console commands: secrets and hidden files to complete")
async def test_files_are_completed_after_an_at_sign_and_in_commands(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        for name in ("report.pdf", "my report.txt", ".hidden", "sub/inner.txt", ".env", "server.pem", "id_rsa", "a\nb"):
            (console.folder / name).parent.mkdir(exist_ok=True)
            (console.folder / name).write_text("x")
        everything = await completed(console, "Read @")
        hidden = await completed(console, "Read @.")
        inner = await completed(console, "Read @report.pdf and @sub/")
        spaced = await completed(console, "Read @my\\ r")
        files = await completed(console, "/files rep")
        saving = await completed(console, "/save --")
        outside = await completed(console, "Read @no/such/")
        await console.types("/files my report.txt")
        attached = await completed(console, "/files detach ")
    assert everything == ["@sub/", "@my\\ report.txt", "@report.pdf"]
    assert hidden == ["@.hidden"]
    assert inner == ["@sub/inner.txt"]
    assert spaced == ["@my\\ report.txt"]
    assert files == ["report.pdf"]
    assert saving == ["--overwrite"]
    assert outside == []
    assert attached == ["all", "my\\ report.txt"]


@pytest.mark.fault("console commands: a huge folder, or a huge text before the cursor, to complete")
async def test_a_huge_folder_and_a_huge_text_are_completed_within_bounds(tmp_path: Path) -> None:
    async with command_console(tmp_path, NO_MODEL) as console:
        for number in range(MOST + 20):
            (console.folder / f"file{number:03}.txt").touch()
        found = await completed(console, "@file")
        pasted = await completed(console, "x" * LONGEST + " @file")
    assert len(found) == MOST < MOST_READ
    assert pasted == []


def test_the_word_that_is_replaced_keeps_escaped_blanks() -> None:
    assert [last_word(text) for text in ("see @my\\ fi", "see ", "", "/he", "a\nb", "x\\")] == [
        "@my\\ fi", "", "", "/he", "b", "x\\",
    ]  # fmt: skip
