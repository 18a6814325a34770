"""The console's conversation: turns that fail, sessions shared with others, and what a start can go wrong with."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from task.closing import run_blocking
from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.errors import ComponentInitError
from task.llm.scripted import says, wants
from tests.support.command_console import ListedOutput, command_console, talking
from tests.support.upstream import (
    Item,
    Received,
    broken_off,
    error_in_stream,
    hanging,
    http_error,
    openai_upstream,
)  # fmt: skip

TABLE = "| Month | Sales |\n|---|---|\n| January | 10 |\n| February |"


def spoken(request: Received) -> list[str]:
    """The conversation as the model got it, without its system prompt."""
    return [item["content"] for item in request.messages if item["role"] != "system"]


@pytest.mark.fault("console: a model that refuses, or dies in the middle of a table")
@pytest.mark.parametrize(
    ("fault", "kept"),
    [
        (broken_off(says(TABLE, " 20 |"), chunks=2), True),
        (error_in_stream(says(TABLE, " 20 |"), chunks=2), True),
        (http_error(401), False),
        (http_error(400), False),
    ],
    ids=["dies_in_a_table", "error_in_the_stream", "refuses_the_key", "refuses_the_conversation"],
)
async def test_a_model_that_fails_is_one_line_with_a_reference_and_the_next_turn_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Item, kept: bool
) -> None:
    async with talking(tmp_path, fault, says("Here it is again.")) as console:
        await console.types("Show the sales.")
        assert console.failed
        out, err = capsys.readouterr()
        await console.types("Again, please.")
        assert not console.failed
        said = [item["content"] for item in console.history.get_messages(include_roles=["user", "assistant"])]
    assert "error reference" in err
    assert "Traceback" not in out + err
    assert "sk-test" not in out + err
    assert ("| Month |" in out) is kept
    assert ("| Month |" in "".join(spoken(console.upstream.requests[-1]))) is kept
    assert said[-1] == "Here it is again."


@pytest.mark.fault("console: an error that nobody expected")
async def test_an_unexpected_error_is_one_line_and_a_traceback_only_with_debug(tmp_path: Path) -> None:
    async with talking(tmp_path, then=says("Hi.")) as console:
        product = console.product
        console.conversation.show = console.conversation.product = None  # type: ignore[assignment]
        [plain] = await console.types("Hello")
        console.ui.debug_mode = True
        [whole] = await console.types("Hello")
        console.conversation.product = product
        await console.types("Hello")
        assert console.history.get_messages()[-1]["content"] == "Hi."
    assert "unexpected" in plain
    assert "\n" not in plain
    assert "Traceback" in whole


@pytest.mark.fault("console: two consoles in one session")
async def test_two_consoles_share_a_session_and_only_one_of_them_is_answered_at_a_time(tmp_path: Path) -> None:
    async with (
        openai_upstream(says("One."), hanging(says("Two and more."), chunks=1), says("Three.")) as upstream,
        command_console(tmp_path, upstream.url) as first,
        command_console(tmp_path, upstream.url) as second,
    ):
        await first.types("1")
        await second.types(f"/resume {first.session_id}")
        turn = asyncio.create_task(first.types("2"))
        await upstream.received(2, within=30)
        [refused] = await second.types("too early")
        await asyncio.to_thread(first.conversation.stop)
        await asyncio.wait_for(turn, 30)
        await second.types("3")
        sent = spoken(upstream.requests[-1])
        kept = [item["content"] for item in second.history.get_messages()]
    assert "is being answered already" in refused
    assert (sent[0], sent[1], sent[2], sent[-1]) == ("1", "One.", "2", "3")
    assert "too early" not in sent
    assert (kept[0], kept[2], kept[-1]) == ("1", "2", "Three.")


@pytest.mark.fault("console: a session that was deleted elsewhere")
async def test_a_session_that_was_deleted_elsewhere_is_named_and_another_one_starts(tmp_path: Path) -> None:
    async def deleted() -> None:
        store = await console.product.services.store.get()
        await store.sessions.delete(console.caller.owner, console.session_id or "")

    async with talking(tmp_path, says("One."), says("Two.")) as console:
        await console.types("1")
        await asyncio.to_thread(run_blocking, deleted)
        [gone] = await console.types("2")
        await console.types("/clear")
        await console.types("3")
        assert spoken(console.upstream.requests[-1]) == ["3"]
    assert "deleted elsewhere. /clear starts another one" in gone


@pytest.mark.fault("console: another provider in the middle of a conversation")
async def test_another_provider_continues_the_conversation(tmp_path: Path) -> None:
    async with openai_upstream(wants("calculator", expression="25*47"), says("1175"), says("Yes.")) as upstream:
        async with command_console(tmp_path, upstream.url) as console:
            await console.types("25*47?")
            core = {"backend": "dial", "dial_endpoint": upstream.endpoint, "dial_api_key": "key-one"}
            console.file.write_text(json.dumps({**json.loads(console.file.read_text()), **core}))
            await console.types("/reload")
            await console.types("Sure?")
            session, history = console.session_id, console.history.serialize()
            assert console.conversation.last is not None
        asked = upstream.requests[-1]
    assert asked.path.startswith("/openai/deployments/")
    assert asked.headers["api-key"] == "key-one"
    assert [item["role"] for item in asked.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert session is not None
    assert [item["role"] for item in history["messages"]][-2:] == ["user", "assistant"]


@pytest.mark.fault("console: a state file whose session is gone")
async def test_the_state_of_a_session_that_is_gone_starts_another_one(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    console_settings = {"state_file": str(state)}
    async with openai_upstream(says("Blue."), says("I said blue.")) as upstream:
        async with command_console(tmp_path, upstream.url, console=console_settings) as console:
            await console.types("Which colour?")
        state.write_text(state.read_text().replace(console_session := "sess_", "sess_x"))
        async with command_console(tmp_path, upstream.url, console=console_settings) as console:
            await console.types("What did you say?")
            assert (console.session_id or "").startswith(console_session)
    assert spoken(upstream.requests[-1]) == ["Which colour?", "Blue.", "What did you say?"]


def configured(folder: Path, **settings: Any) -> ConfigurationManager:
    file = folder / "config.yaml"
    file.write_text(json.dumps({"data_dir": str(folder / "data"), **settings}))
    return ConfigurationManager(str(file))


@pytest.mark.fault("console: a context, a policy or a state file that cannot be used")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context": {"definition_path": "/no/such/file.md"}}, "definition_path"),
        ({"teps": {"bash": {"blocked_commands": ["'"]}}}, "blocked_commands"),
    ],
    ids=["context", "policy"],
)
def test_what_cannot_be_initialised_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    output = ListedOutput()
    controller = FrameworkController(configured(tmp_path, **settings), ui=output)
    assert controller.initialize() is False
    with pytest.raises(ComponentInitError):
        controller.run()
    controller.shutdown()
    [line] = output.shown
    assert words in line.lower()
    assert "\n" not in line
