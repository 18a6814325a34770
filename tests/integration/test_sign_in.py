"""A toolset, or a service behind a tool, that wants the user to sign in: one dialog for all of them, or a sentence."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.core_client import channel
from task.core_client.channel import Dialogs
from task.core_client.models import Caller
from task.llm.scripted import says, wants
from task.llm.transport import new_session
from task.tools.mcp.hub import Discovered, MCPHub, ServerSpec
from task.tools.toolbox import Toolbox
from tests.support.choices import RecordingChoice
from tests.support.core_more import chat_channel
from tests.support.product import product
from tests.support.sign_in_core import CHANNEL, Dialog, SignInCore, saying, sign_in_core
from tests.support.tools import answering

SERVICE = "applications/public/crm/external_services/sales"
SERVERS = ("mail", "calendar")


def user(channel_id: str = CHANNEL) -> Caller:
    async def principal() -> str:
        return "ann"

    return Caller("key", principal, "chat", {"x-dial-client-channel-id": channel_id} if channel_id else {})


@asynccontextmanager
async def toolsets(
    dialog: Dialog | None = None, *signed_in: str, trusted: bool = True, **more: Any
) -> AsyncGenerator[tuple[SignInCore, MCPHub]]:
    """Core with two toolsets, those of `signed_in` open, and the hub that uses them."""
    async with sign_in_core(dialog) as core, new_session(20) as session:
        core.signed_in.update(signed_in)
        for name, value in more.items():
            setattr(core, name, value)
        specs = [
            ServerSpec(name, f"{core.url}/v1/toolset/{name}/mcp", forward_key=trusted, toolset=name if trusted else "")
            for name in SERVERS
        ]
        hub = MCPHub(specs, sign_in=Dialogs(session, core.url).sign_in)
        yield core, hub
        await hub.close()


async def step(found: Discovered, *names: str, caller: Caller | None = None) -> tuple[list[str], RecordingChoice]:
    """The results of one step that calls these tools at once."""
    choice, calls = RecordingChoice(), [ToolCall(f"call_{name}", FunctionCall(name, "{}")) for name in names]
    toolbox = Toolbox([*found.tools, answering("own", "done")])
    async with asyncio.timeout(20):
        results = await toolbox.call_all(calls, choice, caller or user())
    return [item.text() for item in results if isinstance(item, Message)], choice


async def test_one_dialog_opens_for_all_toolsets_whose_tools_cannot_be_listed() -> None:
    async with toolsets() as (core, hub):
        found, again = await hub.discover(user()), await hub.discover(user())
        assert (
            [tool.name for tool in found.tools] == [tool.name for tool in again.tools] == ["use_mail", "use_calendar"]
        )
        assert core.targets() == [["mail", "calendar"]]
        assert [entry["method"] for entry in core.batches[0]] == ["toolset/signin"] * 2


async def test_one_dialog_opens_for_all_calls_of_a_step_and_each_is_repeated_once() -> None:
    async with toolsets(None, *SERVERS) as (core, hub):
        found = await hub.discover(user())
        core.signed_in.clear()
        results, choice = await step(found, "use_mail", "own", "use_calendar", "use_mail")
        assert results == ["mail used", "done", "calendar used", "mail used"]
        assert list(map(sorted, core.targets())) == [["calendar", "mail"]]
        assert sorted(core.calls) == ["calendar", "mail", "mail"]
        assert [stage.status for stage in choice.stages] == ["completed"] * 4


async def test_a_service_behind_a_tool_is_signed_in_to_and_the_call_is_repeated_once() -> None:
    async with toolsets(None, *SERVERS, service=SERVICE) as (core, hub):
        results, _ = await step(await hub.discover(user()), "use_mail")
        assert results == ["mail used"]
        assert core.batches[0][0] | {"id": ""} == {
            "jsonrpc": "2.0", "id": "", "method": "external-service/signin", "params": {"url": SERVICE},
        }  # fmt: skip
        assert core.calls == ["mail", "mail"]


@pytest.mark.fault(
    "sign-in: a challenge that names something other than a service, or comes from a server outside Core"
)
@pytest.mark.parametrize(
    "scope",
    [
        SERVICE,
        "https://evil.example/external_services/x",
        "a/../external_services/b",
        "a/%2e%2E/external_services/b",
        "",
    ],
)
async def test_a_server_that_is_not_trusted_with_the_key_or_asks_for_something_else_opens_no_dialog(scope: str) -> None:
    async with toolsets(None, *SERVERS, trusted=scope != SERVICE, service=scope or "x" * 5_000) as (core, hub):
        results, _ = await step(await hub.discover(user()), "use_mail")
        assert results == ["Error: use_mail failed without saying why."]
        assert (core.batches, core.calls) == ([], ["mail"])


async def closes(batch: list[dict[str, Any]]) -> None:
    return None


async def sends(data: bytes, batch: list[dict[str, Any]]) -> bytes:
    return data


REFUSALS: dict[str, tuple[Dialog | None, Caller, str]] = {
    "the user refuses": (saying("denied"), user(), "the user did not"),
    "the channel closes": (closes, user(), "the user did not"),
    "the channel is another's": (None, user("channel-of-bob"), "the user did not"),
    "there is no channel": (None, user(""), "this client has no dialog"),
    "the results are not JSON": (partial(sends, b"data: [[[\n\n"), user(), "the user did not"),
    "the results are huge": (partial(sends, b"data: " + b"[" * 10_000_000), user(), "the user did not"),
    "the results are of others": (
        partial(sends, b'data: [{"id": {}, "result": []}, 7]\n\n'),
        user(),
        "the user did not",
    ),
    "the sign-in changes nothing": (saying("success"), user(), "still refuses access"),
}


@pytest.mark.fault(
    "sign-in: a dialog that is refused, closes, is another's, or answers nonsense; a client without dialogs"
)
@pytest.mark.parametrize("case", REFUSALS)
async def test_without_a_sign_in_there_is_a_sentence_and_the_other_tools_go_on(case: str) -> None:
    dialog, caller, words = REFUSALS[case]
    async with toolsets(dialog, "mail") as (core, hub):
        found = await hub.discover(caller)
        dialogs = len(core.batches)
        again = await hub.discover(caller)
        assert [tool.name for tool in found.tools] == ["use_mail"]
        [issue] = again.issues
        assert str(issue).startswith("calendar ")
        assert words in str(issue)
        assert len(core.batches) == (2 if words.startswith("still") else dialogs)  # a refusal holds for a while
        core.signed_in.clear()
        results, _ = await step(found, "use_mail", "own", caller=caller)
        dialogs = len(core.batches)
        repeated, _ = await step(found, "use_mail", "own", caller=caller)
        assert words in results[0]
        assert (results[1], core.calls, repeated) == ("done", [], results)
        assert (len(core.batches) == dialogs) == (not words.startswith("still"))


@pytest.mark.fault("sign-in: a user who does not answer the dialog")
async def test_a_dialog_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert channel.SECONDS == 120
    monkeypatch.setattr(channel, "SECONDS", 0.2)

    async def waits(batch: list[dict[str, Any]]) -> None:
        await asyncio.Event().wait()

    async with toolsets(waits, "mail") as (core, hub):
        found = await hub.discover(user())
        assert "the user did not" in str(found.issues[0])
        await asyncio.wait_for(core.left.wait(), 20)


@pytest.mark.fault("sign-in: an answer that is stopped while a dialog is open, so that the sign-in comes after its end")
async def test_nothing_runs_on_when_the_answer_is_stopped_in_the_dialog() -> None:
    async def waits(batch: list[dict[str, Any]]) -> None:
        await asyncio.Event().wait()

    async with toolsets(waits, *SERVERS) as (core, hub):
        found = await hub.discover(user())
        core.signed_in.clear()
        answer = asyncio.create_task(step(found, "use_mail", "use_calendar"))
        await asyncio.wait_for(core.opened.wait(), 20)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        await asyncio.wait_for(core.left.wait(), 20)
        core.signed_in.update(SERVERS)  # too late
        assert (core.calls, len(core.batches)) == ([], 1)


async def test_in_dial_the_chats_dialog_opens_in_the_answer_which_then_uses_the_tools(tmp_path: Path) -> None:
    async with sign_in_core() as remote:

        async def agrees(call: dict[str, Any]) -> str:
            remote.signed_in.add(call["params"]["toolsetId"])
            return "success"

        places = {name: {"endpoint": f"{remote.url}/v1/toolset/{name}/mcp", "transport": "HTTP"} for name in SERVERS}
        servers = [{"name": name, "url": f"toolset:{name}"} for name in SERVERS]
        script = (wants("use_mail") & wants("use_calendar"), says("Both used."))
        async with (
            product(*script, tmp_path=tmp_path, toolsets=places, mcp_servers=servers) as p,
            chat_channel(p.core.url, "key-one", agrees) as chat,
        ):
            p.reader.headers = chat.headers
            answer = await p.reader.ask("Use both")
            assert [call["params"]["toolsetId"] for call in chat.asked] == list(SERVERS)
    assert answer.content == "Both used."
    assert {stage.status for stage in answer.stages.values()} == {"completed"}
    results = [item["content"] for item in p.upstream.requests[-1].messages if item["role"] == "tool"]
    assert results == ["mail used", "calendar used"]
