"""MCPClient and the hub against real servers: what they read, keep and report, and how they survive what goes wrong."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from aiohttp import web

from task.errors import ToolError
from task.tools.mcp.connection import MAX_EVENT_BYTES, CallIdentity
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import fit, model_name
from task.tools.mcp.results import MAX_ITEMS, MAX_TEXT_CHARS, Fault, MCPFailure, failure_of
from task.tools.models import Caller
from tests.support.clock import FakeClock
from tests.support.mcp_processes import PNG, ServerProcess, mcp_peer
from tests.support.mcp_wire import cable, hang, http_server, listed, raw_server
from tests.support.note_product import notes
from tests.support.waiting import until

ERAS = ["modern", "legacy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peer")


@pytest.fixture(scope="module", params=ERAS)
def peer(request: pytest.FixtureRequest, folder: Path) -> Iterator[ServerProcess]:
    with mcp_peer(folder, legacy=request.param == "legacy", token="sesame") as server:
        yield server


async def test_tools_come_with_their_schema_and_progress_and_meta_travel_beside_the_arguments(
    peer: ServerProcess,
) -> None:
    progress: asyncio.Queue[tuple[float, float | None, str | None]] = asyncio.Queue()
    client = await MCPClient.create(peer.url, token="sesame")  # it may be awaited, too
    try:
        tools = {tool.name: tool for tool in await client.get_tools()}
        await client.call("echo", {"text": "Hi"}, on_progress=lambda *report: progress.put(report))
        result = await client.call("caller", {}, meta={"here/conversation_id": "c1"})
    finally:
        await client.close()
    assert tools["echo"].description == "Says the same.\n\nIndented further down."
    assert tools["echo"].parameters["required"] == ["text"]
    assert (tools["echo"].repeatable, tools["write"].repeatable) == (True, False)
    assert (progress.get_nowait(), progress.empty()) == ((1, 2, "half way"), True)
    assert result.structured["meta"]["here/conversation_id"] == "c1"


async def test_text_files_and_json_of_results_are_kept_and_resources_can_be_read(peer: ServerProcess) -> None:
    async with MCPClient.create(peer.url, token="sesame") as client:
        failed, unknown = await client.call("fail", {}), await client.call("nothing", {})
        with pytest.raises(ToolError, match="the disc is full"):
            await client.call_tool("fail", {})
        picture, report = await client.call("picture", {}), await client.call("report", {})
        [file] = await client.read("peer://report.csv", max_bytes=1000)
        with pytest.raises(ToolError, match="larger than 3 bytes"):
            await client.read("peer://report.csv", max_bytes=3)
        numbers = await client.call("numbers", {})
    assert (failed.is_error, "the disc is full" in failed.text) == (True, True)
    assert (unknown.is_error, "nothing" in unknown.text) == (True, True)
    assert picture.text == "A dot."
    assert [(f.name, f.mime_type, f.content) for f in picture.files] == [("image_2.png", "image/png", PNG)]
    assert [f.uri for f in report.files] == ["peer://report.csv", "https://docs.example/manual"]
    assert (file.name, file.mime_type, file.content) == ("report.csv", "text/csv", b"a,b\n1,2\n")
    assert (numbers.structured, '"numbers"' in numbers.text) == ({"numbers": [1, 2]}, True)


@pytest.mark.fault("mcp: a result of 5 MB")
async def test_five_megabytes_are_cut_to_what_can_be_kept(peer: ServerProcess) -> None:
    async with MCPClient.create(peer.url, token="sesame") as client:
        result = await client.call("large", {}, on_progress=lambda *_: asyncio.sleep(0))
    assert result.text.startswith("x" * MAX_TEXT_CHARS)
    assert result.text.endswith("more characters were left out]")
    assert len(result.text) < MAX_TEXT_CHARS + 100


async def test_a_cancelled_call_is_cancelled_on_the_server(peer: ServerProcess, folder: Path) -> None:
    async with MCPClient.create(peer.url, token="sesame") as client:
        call = asyncio.create_task(client.call("wait", {"seconds": 30}))
        before = notes(folder).count("wait cancelled")
        await noted(folder, "wait begins", notes(folder).count("wait begins") + 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await noted(folder, "wait cancelled", before + 1)


@pytest.mark.fault("mcp: a call that takes too long")
async def test_a_call_that_takes_too_long_is_ended_on_both_sides(peer: ServerProcess, folder: Path) -> None:
    before = notes(folder).count("wait cancelled")
    async with MCPClient.create(peer.url, token="sesame", name="peer") as client:
        await client.get_tools()
        with pytest.raises(MCPFailure, match=r"peer did not answer within 2 s") as caught:
            await client.call("wait", {"seconds": 30}, timeout=2)
        await noted(folder, "wait cancelled", before + 1)
        assert await client.call_tool("echo", {"text": "again"}) == "again"
    assert caught.value.fault is Fault.TIMEOUT


@pytest.mark.fault("mcp: somebody else's key")
async def test_calls_at_once_do_not_see_each_others_keys(peer: ServerProcess) -> None:
    def who(number: int) -> CallIdentity:
        return CallIdentity({"Api-Key": f"key-{number}"}, partition=f"user-{number}", own=True)

    async with MCPClient.create(peer.url, token="sesame") as client:
        results = await asyncio.gather(*(client.call("caller", {}, identity=who(number)) for number in range(8)))
    assert [result.structured["headers"]["api-key"] for result in results] == [f"key-{number}" for number in range(8)]


async def test_no_more_calls_run_at_once_than_allowed(peer: ServerProcess) -> None:
    async with MCPClient.create(peer.url, token="sesame", parallel=2) as client:
        await client.get_tools()
        started = perf_counter()
        await asyncio.gather(*(client.call("wait", {"seconds": 0.1}) for _ in range(6)))
    assert perf_counter() - started >= 0.3


@pytest.mark.fault("mcp: a server restarted between calls")
@pytest.mark.fault("mcp: a server of the older protocol", case="legacy")
@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_comes_late_and_one_that_was_restarted_are_used(era: str, tmp_path: Path) -> None:
    with mcp_peer(tmp_path, legacy=era == "legacy", started=False) as server:
        async with MCPClient.create(server.url, name="late") as client:
            with pytest.raises(MCPFailure, match="late cannot be reached"):
                await client.get_tools()
            server.start()
            await client.get_tools()
            assert await client.call_tool("write", {"text": "one"}) == "written"
            server.kill()
            server.start()
            results = await asyncio.gather(*(client.call_tool("write", {"text": str(n)}) for n in range(10)))
            server.kill()
            with pytest.raises(MCPFailure) as caught:
                await client.call_tool("echo", {"text": "gone"})
    assert results == ["written"] * 10
    assert notes(tmp_path).count("write 3") == 1
    assert caught.value.fault is Fault.UNAVAILABLE


@pytest.mark.fault("mcp: a server that dies in a call")
async def test_only_a_call_that_may_be_repeated_is_made_twice_when_the_connection_breaks(
    peer: ServerProcess, folder: Path
) -> None:
    read, once = f"read {peer.port}", f"once {peer.port}"
    async with cable(peer.port) as wire, MCPClient.create(wire.url, token="sesame") as client:
        await client.get_tools()
        await client.call_tool("echo", {"text": "warm"})
        wire.cut_next = 1
        assert await client.call_tool("echo", {"text": read}) == read
        wire.cut_next = 1
        with pytest.raises(MCPFailure) as caught:
            await client.call_tool("write", {"text": once})
    assert caught.value.fault is Fault.LOST
    assert notes(folder).count(f"echo {read}") == 2
    await noted(folder, f"write {once}", 1)  # the connection may break before the server has started
    assert notes(folder).count(f"write {once}") == 1


@pytest.mark.fault("mcp: a server that answers 401", case="401")
@pytest.mark.fault("mcp: a server that answers 404", case="404")
@pytest.mark.fault("mcp: a server that answers 421", case="421")
@pytest.mark.fault("mcp: a server that answers 500", case="500")
@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (401, Fault.CREDENTIAL), (403, Fault.CREDENTIAL), (404, Fault.ADDRESS), (421, Fault.ADDRESS),
        (413, Fault.TOO_LARGE), (500, Fault.BROKEN), (503, Fault.UNAVAILABLE),
    ],
)  # fmt: skip
async def test_a_refusal_is_classified_by_its_status(status: int, fault: Fault) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text="no")

    async with http_server(refuse) as url, MCPClient.create(url, token="secret-token", name="it") as client:
        with pytest.raises(MCPFailure, match="server it") as caught:
            await client.get_tools()
    assert caught.value.fault is fault
    assert ("An operator has to look at its token" in str(caught.value)) is (fault is Fault.CREDENTIAL)
    assert ("secret" in str(caught.value), url in str(caught.value)) == (False, False)


@pytest.mark.fault("mcp: a server that hangs")
async def test_a_server_that_hangs_is_given_up_in_time_by_each_of_the_calls_at_once() -> None:
    async with http_server(hang) as url:
        async with MCPClient(url, name="slow", probe_seconds=0.2) as client, asyncio.timeout(20):
            with pytest.raises(MCPFailure) as caught:
                await client.get_tools()
        async with MCPClient(url, timeout=0.1, probe_seconds=1) as client, asyncio.timeout(12):
            calls = [client.call("echo", {"text": "?"}) for _ in range(16)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
    assert caught.value.fault is Fault.TIMEOUT
    assert {failure.fault for failure in failures if isinstance(failure, MCPFailure)} == {Fault.TIMEOUT}


@pytest.mark.fault("mcp: an answer of an unknown content type")
@pytest.mark.parametrize(
    ("kind", "body"), [("application/x-unknown", b"\x00\x01"), ("application/json", b"{"), ("text/html", b"<p>Hi</p>")]
)
async def test_an_answer_of_another_kind_is_broken(kind: str, body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind)

    async with http_server(answer) as url, MCPClient.create(url, name="it") as client:
        with pytest.raises(MCPFailure, match="cannot be understood") as caught:
            await client.get_tools()
    assert caught.value.fault is Fault.BROKEN
    results = {"tools/list": listed("smell"), "tools/call": {"content": [{"type": "smell", "data": "roses"}]}}
    async with raw_server(results) as url, MCPClient.create(url, name="it") as client:
        with pytest.raises(MCPFailure, match="cannot be understood"):
            await client.call("smell", {})


@pytest.mark.fault("mcp: a result of many megabytes or items, which would hold the event loop")
@pytest.mark.parametrize("older", [False, True], ids=["today", "older"])
async def test_results_are_bounded_before_they_are_read(older: bool) -> None:
    content = [{"type": "text", "text": "x"}] * 50_000
    results: dict[str, Any] = {"tools/list": listed("much"), "tools/call": {"content": content}}
    async with raw_server(results, older=older) as url, MCPClient.create(url, name="it") as client:
        assert (await client.call_tool("much", {})).count("x") == MAX_ITEMS
        content[:] = [{"type": "text", "text": "x" * MAX_EVENT_BYTES}]
        with pytest.raises(MCPFailure, match="answer without it"):
            await client.call("much", {})


@pytest.mark.fault("mcp: a list of tools without an end")
async def test_all_pages_of_a_list_are_read_and_an_endless_list_ends() -> None:
    def page(parameters: dict[str, Any]) -> dict[str, Any]:
        number = int(parameters.get("cursor", 0))
        return {**listed(f"tool_{number}"), "nextCursor": str(number + 1)}

    async with raw_server({"tools/list": page}) as url, MCPClient.create(url) as client:
        tools = await client.get_tools()
    assert [tool.name for tool in tools[:3]] == ["tool_0", "tool_1", "tool_2"]
    assert len(tools) == 51


async def test_a_kept_list_still_sends_arguments_as_headers_and_lets_every_result_through() -> None:
    shape = {
        "inputSchema": {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}},
        "outputSchema": {"type": "object", "required": ["degrees"]},
    }
    said = {"content": [{"type": "text", "text": "mild"}], "structuredContent": {"sky": "grey"}}
    results = {"tools/list": {**listed("weather", **shape), "ttlMs": 60_000}, "tools/call": said}
    seen: list[dict[str, Any]] = []
    async with raw_server(results, seen) as url, MCPClient.create(url) as client:
        await client.get_tools()
        answers = [await client.call_tool("weather", {"place": "Quillhaven"}) for _ in range(3)]
    calls = [request["headers"] for request in seen if request["method"] == "tools/call"]
    assert answers == ["mild"] * 3
    assert [headers["Mcp-Param-Place"] for headers in calls] == ["Quillhaven"] * 3
    assert [request["method"] for request in seen].count("tools/list") == 1


@pytest.mark.fault("mcp: a schema made to be checked for ever")
@pytest.mark.parametrize("older", [False, True], ids=["today", "older"])
async def test_the_patterns_of_a_server_are_run_neither_on_arguments_nor_on_results(older: bool) -> None:
    endless = "a" * 40 + "!"
    shape = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    results = {
        "tools/list": listed("match", inputSchema=shape, outputSchema=shape),
        "tools/call": {"content": [{"type": "text", "text": "done"}], "structuredContent": {"a": endless}},
    }
    async with raw_server(results, older=older) as url:
        hub = MCPHub([ServerSpec("it", url)])
        (tool,) = await hub.tools_at(url)
        assert tool.checked({"a": endless}) == {"a": endless}
        assert isinstance(tool, MCPTool)
        assert await tool.client.call_tool("match", {"a": endless}) == "done"
        await hub.close()


async def test_an_unrequested_cancellation_is_a_lost_connection() -> None:
    group = BaseExceptionGroup("", [asyncio.CancelledError()])
    failure = failure_of(group, "it", 1, [], session=False)
    assert failure is not None
    assert failure.fault is Fault.LOST


async def test_a_stop_is_not_a_failure_whatever_else_breaks() -> None:
    async def stopped() -> MCPFailure | None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return failure_of(ExceptionGroup("", [BrokenPipeError()]), "it", 1, [], session=False)
        return None

    call = asyncio.create_task(stopped())
    await asyncio.sleep(0)
    call.cancel()
    assert await call is None


async def noted(folder: Path, line: str, times: int) -> None:
    """Wait until the peer has noted the line so many times."""
    await until(lambda: notes(folder).count(line) >= times)


ROOT = Path(__file__).parents[2]


def caller(name: str = "ann") -> Caller:
    async def principal() -> str:
        return name

    return Caller(f"key-of-{name}", principal, "conversation", {"X-Tag": "1", "traceparent": "00-1"})


async def names(hub: MCPHub, who: Caller | None = None) -> list[str]:
    return [tool.name for tool in (await hub.discover(who or caller())).tools]


@pytest.mark.fault("mcp: a list of tools that changes")
async def test_a_list_is_kept_and_refreshed_behind_the_requests() -> None:
    offered, asked, clock = ["one"], list[dict[str, Any]](), FakeClock()
    async with raw_server({"tools/list": lambda _: listed(*offered)}, asked) as url:
        hub = MCPHub([ServerSpec("it", url)], clock=clock.now, fresh_seconds=60)
        assert await names(hub) == ["one"]
        offered.append("two")
        before = len(asked)
        assert await names(hub) == ["one"]
        assert len(asked) == before
        await clock.advance(61)
        assert await names(hub) == ["one"]  # the request that finds the list old does not wait for the new one
        async with asyncio.timeout(20):
            while await names(hub) != ["one", "two"]:
                await asyncio.sleep(0.01)
        await hub.close()


async def test_a_second_server_waits_until_the_import_for_the_first_one_is_complete() -> None:
    program = """
import asyncio, sys
from task.tools.mcp.connection import sdk_loaded

async def main():
    first = asyncio.create_task(sdk_loaded())
    while "mcp" not in sys.modules:
        await asyncio.sleep(0)
    await sdk_loaded()
    print(hasattr(sys.modules["mcp"], "Client"))
    await first

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 45)
    assert (process.returncode, printed.decode().strip()) == (0, "True")


@pytest.mark.fault("mcp: names that models may not use, and names that clash")
async def test_tools_of_one_name_are_kept_apart_and_an_alias_of_another_tool_is_not_a_servers_own_name() -> None:
    offers = {"tools/list": lambda _: listed("web_search", "find")}
    async with raw_server(offers) as url, raw_server({"tools/list": listed("own")}) as other:
        hub = MCPHub([ServerSpec("intranet", url), ServerSpec("some", url)])
        assert [tool.name for tool in await hub.tools_at(other)] == ["own"]  # which no request gets
        assert await names(hub) == ["intranet_web_search", "find", "some_web_search", "some_find"]
        assert [tool.name for tool in await hub.tools_at(url)] == ["intranet_web_search", "find"]
        await hub.close()


@pytest.mark.fault("mcp: a server that hangs")
async def test_a_server_that_hangs_delays_one_request_and_no_more() -> None:
    asked: list[str] = []

    async def noted(request: web.Request) -> web.Response:
        asked.append(request.path)
        return await hang(request)

    async with http_server(noted) as url:
        hub = MCPHub([ServerSpec("it", url)], patience=0.2)
        async with asyncio.timeout(20):
            first = await hub.discover(caller())
            waited_for = len(asked)
            second = await hub.discover(caller())
        assert len(asked) == waited_for
        await hub.close()
    assert [issue.server for issue in (*first.issues, *second.issues)] == ["it", "it"]


@pytest.mark.fault("mcp: somebody else's key")
async def test_a_trusted_server_lists_with_each_callers_own_key_and_others_see_the_trace_alone() -> None:
    asked, elsewhere = list[dict[str, Any]](), list[dict[str, Any]]()
    async with raw_server({"tools/list": listed("one")}, asked) as url:
        hub = MCPHub([ServerSpec("toolset", url, forward_key=True)])
        assert await names(hub, caller("ann")) == ["one"]
        assert await names(hub, caller("bob")) == ["one"]
        assert await names(hub, caller("ann")) == ["one"]
        assert (await hub.discover(None)).tools == ()
        await hub.close()
    keys = [request["headers"].get("Api-Key") for request in asked if request["method"] == "tools/list"]
    assert keys == ["key-of-ann", "key-of-bob"]
    assert all(request["headers"].get("X-Tag") == "1" for request in asked)
    async with raw_server({"tools/list": listed("one")}, elsewhere) as url:
        hub = MCPHub([ServerSpec("it", url, headers={"X-Team": "blue"})])
        await names(hub)
        await hub.close()
    found = [{name: request["headers"].get(name) for name in ("traceparent", "X-Team")} for request in elsewhere]
    assert all(headers == {"traceparent": "00-1", "X-Team": "blue"} for headers in found)
    assert all("Api-Key" not in request["headers"] and "X-Tag" not in request["headers"] for request in elsewhere)


@pytest.mark.fault("mcp: a list of tools without an end")
async def test_only_allowed_tools_are_offered_and_never_more_than_a_hundred() -> None:
    many = [f"tool_{number}" for number in range(150)]
    async with raw_server({"tools/list": listed(*many)}) as url:
        some, every = MCPHub([ServerSpec("it", url, tools=frozenset({"tool_7"}))]), MCPHub([ServerSpec("it", url)])
        assert await names(some) == ["tool_7"]
        assert len(await names(every)) == 100
        await some.close()
        await every.close()


@pytest.mark.parametrize(
    ("tool", "expected"), [("ok_1", "ok_1"), ("a b/c", "a_b_c"), ("шум", "tool"), ("", "tool"), ("a" * 64, "a" * 64)]
)
def test_names_are_brought_into_the_letters_models_may_use(tool: str, expected: str) -> None:
    assert fit(tool) == expected
    assert fit("a" * 65) != fit("a" * 66)
    assert len(fit("a" * 65)) == 64
    assert model_name("find", "b", {"find", "b_find"}).startswith("b_find_")
