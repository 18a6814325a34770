"""No door lets one request hold the agent's event loop: each callback is short, whatever a caller or a server sends."""

import io
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.benchmarks.figures import slowness
from tests.support.agent import agent_process
from tests.support.core import local_core
from tests.support.mcp_wire import listed, raw_server
from tests.support.office import paragraph, word_file
from tests.support.ports import free_port
from tests.support.product import MODEL
from tests.support.upstream import Received, Reply, openai_upstream, parallel_calls

MOST = 0.05  # seconds of the loop's own CPU time for one callback
# What takes longer, and how long at most: what is as large as is accepted.
LONGER: Mapping[str, float] = dict.fromkeys(("many wrong calls", "many messages", "many parts"), 0.1)
DIAL, V1 = "/openai/deployments/general-purpose-agent/chat/completions", "/v1/chat/completions"
KEY = {"Authorization": "Bearer key-one", "Api-Key": "key-one"}


def chat(*texts: str) -> dict[str, Any]:
    """A conversation of these texts, the user's first."""
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A request whose answer calls this tool."""
    return chat(f"CALL {tool} {json.dumps(arguments)}")


def of_user(**content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Look", "custom_content": content}]}


def history(number: int) -> dict[str, Any]:
    """A conversation with an answer that made so many calls, and their results."""
    names = [f"call_{place}" for place in range(number)]
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
    results = [{"role": "tool", "tool_call_id": name, "content": "x"} for name in names]
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls}
    return {"messages": [asked, said, *results, asked]}


def schema(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"k{place}": {"type": "string"} for place in range(number)}}


LINKS = " ".join(f"[a](https://b.example/{number})" for number in range(1_500))
RESULTS: Mapping[str, dict[str, Any]] = {
    "get_text": {"content": [{"type": "text", "text": "<a href='//e' " * 300_000}]},
    "get_parts": {"content": [{"type": "text", "text": f"https://a.example/{number}"} for number in range(4_000)]},
    "get_data": {"content": [], "structuredContent": {"a": [{f"k{n}": [n, {"b": str(n)}]} for n in range(5_000)]}},
    "get_links": {"content": [{"type": "text", "text": " ".join(f"https://a.example/{n}" for n in range(100_000))}]},
}
ANSWERS: Mapping[str, str] = {
    "links": LINKS, "tags": "<a " * 100_000, "brackets": "[" * 200_000, "calls": '{"name": "f", ' * 20_000,
    "markers": "[1, " * 50_000, "fences": "```\n" * 50_000, "quotes": "> " * 100_000,
}  # fmt: skip
# What is sent to the conversations' doors.
TALKS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "a long text": lambda: chat("x" * 4_000_000),
    "many messages": lambda: chat(*["hello"] * 4_999),
    "too many messages": lambda: chat(*["hello"] * 16_001),
    "much else": lambda: {**chat("hi"), "other": [{"k": number} for number in range(14_000)]},
    "too much else": lambda: {**chat("hi"), "metadata": {"a": [{"k": number} for number in range(300_000)]}},
    "many parts": lambda: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 9_900}]},
    "many calls": lambda: history(2_000),
    "a schema of the answer": lambda: {**chat("hi"), "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": schema(9_900)}}},
    "tools": lambda: {**chat("hi"), "tools": [
        {"type": "function", "function": {"name": f"f{n}", "parameters": schema(75)}} for n in range(128)]},
    "many addresses": lambda: chat(" ".join(f"https://a.example/{number}" for number in range(100_000)), "ok", "hi"),
    "many addresses in the answer": lambda: chat("x https://a.example/1 " * 180_000, "ok", "SAY links"),
    "many codes": lambda: chat("approve k7f3, " * 200_000),
    "an argument of one long word": lambda: call("calculator", expression="1+" * 200_000 + "1"),
    "arguments with many addresses": lambda: call("get_text", q=[{"k": f"http://a.b/{n}"} for n in range(20_000)]),
    "an argument with many addresses": lambda: call("get_text", q=" ".join(f"http://a.b/{n}" for n in range(20_000))),
    "a long argument": lambda: call("get_text", q="x" * 2_000_000),
    "an argument of many values": lambda: call("get_text", q=[{"k": number} for number in range(60_000)]),
    "an argument of many letters": lambda: call("get_text", **{"acommand" * 5_000: "x"}),
    "many wrong calls": lambda: chat("MANY 256 nothing"),
    "many right calls": lambda: chat("MANY 256 get_text"),
    "too many calls": lambda: chat("MANY 5000 nothing"),
    "reasoning": lambda: chat("REASON"),
    **{f"a result of {name}": lambda name=name: call(name) for name in RESULTS},
    **{f"an answer of {name}": lambda name=name: chat(f"SAY {name}") for name in ANSWERS},
}  # fmt: skip
SESSIONS = (*(f"a result of {name}" for name in RESULTS), "an answer of fences", "many right calls", "many messages")
LISTS = ("/v1/files", "/sessions", "/sessions/export", "/runs", "/traces?limit=1000", "/metrics")
LINES = ("- [ ] a\n", "http://a.b/(", "[a](b", "*a ", "|a|b\n", "> ", "<b>", "$a ", "`", "1. a\n")
OTHERS: Mapping[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "DIAL: a forged state": (DIAL, lambda: {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "custom_content": {"state": {
            "version": 5, "signature": "x", "tool_call_history": [{"role": "tool", "content": "x"}] * 9_000}}},
        {"role": "user", "content": "c"},
    ]}),
    "DIAL: many attachments": (DIAL, lambda: of_user(attachments=[
        {"type": "text/plain", "url": f"files/x/{number}.txt"} for number in range(9_900)])),
    "responses: many items": ("/v1/responses", lambda: {"input": [{"role": "user", "content": "a"}] * 16_000}),
    "responses: as many items as are taken": (
        "/v1/responses", lambda: {"input": [{"role": "user", "content": "a"}] * 4_999}),
    "responses: a long text": ("/v1/responses", lambda: {"input": "x" * 7_000_000}),
    "sessions: a name": ("/session/start", lambda: {"metadata": {"a": "x" * 7_000_000}}),
    **{f"markdown: {line!r}": ("/markdown", lambda line=line: {"texts": [line * (40_000 // len(line))]})
       for line in LINES},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Watched:
    """An agent whose loop is watched, and what held it since the last look."""

    url: str
    session: aiohttp.ClientSession
    report: Path

    async def held_by(self, path: str, body: dict[str, Any] | None = None) -> list[str]:
        """What held the loop longer while this was answered."""
        self.report.write_text("")
        method, kind = ("GET" if body is None else "POST"), {"Content-Type": "application/json"}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self.session.request(method, f"{self.url}{path}", data=data, headers=kind) as response:
            said = await response.text()
            assert response.status < 500 or "did not answer properly" in said, said
        return self.report.read_text(encoding="utf-8").splitlines()

    async def listed(self, name: str) -> list[dict[str, Any]]:
        """The first of these, the newest first."""
        async with self.session.get(f"{self.url}/{name}") as response:
            return (await response.json())[name]


def answered(received: Received) -> Reply:
    """What the model says to `SAY name` and `CALL tool arguments`."""
    last = received.messages[-1]
    said = last["content"] if last["role"] == "user" and isinstance(last["content"], str) else ""
    word, _, rest = said.partition(" ")
    if word == "READ":
        return wants("file_content_extraction_tool", file_url=re.findall(r"files/[^\s)>\]]+", said)[0])
    if word == "CALL":
        name, _, arguments = rest.partition(" ")
        return wants(name, **json.loads(arguments))
    if word == "MANY":
        number, _, name = rest.partition(" ")
        return parallel_calls(name, int(number))
    if word == "REASON":
        return says("Yes.", reasoning="<a " * 100_000)
    return says(ANSWERS[rest]) if word == "SAY" else says("Done.")


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncGenerator[Watched]:
    port, report = free_port(), tmp_path / "report"
    tools = listed(*RESULTS, annotations={"readOnlyHint": True})
    results: dict[str, Any] = {"tools/list": tools, "tools/call": lambda params: RESULTS[params["name"]]}
    async with openai_upstream(then=answered, strict=False) as upstream, raw_server(results) as server:
        model = {"type": "chat", "endpoint": f"{upstream.endpoint}/openai/deployments/{MODEL}/chat/completions"}
        config = {"models": {MODEL: model}, "keys": {"key-one": {"project": "ONE", "role": "default"}}}
        async with local_core(config, tmp_path) as core:
            variables = {
                "AGENT_HTTP__MODE": "dial", "AGENT_HTTP__TITLES": "off", "AGENT_DATA_DIR": str(tmp_path / "agent"),
                "AGENT_MCP_SERVERS": json.dumps([{"name": "peer", "url": server}]), "DEPLOYMENT_NAME": MODEL,
                "EMBEDDING_MODEL": "/no/embedding", "DIAL_ENDPOINT": core.url, "DIAL_API_KEY": "key-one",
            }  # fmt: skip
            watch = ["tests.support.loop_watch", str(report), str(MOST * slowness())]
            async with (
                agent_process(tmp_path / "home", port, variables, watch),
                aiohttp.ClientSession(headers=KEY, timeout=aiohttp.ClientTimeout(120)) as session,
            ):
                yield Watched(f"http://127.0.0.1:{port}", session, report)


def most_of(name: str) -> float:
    """The seconds that a callback may take; 0.1 for the events of a run with thousands of messages."""
    return 0.1 if name.endswith("/events") else LONGER.get(name.rpartition(": ")[2], MOST)


async def upload(agent: Watched, name: str, content: bytes) -> str:
    form = aiohttp.FormData()
    form.add_field("file", io.BytesIO(content), filename=name, content_type="application/octet-stream")
    async with agent.session.post(f"{agent.url}/v1/files", data=form) as response:
        return (await response.json())["id"]


@pytest.mark.system
@pytest.mark.fault("request: one that would hold the event loop, at every door")
async def test_no_request_holds_the_event_loop(tmp_path: Path) -> None:
    held: dict[str, list[str]] = {}
    async with watched(tmp_path) as agent:
        for path in (DIAL, V1, "/markdown"):  # what is imported at the first use
            await agent.held_by(path, call("get_links") | {"texts": ["a"]})
        for path in (DIAL, V1):
            for name, body in TALKS.items():
                held[f"{path}: {name}"] = await agent.held_by(path, body())
        for name, (path, body) in OTHERS.items():
            held[name] = await agent.held_by(path, body())
        pieces = {"a document": word_file(paragraph("x") * 20_000), "a long text": b"a b\n" * 2_000_000}
        for name, content in pieces.items():
            file = await upload(agent, "a.docx" if content[:2] == b"PK" else "a.txt", content)
            parts = [{"type": "text", "text": "READ it"}, {"type": "file", "file": {"file_id": file}}]
            held[f"files: {name}"] = await agent.held_by(V1, {"messages": [{"role": "user", "content": parts}]})
        for name in SESSIONS:
            held[f"sessions: {name}"] = await agent.held_by("/chat", TALKS[name]())
        for one in await agent.listed("sessions"):
            for rest in ("", "/messages", "/export", "/export?format=json", "/versions"):
                path = f"/session/{one['session_id']}{rest}"
                held[path] = await agent.held_by(path)
        for one in await agent.listed("traces"):
            for path in (f"/traces/{one['trace_id']}", f"/runs/{one['run_id']}/events"):
                held[path] = await agent.held_by(path)
        for path in LISTS:
            held[path] = await agent.held_by(path)
    slow = [
        f"{name}: {where}"
        for name, found in held.items()
        for where in found
        if float(where.split()[0]) > 1_000 * most_of(name) * slowness()
    ]
    assert not slow, "\n".join(slow)
