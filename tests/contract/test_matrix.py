"""One contract for all front doors and backends: every cell of the matrix gives the same trace of a conversation.

A trace is what the model was asked, what the person saw, and what the chat kept; ids, codes, times, durations and the
places of files are taken out of it, nothing else. Of `/v1` and `/chat` is compared what they share with DIAL: the
answer, the calls, every request to the model with its tools, and the questions put to a person.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.approvals.rules import DENIED
from task.coding.coder import Coder, Progress
from task.coding.coder import Reply as Decision
from task.conversation.messages import Role, user
from task.conversation.state import PENDING_KEY, TOOL_CALL_HISTORY_KEY
from task.llm.scripted import Reply
from task.product import Product as AgentProduct
from task.prompts import SYSTEM_PROMPT
from task.tools.models import Caller
from task.tools.toolbox import Pending
from tests.support.chat_reader import Answer
from tests.support.codes import codes_shown
from tests.support.core import API_KEY
from tests.support.http_api import Api
from tests.support.ollama import OllamaPeer, in_openais_shape, ollama_peer
from tests.support.product import Product, product, settings_of
from tests.support.scripts import Conversation, Turn, load_conversations
from tests.support.upstream import Received

FOLDER = Path(__file__).parent / "matrix"
CONVERSATIONS = load_conversations(FOLDER)
BACKENDS = ("dial", "openai", "ollama")
CONTEXT = 16_384  # of Ollama's model

Trace = list[dict[str, Any]]


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_every_door_and_backend_gives_the_same_trace(conversation: Conversation, tmp_path: Path) -> None:
    traces: dict[str, Trace] = {}
    for backend in BACKENDS:
        traces[f"DIAL door, {backend} backend"] = await through_the_dial_door(conversation, backend, tmp_path / backend)
    expected = next(iter(traces.values()))
    for cell, trace in traces.items():
        assert trace == expected, cell
    for turn, seen in zip(conversation.turns, expected, strict=True):
        said, asked, _ = seen["answer"].partition("**May I do")
        assert (said.strip(), bool(asked)) == (turn.answer, bool(turn.waits))
        assert seen["waits"] == turn.waits
        assert [call["tool"] for call in seen["calls"]] == [call.tool for call in turn.tool_calls]


async def through_the_dial_door(conversation: Conversation, backend: str, folder: Path) -> Trace:
    places: dict[str, str] = {}
    more: dict[str, Any] = {"backend": backend, "tool_paths": [str(FOLDER / "notes.py")]}
    if backend != "ollama":
        async with product(*replies(conversation, places), tmp_path=folder, **more) as running:
            return [await talked(turn, running, places) for turn in conversation.turns]
    more |= {"ollama": {"context_tokens": CONTEXT}}
    async with ollama_peer() as peer, product(tmp_path=folder, ollama_local=peer.url, **more) as running:
        await peer.load(CONTEXT)  # what is shown while a model is loaded is Ollama's alone
        return [await talked(turn, running, places, peer) for turn in conversation.turns]


def replies(conversation: Conversation, places: dict[str, str]) -> list[Callable[[Received], Reply]]:
    """The model's answers; `$report_csv` in them is the place of the attached report.csv once it is known."""

    def answer(data: Any, _: Received) -> Reply:
        return data.reply(places)

    return [partial(answer, data) for turn in conversation.turns for data in turn.model]


def said(turn: Turn, places: dict[str, str]) -> str:
    """What the person says; `CODE_1` in it is the first code of the last question."""
    return reduce(lambda text, name: text.replace(name, places[name]), places, turn.user)


def codes_of(turn: Turn, answer: str) -> dict[str, str]:
    return {f"CODE_{number}": code for number, code in enumerate(codes_shown(answer) if turn.waits else (), 1)}


async def talked(
    turn: Turn, running: Product, places: dict[str, str], peer: OllamaPeer | None = None
) -> dict[str, Any]:
    attachments: list[dict[str, Any]] = []
    for item in turn.attachments:
        content = (FOLDER / item["file"]).read_bytes()
        attachments.append(await running.reader.upload(item["title"], content, item["type"]))
        places[item["title"].replace(".", "_")] = attachments[-1]["url"]
    before = len(running.upstream.requests)
    if peer is not None:
        await peer.script(*(data.reply(places) for data in turn.model))
    answer = await running.reader.ask(said(turn, places), *attachments)
    assert answer.error is None, answer.error
    if peer is not None:
        running.upstream.requests += [in_openais_shape(request) for request in (await peer.seen()).requests[before:]]
    places |= codes_of(turn, answer.content)
    return normalised(trace_of(answer, running.upstream.requests[before:]), places)


def trace_of(answer: Answer, requests: list[Received]) -> dict[str, Any]:
    state = answer.state or {}
    kept = state.get(TOOL_CALL_HISTORY_KEY, [])
    calls = {call["id"]: call["function"] for message in kept for call in message.get("tool_calls", ())}
    return {
        "answer": answer.content,
        "finish_reason": answer.finish_reason,
        "calls": [{"tool": call["name"], "arguments": json.loads(call["arguments"])} for call in calls.values()],
        "stages": [[stage.name, stage.status, stage.content] for stage in answer.stages.values()],
        "asked": [request.messages for request in requests],
        "offered": [request.tools for request in requests],
        "kept": kept,
        "waits": [calls[item["call_id"]]["name"] for item in state.get(PENDING_KEY, ())],
        "form": answer.form_schema,
    }


def normalised(trace: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    text = json.dumps(trace, ensure_ascii=False)
    for name, place in places.items():
        text = text.replace(place, f"<{name}>")
    calls = dict.fromkeys(re.findall(r'"id": "([^"]+)"', text))
    for number, call in enumerate(calls):
        text = text.replace(f'"{call}"', f'"call {number}"')
    return json.loads(re.sub(r" \[\d+\.\d\ds\]|\(error reference: [0-9a-f]{8}\)", "", text))


COMMON = ("answer", "calls", "asked", "offered", "waits")


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_the_http_doors_give_the_trace_of_the_dial_door(conversation: Conversation, tmp_path: Path) -> None:
    whole = await through_the_dial_door(conversation, "dial", tmp_path / "dial")
    expected = [{name: turn[name] for name in COMMON} for turn in whole]
    for path in ("/v1/chat/completions", "/chat"):
        assert await through_http(conversation, path, tmp_path / path.rpartition("/")[2]) == expected, path


async def through_http(conversation: Conversation, path: str, folder: Path) -> Trace:
    places: dict[str, str] = {}
    more: dict[str, Any] = {"tool_paths": [str(FOLDER / "notes.py")], "dial_api_key": API_KEY}
    async with (
        product(*replies(conversation, places), tmp_path=folder, **more) as running,
        aiohttp.ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        session_id = (await api.post("/session/start")).json["session_id"]
        return [await talked_over_http(turn, api, path, session_id, places) for turn in conversation.turns]


async def talked_over_http(turn: Turn, api: Api, path: str, session_id: str, places: dict[str, str]) -> dict[str, Any]:
    content: Any = said(turn, places)
    if turn.attachments:
        files = [await stored(item, api, places) for item in turn.attachments]
        content = [{"type": "text", "text": turn.user}, *files]
    before = len(api.upstream.requests)
    question = {"messages": [{"role": "user", "content": content}], "system_prompt": SYSTEM_PROMPT}
    reply = await api.post(path, {**question, "session_id": session_id})
    assert reply.status == 200, reply.text
    body, requests = reply.json, api.upstream.requests[before:]
    messages = (await api.get(f"/session/{session_id}/messages")).json["messages"]
    waiting = (await api.get(f"/approvals?session_id={session_id}")).json["approvals"]
    answer = body["response"] if path == "/chat" else body["choices"][0]["message"]["content"]
    places |= codes_of(turn, answer)
    trace = {
        "answer": answer,
        "calls": calls_of(messages),
        "asked": [request.messages for request in requests],
        "offered": [request.tools for request in requests],
        "waits": [item["tool"] for item in waiting],
    }
    return normalised(trace, places)


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of the last turn: from its question on, or from the call that a decision was about."""
    start = max(place for place, message in enumerate(messages) if message["role"] == "user")
    calls = [call["function"] for message in messages[start:] for call in message.get("tool_calls", ())]
    return [{"tool": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]


async def stored(item: dict[str, Any], api: Api, places: dict[str, str]) -> dict[str, Any]:
    form = aiohttp.FormData()
    content = (FOLDER / item["file"]).read_bytes()
    form.add_field("file", content, filename=item["title"], content_type=item["type"])
    file = (await api.call("POST", "/v1/files", data=form)).json
    places[item["title"].replace(".", "_")] = file["url"]
    return {"type": "file", "file": {"file_id": file["id"]}}


NOT_FOR_THE_CODER = ("a file is read", "a question instead of a decision")  # no attachments; an answer ends a question


@pytest.mark.parametrize(
    "conversation",
    [conversation for conversation in CONVERSATIONS if conversation.name not in NOT_FOR_THE_CODER],
    ids=lambda conversation: conversation.name,
)
async def test_the_coding_door_asks_models_and_people_as_the_dial_door_does(
    conversation: Conversation, tmp_path: Path
) -> None:
    whole = await through_the_dial_door(conversation, "dial", tmp_path / "dial")
    for backend in BACKENDS:
        turns, waits, answers = await through_the_coding_door(conversation, backend, tmp_path / backend)
        assert turns == [{name: turn[name] for name in ("asked", "offered")} for turn in whole]
        assert waits == [turn["waits"] for turn in whole if turn["waits"]]
        assert "\n\n".join(answers) == "\n\n".join(turn.answer for turn in conversation.turns if turn.answer)


async def through_the_coding_door(
    conversation: Conversation, backend: str, folder: Path
) -> tuple[Trace, list[list[str]], list[str]]:
    """What the model was asked in each turn, which calls a person was asked about, and what the coder said.

    A decision belongs to the run that asks for it, so a turn that waits and the next one are one run here. Who answers
    nothing leaves: the last question of a conversation.
    """
    more: dict[str, Any] = {"backend": backend, "tool_paths": [str(FOLDER / "notes.py")]}
    script = [data.reply({}) for turn in conversation.turns for data in turn.model]
    async with (
        ollama_peer(*script) if backend == "ollama" else nullcontext() as peer,
        product(*script, tmp_path=folder, **more) as running,
    ):
        here: dict[str, Any] = {"ollama_local": peer.url} if peer is not None else {}
        coding = AgentProduct(settings_of(running.core, running.upstream, folder / "coding", {**more, **here}))
        waits: list[list[str]] = []
        turns = iter(conversation.turns)

        async def ask(pending: Sequence[Pending]) -> list[Decision]:
            waits.append([item.call.name for item in pending])
            answer = next(turns, None)
            if answer is None:
                raise EOFError
            return decided(pending, answer.user)

        progress = Progress([])
        coder = Coder(coding, None, Caller("key-one", nobody), coding.limits, None, lambda _: None, ask)
        with suppress(EOFError):
            for turn in turns:
                progress.messages.append(user(turn.user))
                await coder.run(progress)
        await coding.close()
        sent = (await peer.seen()).requests if peer is not None else []
    requests = iter(map(in_openais_shape, sent) if sent else running.upstream.requests)
    asked = [list(islice(requests, len(turn.model))) for turn in conversation.turns]
    trace = [{"asked": [each.messages for each in turn], "offered": [each.tools for each in turn]} for turn in asked]
    texts = [message.text() for message in progress.messages if message.role is Role.ASSISTANT and message.text()]
    return [normalised(turn, {}) for turn in trace], waits, texts


def decided(pending: Sequence[Pending], words: str) -> list[Decision]:
    """What `approve`, `deny because …`, and both with codes mean for these calls."""
    parts = words.split(", ") * (len(pending) if ", " not in words else 1)
    reasons = [part.partition(" because ")[2] for part in parts]
    return [
        Decision(allowed=part.startswith("approve"), reason=f"{DENIED}: {reason}" if reason else "")
        for part, reason in zip(parts, reasons, strict=True)
    ]


async def nobody() -> str:
    return ""
