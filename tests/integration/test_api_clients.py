"""OpenAI's own client library, synchronous and asynchronous, pointed at `/v1`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import behind_core
from tests.support.core import API_KEY
from tests.support.http_api import Api, http_api, said
from tests.support.upstream import broken_off, hanging

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CALCULATION = (wants("calculator", expression="25*47"), says("11", "75"))
LOOKUP: Any = {
    "name": "lookup",
    "description": "Look a person up.",
    "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        "additionalProperties": False,
    },
    "strict": True,
}  # fmt: skip
QUESTION: Any = [said("25*47?")]


def client(api: Api) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0, timeout=20)


async def test_a_completion_comes_whole_and_as_a_stream(tmp_path: Path) -> None:
    async with http_api(*CALCULATION, *CALCULATION, tmp_path=tmp_path) as api, client(api) as openai:
        whole = await openai.chat.completions.create(model="general-purpose-agent", messages=QUESTION)
        stream = await openai.chat.completions.create(
            model="test-model", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        models = [model.id async for model in openai.models.list()]
    assert whole.choices[0].message.content == "1175"
    assert whole.usage is not None
    assert whole.usage.total_tokens == 30
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "1175"
    assert chunks[-1].usage == whole.usage
    assert models == ["general-purpose-agent", "test-model"]


async def test_the_models_are_those_that_can_chat(tmp_path: Path) -> None:
    others = {
        "embedder": {"type": "embedding", "endpoint": "http://127.0.0.1:9/embeddings"},
        "dall-e-3": {"type": "chat", "endpoint": "http://127.0.0.1:9/chat/completions"},
        "other-chat": {"type": "chat", "endpoint": "http://127.0.0.1:9/chat/completions"},
    }
    async with behind_core(tmp_path=tmp_path, dial_api_key=API_KEY, models=others) as api:
        async with client(api) as openai:
            listed = [model.id async for model in openai.models.list()]
        painter = await api.get("/v1/models/dall-e-3")
    assert listed == ["general-purpose-agent", "test-model", "other-chat"]
    assert painter.status == 404


class LosesFirstAnswer(httpx.HTTPTransport):
    """A connection that breaks when the server has answered for the first time."""

    lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if self.lost:
            return response
        self.lost = True
        response.close()
        raise httpx.ReadError("the connection is lost", request=request)


async def test_the_documented_request_that_the_client_retries_is_answered_by_one_run(tmp_path: Path) -> None:
    from openai import OpenAI

    page = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    async with http_api(says("1175"), says("Another run."), tmp_path=tmp_path) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        transport = LosesFirstAnswer()

        def ask() -> str | None:
            with (
                httpx.Client(transport=transport) as connection,
                OpenAI(base_url=f"{api.url}/v1", api_key="none", http_client=connection, timeout=20) as openai,
            ):
                names: dict[str, Any] = {"client": openai, "session_id": session_id}
                exec(example, names)
                return names["answer"].choices[0].message.content

        answer = await asyncio.to_thread(ask)
        runs = (await api.get(f"/runs?session_id={session_id}")).json["runs"]
    assert (answer, len(runs), len(api.upstream.requests)) == ("1175", 1, 1)
    assert transport.lost


async def test_streamed_calls_of_the_callers_tools_are_put_together_and_answered_on_both_apis(tmp_path: Path) -> None:
    script = (wants("lookup", name="Ann"), says("Ann is 30."))
    tools: Any = [{"type": "function", "function": LOOKUP}]
    functions: Any = [{"type": "function", **LOOKUP}]
    async with http_api(*script, *script, tmp_path=tmp_path) as api, client(api) as openai:
        async with openai.chat.completions.stream(model="test-model", messages=QUESTION, tools=tools) as stream:
            asked = (await stream.get_final_completion()).choices[0].message
        [called] = asked.tool_calls or []
        history: Any = [
            *QUESTION,
            asked.model_dump(exclude_none=True, exclude={"parsed"}),
            {"role": "tool", "tool_call_id": called.id, "content": "30"},
        ]
        done = await openai.chat.completions.create(model="test-model", messages=history, tools=tools)
        async with openai.responses.stream(model="test-model", input="How old?", tools=functions) as responses:
            first = await responses.get_final_response()
        [call] = [item for item in first.output if item.type == "function_call"]
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "30"}]
        second = await openai.responses.create(
            model="test-model", input=result, previous_response_id=first.id, tools=functions
        )
    assert (called.function.name, called.function.arguments, call.name) == ("lookup", '{"name": "Ann"}', "lookup")
    assert (done.choices[0].message.content, second.output_text) == ("Ann is 30.", "Ann is 30.")


@pytest.mark.fault("http api: a response that was not stored, was deleted, failed, or goes on")
async def test_a_response_is_fetched_as_it_was_given_until_it_is_deleted(tmp_path: Path) -> None:
    from openai import NotFoundError

    script = (*CALCULATION, says("It was 25*47."), says("Unstored."), says("Another way."))
    async with http_api(*script, tmp_path=tmp_path) as api, client(api) as openai:
        first = await openai.responses.create(model="test-model", input="25*47?", instructions="Be short.")
        second = await openai.responses.create(model="test-model", input="What was it?", previous_response_id=first.id)
        again = [await openai.responses.retrieve(given.id) for given in (first, second)]
        unstored = await openai.responses.create(input="Again?", previous_response_id=second.id, store=False)
        await openai.responses.delete(second.id)
        rest = (await api.get(f"/session/{session_of(first)}")).json["messages"]
        other = await openai.responses.create(model="test-model", input="And?", previous_response_id=first.id)
        asked = [[message.get("content") for message in item.messages] for item in api.upstream.requests]
        await openai.responses.delete(first.id)
        kept = (await openai.responses.retrieve(other.id)).output_text
        for gone in (first.id, second.id, unstored.id, "resp_0000"):
            for act in (openai.responses.retrieve, openai.responses.delete):
                with pytest.raises(NotFoundError):
                    await act(gone)
            with pytest.raises(NotFoundError, match="not stored") as refused:
                await openai.responses.create(model="test-model", input="And?", previous_response_id=gone)
            assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        await openai.responses.delete(other.id)
        sessions = (await api.get("/sessions")).json["count"]
    assert again == [first, second]
    assert (first.output_text, first.status, second.output_text) == ("1175", "completed", "It was 25*47.")
    assert first.usage is not None
    assert first.usage.total_tokens == 30
    assert asked[0][0] == "Be short."
    ends = [["1175", "What was it?"], ["It was 25*47.", "Again?"], ["1175", "And?"]]
    assert [request[-2:] for request in asked[2:]] == ends
    assert unstored.output_text == "Unstored."
    assert [message["content"] for message in rest] == ["25*47?", "1175"]
    assert (other.output_text, kept) == ("Another way.", "Another way.")
    assert session_of(other) == session_of(first)
    assert sessions == 0


async def test_the_input_of_a_response_is_listed_page_by_page(tmp_path: Path) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}
    items: Any = [
        said("Hi"), said("Hello!", "assistant"),
        {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, picture]},
    ]  # fmt: skip
    async with http_api(says("A dot."), says("Yes."), tmp_path=tmp_path) as api, client(api) as openai:
        first = await openai.responses.create(model="test-model", input=items)
        second = await openai.responses.create(model="test-model", input="Sure?", previous_response_id=first.id)
        shown = [item.model_dump() async for item in openai.responses.input_items.list(first.id, order="asc", limit=2)]
        [last] = [item.model_dump() async for item in openai.responses.input_items.list(second.id)]
        page = (await api.get(f"/v1/responses/{first.id}/input_items?limit=1")).json
        lost = await api.get(f"/v1/responses/{first.id}/input_items?after=nothing")
    assert [(item["role"], item["content"][0]["text"]) for item in shown] == [
        ("user", "Hi"), ("assistant", "Hello!"), ("user", "What is this?"),
    ]  # fmt: skip
    assert shown[2]["content"][1]["image_url"] == picture["image_url"]
    assert last["content"][0]["text"] == "Sure?"
    assert (len(page["data"]), page["has_more"], page["first_id"]) == (1, True, shown[2]["id"])
    assert lost.status == 404


@pytest.mark.fault("http api: a response that was not stored, was deleted, failed, or goes on")
async def test_a_response_that_failed_or_is_in_progress_has_that_status_when_it_is_fetched(tmp_path: Path) -> None:
    from openai import BadRequestError, ConflictError

    script = (broken_off(says("Half ", "a ", "sentence"), chunks=2), hanging(says("Half", " an answer"), chunks=3))
    async with http_api(*script, tmp_path=tmp_path) as api, client(api) as openai:
        stream = await openai.responses.create(model="test-model", input="?", stream=True)
        [*_, ending] = [event async for event in stream]
        failed = await openai.responses.retrieve(response_of(ending).id)
        with pytest.raises(BadRequestError, match="/runs/"):
            await openai.responses.retrieve(failed.id, stream=True)
        stream = await openai.responses.create(model="test-model", input="?", stream=True)
        found = await openai.responses.retrieve(response_of(await anext(aiter(stream))).id)
        with pytest.raises(ConflictError):
            await openai.responses.delete(found.id)
        await api.post(f"/runs/{found.id.replace('resp', 'run')}/cancel")
        [*_, ending] = [event async for event in stream]
        stopped = await openai.responses.retrieve(found.id)
    assert failed.error is not None
    assert "reference" in failed.error.message
    assert (failed.status, found.status, found.output) == ("failed", "in_progress", [])
    assert (ending.type, stopped.status, stopped.output_text[:4]) == ("response.incomplete", "cancelled", "Half")


def session_of(response: Any) -> str:
    return response.session_id


def response_of(event: Any) -> Any:
    return event.response


async def test_a_streamed_response_has_its_events_in_order(tmp_path: Path) -> None:
    async with http_api(says("11", "75"), tmp_path=tmp_path) as api, client(api) as openai:
        stream = await openai.responses.create(model="test-model", input="25*47?", stream=True)
        events = [event async for event in stream]
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_agents_of_openais_sdk_run_on_both_apis(tmp_path: Path) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from agents import set_tracing_disabled as no_tracing

    def lookup(name: str) -> str:
        """Look a person up."""
        return f"{name} is 30"

    no_tracing(True)
    script = (wants("lookup", name="Ann"), says("Ann is 30."))
    async with http_api(*script, *script, tmp_path=tmp_path) as api, client(api) as openai:
        for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            agent = Agent("a", "Help.", model=model("test-model", openai), tools=[function_tool(lookup)])
            assert (await Runner.run(agent, "How old?")).final_output == "Ann is 30."
        results = [item.get("content") for request in api.upstream.requests for item in request.messages]
    assert results.count("Ann is 30") == 2


async def test_langchain_binds_its_tools_and_streams(tmp_path: Path) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    async with http_api(wants("lookup", name="Ann"), says("Ann is ", "30."), tmp_path=tmp_path) as api:
        model = ChatOpenAI(model="test-model", base_url=f"{api.url}/v1", api_key=SecretStr("none"), max_retries=0)
        bound = model.bind_tools([{"type": "function", "function": LOOKUP}])
        question = HumanMessage("How old?")
        asked: Any = await bound.ainvoke([question])
        [call] = asked.tool_calls
        history = [question, asked, ToolMessage("30", tool_call_id=call["id"])]
        shown = [str(part.content) async for part in bound.astream(history)]
    assert (call["name"], call["args"]) == ("lookup", {"name": "Ann"})
    assert "".join(shown) == "Ann is 30."
