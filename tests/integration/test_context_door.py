"""Context, history and traces behind the DIAL door: what the model gets, and what is stored of a request."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.errors import SettingsError
from task.llm.base import Usage
from task.llm.dial import ModelListings
from task.llm.scripted import Reply, says, wants
from task.llm.transport import new_session
from task.server import create_app
from task.settings import Settings
from task.store.trace_records import Trace
from tests.support.core import local_core
from tests.support.core_peers import DONE, chunk, peer, streams
from tests.support.product import MODEL, product
from tests.support.stores import opened
from tests.support.upstream import Received, http_error

DEFINITION = """\
initial_prompt_template: "You help the team."
## Personas
persona_critic: @critic.md
persona_poet: @poet.md
## Documents
guide: @guide.md
missing: @missing.md
"""


def context(folder: Path) -> Path:
    for name, text in {"FRAMEWORK_CONTEXT.md": DEFINITION, "guide.md": "Guide.", "critic.md": "Doubt."}.items():
        (folder / name).write_text(text)
    return folder / "FRAMEWORK_CONTEXT.md"


def size(request: Received) -> int:
    return sum(len(str(message.get("content", ""))) for message in request.messages[1:])


@pytest.mark.fault("context: a missing or unreadable definition")
@pytest.mark.parametrize(
    ("chosen", "says_so"),
    [
        ({"definition_path": "nowhere.md"}, "AGENT_CONTEXT__DEFINITION_PATH: The context definition"),
        ({"persona": "pope"}, "there is no persona 'pope'. There are: critic."),
    ],
)
async def test_a_context_that_cannot_be_used_stops_the_start(
    tmp_path: Path, chosen: dict[str, str], says_so: str
) -> None:
    named = {"definition_path": context(tmp_path), **chosen}
    with pytest.raises(SettingsError) as caught:
        create_app(Settings.model_validate({"context": named}))
    assert says_so in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("history: a conversation longer than the model takes")
async def test_a_conversation_over_the_limit_is_shortened_for_the_model_and_whole_in_the_chat(tmp_path: Path) -> None:
    def answer(request: Received) -> Reply:
        return wants("calculator", expression="1+1") if request.last["role"] == "user" else says("long " * 200)

    reply = None
    async with product(tmp_path=tmp_path, then=answer, history={"max_tokens": 6000}) as p:
        for number in range(12):
            reply = await p.reader.ask(f"question {number} " + "word " * 200)
            assert reply.error is None
    sent, kept = p.reader.messages[:-1], {item.get("content") for item in p.upstream.requests[-1].messages}
    gone = [place for place in range(2, len(sent), 2) if sent[place]["content"] not in kept]
    # The chat marks what the model did not get: whole turns, and of the first one the answer.
    assert reply is not None
    assert reply.statistics is not None
    assert reply.statistics["discarded_messages"] == sorted([1, *gone, *(place + 1 for place in gone)])
    assert len(gone) > 2
    first, last = p.upstream.requests[0].messages, p.upstream.requests[-1].messages
    assert len(p.reader.messages) == 24
    assert max(map(size, p.upstream.requests)) < 6000 * 4
    assert len(last) < 30
    assert (last[0], last[1]) == (first[0], first[1])
    assert last[2]["content"].startswith("[Summary of earlier messages")


@pytest.mark.fault("history: a conversation longer than the model takes")
async def test_a_conversation_that_the_model_refuses_as_too_long_is_sent_shorter_once(tmp_path: Path) -> None:
    too_long = http_error(
        400,
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 8192 tokens.",
        code="context_length_exceeded",
    )
    async with product(says("long " * 500), says("long " * 500), too_long, says("Yes."), tmp_path=tmp_path) as p:
        await p.reader.ask("question 1")
        await p.reader.ask("question 2")
        answer = await p.reader.ask("now")
    assert (answer.content, answer.error) == ("Yes.", None)
    refused, accepted = p.upstream.requests[2], p.upstream.requests[3]
    assert size(accepted) < size(refused)
    assert accepted.last["content"] == "now"


async def test_the_listing_gives_the_size_of_a_models_window(tmp_path: Path) -> None:
    windows: list[tuple[dict[str, int] | None, int | None]] = [
        ({"maxTotalTokens": 128_000}, 128_000 - 4096),
        ({"maxTotalTokens": 8000}, 6000),
        ({"maxPromptTokens": 100_000, "maxCompletionTokens": 4096}, 100_000),
        ({}, None),
        (None, None),
    ]
    model = {"type": "chat", "endpoint": "http://127.0.0.1:9/x"}
    models = {
        f"m{number}": model if limits is None else {**model, "limits": limits}
        for number, (limits, _) in enumerate(windows)
    }
    async with local_core({"models": models}, tmp_path) as core, new_session() as session:
        listings = ModelListings(session, core.url)
        found = [await listings.request_tokens(name, core.api_key) for name in (*models, "unknown")]
    assert found == [*(tokens for _, tokens in windows), None]


SUM = wants("calculator", expression="25*47")
ANSWER = says("It is ", "1175.", usage=Usage(120, 5))  # the model counts 10 and 5 for the call before


async def traces(tmp_path: Path, at_least: int = 1) -> tuple[Trace, ...]:
    """The stored traces with their whole results, oldest first."""
    async with opened(f"sqlite:///{tmp_path / 'agent' / 'store.db'}", chores=False) as store, asyncio.timeout(20):
        while len(listed := (await store.traces.list(None)).items) < at_least:
            await asyncio.sleep(0.02)
        return tuple([await store.traces.get("", trace.trace_id) for trace in reversed(listed)])


async def test_a_dial_request_leaves_names_sizes_times_and_tokens_but_no_texts(tmp_path: Path) -> None:
    # Twelve digits: a shorter result may occur by chance in a stored id or duration.
    calculation, result = "734159*862073", "632898651607"
    call = wants("calculator", expression=calculation)
    answer = says("It is ", f"{result}.", usage=Usage(120, 5))
    async with product(call, answer, tmp_path=tmp_path, prices={MODEL: {"prompt": 1, "completion": 2}}) as p:
        shown = await p.reader.ask(f"What is {calculation}, for the Mandelbaum account?")
        [trace] = await traces(tmp_path)  # the process still runs
    assert (trace.door, trace.status, trace.model, trace.history) == ("dial", "finished", MODEL, 0)
    assert [(turn.role, turn.content) for turn in trace.turns] == [
        ("user", None), ("assistant", None), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert [turn.size for turn in trace.turns] == [50, 0, 12, 19]
    [stored_call] = trace.tool_calls
    assert (stored_call.name, stored_call.arguments, stored_call.result) == ("calculator", {}, "")
    assert stored_call.result_length == len(p.upstream.requests[1].last["content"]) == len(result)
    assert (trace.total_tokens, trace.cost) == (140, pytest.approx((130 + 2 * 10) / 1e6))
    stored = b"".join(file.read_bytes() for file in (tmp_path / "agent").glob("store.db*"))
    assert result in shown.content
    for text in ("Mandelbaum", result, calculation):
        assert text.encode() not in stored


async def test_every_request_has_a_trace_of_its_own_with_its_texts_where_they_are_kept(tmp_path: Path) -> None:
    chosen = {"max_tokens": 500, "top_p": 0.5, "top_k": 20}
    options: dict[str, Any] = {"trace_content": True, "temperature": 0.3, "llm": chosen}
    async with product(SUM, ANSWER, says("You asked."), tmp_path=tmp_path, **options) as p:
        await p.reader.ask("25*47?")
        await p.reader.ask("Did I?")
    first, second = await traces(tmp_path, 2)
    assert [turn.content for turn in first.turns] == ["25*47?", None, "1175", "It is 1175."]
    assert first.tool_calls[0].arguments == {"expression": "25*47"}
    assert (first.history, second.history, len(second.turns)) == (0, 2, 2)
    sent = p.upstream.requests[0].body
    assert {name: sent[name] for name in ("temperature", *chosen)} == {"temperature": 0.3, **chosen}


async def test_a_failed_request_leaves_what_failed_without_the_models_words(tmp_path: Path) -> None:
    async with product(http_error(400), tmp_path=tmp_path) as p:
        await p.reader.ask("SECRET")
    [trace] = await traces(tmp_path)
    assert (trace.status, trace.turns[0].size) == ("failed", 6)
    assert trace.error is not None
    assert trace.error.startswith("the model failed (status 400")


@pytest.mark.fault("store: no database at the start")
async def test_an_answer_does_not_need_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "no-database").write_text("words " * 1000, encoding="utf-8")
    nowhere = {"url": f"sqlite:///{tmp_path / 'no-database'}"}
    async with product(SUM, ANSWER, says("Yes."), tmp_path=tmp_path, store=nowhere) as p:
        assert (await p.reader.ask("25*47?")).content == "It is 1175."
        assert (await p.reader.ask("Sure?")).content == "Yes."
    said = [record.message for record in caplog.records if "sessions and traces are not kept" in record.message]
    assert said == [
        "sessions and traces are not kept: The store's file is not a database, or it is damaged. "
        "An operator has to check it."
    ]


async def test_the_tokens_are_reported_for_each_model_that_a_run_used(tmp_path: Path) -> None:
    asks = wants("look", prompt="a") & wants("look", prompt="b")
    turn = (asks, says("Two.", usage=Usage(70, 8)), says("Hi.", usage=Usage(5, 1)))
    look = {"name": "look", "description": "Looks.", "deployment": "seer"}
    spent = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
    async with peer(streams(chunk({"content": "One."}), chunk({}, "stop", usage=spent), DONE)) as seer:
        models = {"seer": {"type": "chat", "endpoint": f"{seer.url}/chat/completions"}}
        async with product(*turn, tmp_path=tmp_path, models=models, deployments={"tools": [look]}) as p:
            both, alone = await p.reader.ask("What is there?"), await p.reader.ask("Hi", stream=False)
    used = [answer.usage for answer in (both, alone)]
    assert [(item["prompt_tokens"], item["completion_tokens"]) for item in used if item] == [(120, 19), (5, 1)]
    reported = [(answer.statistics or {})["usage_per_model"] for answer in (both, alone)]
    assert [[tuple(item.values()) for item in models] for models in reported] == [
        [(0, MODEL, 80, 13, 93), (1, "seer", 40, 6, 46)],
        [(0, MODEL, 5, 1, 6)],
    ]
