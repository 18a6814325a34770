"""What a deployment that is called by its name alone shows, remembers and may not do, below the stage of its tool."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from task.conversation.messages import Message, assistant
from task.core_client.models import CALL_PATH
from task.output.links import Suspicion
from task.output.sinks import DefangedChoice
from task.tools.deployment.deployment_tool import DeploymentSpec, DeploymentTool
from task.tools.deployment.relay import LEFT_OUT, MAX_STAGES
from task.tools.toolbox import Toolbox
from tests.support.callees import callee, stage
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import Peer, Seen
from tests.support.tool_calls import call_of

PAGE = "https://weather.example/today"


async def ask(
    oracle: Peer, *, path: str = "", application: str = "", earlier: Sequence[Message] = (), **arguments: Any
) -> tuple[Message, RecordingChoice]:
    """The message and the stages of one call of the oracle, whose answer is not approved by anyone."""
    choice = RecordingChoice()
    tool = DeploymentTool(oracle.url, DeploymentSpec("oracle", "Knows.", "oracle", by_name=True))
    shown = DefangedChoice(choice, Suspicion(lambda _: True, lambda: False))  # as in every turn
    call = call_of("oracle", {"prompt": "Will it rain?", **arguments})
    caller = replace(CALLER, headers={"X-Team": "blue", CALL_PATH: path}, application=application)
    [message] = await Toolbox([tool]).call_all([call], shown, caller, messages=earlier)
    assert isinstance(message, Message)
    return message, choice


def source(url: str, selector: Any) -> dict[str, Any]:
    return {"body": {"title": "Today", "source": {"type": "attachment", "url": url}}, "target": {"selector": selector}}


async def test_stages_files_and_sources_appear_below_the_stage_of_the_tool() -> None:
    found = [
        source(PAGE, {"type": "html_tag", "tag": "cit", "id": "c1"}),
        source("files/b/a.pdf", {"id": 2}),
    ]
    deltas = [
        stage(0, name="Think", content="Hm", status=None),
        stage(1, name="Look", parent_stage_index=0, status=None),
        stage(1, content="clouds", attachments=[{"title": "Map", "type": "text/markdown", "data": "A map."}]),
        stage(1, status="failed"),
        stage(0, name=" hard", status="completed"),
        {"content": 'Rain<cit id="c1"></cit> and <cit data-id="2"></cit>'},
        {"custom_fields": {"annotations": found}},
    ]
    async with callee(deltas) as oracle:
        message, choice = await ask(oracle)
    tool, think, look = choice.stages
    assert (think.name, think.content, think.status, think.parent) == ("Think hard", "Hm", "completed", tool)
    assert (look.name, look.content, look.status, look.parent) == ("Look", "clouds", "failed", think)
    assert [item.title for item in look.attachments] == ["Map"]
    assert message.text() == "Rain[1] and [2]"
    assert [(item.title, item.reference_url) for item in message.attachments] == [
        ("[1] Today", PAGE),
        ("[2] Today", "files/b/a.pdf"),
    ]


async def test_the_state_goes_back_with_the_next_call_of_the_same_thread_only() -> None:
    def answer(seen: Seen) -> Any:
        number = len(seen.json["messages"])
        return [{"content": f"Answer {number}"}, {"custom_content": {"state": {"number": number}}}]

    async with callee(answer) as oracle:
        earlier = list[Message]()
        for number, thread in enumerate([{"thread": "rain"}, {"thread": "rain"}, {"thread": "snow"}, {}]):
            message, _ = await ask(oracle, earlier=earlier, **thread)
            call = replace(call_of("oracle", {"prompt": "Will it rain?", **thread}), id=str(number))
            earlier += [assistant(None, [call]), replace(message, tool_call_id=call.id)]
    asked = {"role": "user", "content": "Will it rain?"}
    before = {"role": "assistant", "content": "Answer 1", "custom_content": {"state": {"number": 1}}}
    assert [seen.json["messages"] for seen in oracle.requests] == [[asked], [asked, before, asked], [asked], [asked]]
    assert [bool(item.memo) for item in earlier[1::2]] == [True, True, True, False]


@pytest.mark.fault("by name: a deployment that asks for an approval, which the model would give in the next call")
async def test_a_question_to_the_user_is_not_answered_by_the_next_call_of_the_model() -> None:
    form = {"state": {"pending": ["k7f3"]}, "form_schema": {"type": "object"}}
    async with callee([{"content": "Approve k7f3?", "custom_content": form}]) as oracle:
        message, _ = await ask(oracle, thread="t")
        call = call_of("oracle", {"prompt": "Delete it", "thread": "t"})
        await ask(oracle, thread="t", earlier=[assistant(None, [call]), replace(message, tool_call_id=call.id)])
    assert "pending" not in message.memo
    assert [item["role"] for item in oracle.last.json["messages"]] == ["user", "assistant", "user"]
    assert "pending" not in str(oracle.last.json)


@pytest.mark.fault("by name: a cycle of three applications, and a forged path of calls", case="a,oracle,b")
@pytest.mark.parametrize("path", ["a,oracle,b", "a,b,c,d,e"])
async def test_a_cycle_and_a_deep_path_end_with_a_sentence(path: str) -> None:
    async with callee() as oracle:
        message, choice = await ask(oracle, path=path)
    assert "oracle is not called" in message.text()
    assert (choice.stages[0].status, oracle.requests) == ("failed", [])


@pytest.mark.parametrize("path", ["first,the%2Fx", "first"])
async def test_the_path_of_calls_goes_along_with_the_callers_headers_and_names_the_own_application(path: str) -> None:
    async with callee([{"content": "Yes."}]) as oracle:
        await ask(oracle, path=path, application="the/x")
    assert (oracle.last.headers["X-Team"], oracle.last.headers[CALL_PATH]) == ("blue", "first,the%2Fx,oracle")


PICTURE = {"type": "image/png", "title": "x", "data": "A" * 100_000}
HOSTILE: dict[str, Any] = {
    "stages": [stage(n, name=f"Step {n}", content="x", status="completed") for n in range(10_000)],
    "open": [stage(n, name="n" * 10_000, parent_stage_index=n) for n in range(20)],
    "deep": [stage(0), {"custom_content": {"state": json.loads('{"a":' * 300 + "1" + "}" * 300)}}],
    "malformed": [
        stage("a"),
        stage(1, parent_stage_index=[], status="gone", attachments=[PICTURE, {"url": "javascript:x"}, 7]),
        {"custom_fields": {"annotations": ["x", {"body": 1}, source("data:x", {}), {"target": {}}]}},
        {"custom_content": {"annotations": 7, "state": ["x" * 100_000]}},
    ],
}


@pytest.mark.fault("by name: a deployment that sends 10,000 stages", case="stages")
@pytest.mark.fault("by name: a deployment that leaves its stages open, or sends malformed ones", case="malformed")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_whatever_a_deployment_sends_beside_its_text_is_bounded(kind: str) -> None:
    async with callee([*HOSTILE[kind], {"content": 'Yes.<cit id="unknown"></cit>'}]) as oracle:
        message, choice = await ask(oracle, thread="t")
    assert message.text() == "Yes."
    assert len(message.memo) < 1_000
    tool, *shown = choice.stages
    assert 0 < len(shown) <= MAX_STAGES
    assert all(item.status == "completed" and len(item.name) <= 200 and not item.attachments for item in shown)
    assert (LEFT_OUT in tool.content) is (kind == "stages")


@pytest.mark.fault("by name: a deployment that attaches a picture of another host")
async def test_nothing_is_fetched_from_another_host_because_a_deployment_attaches_it() -> None:
    pixel = {"type": "image/png", "title": "Pixel", "url": f"{PAGE}.png"}
    deltas = [stage(0, attachments=[pixel]), {"content": "Yes.", "custom_content": {"attachments": [pixel]}}]
    async with callee(deltas) as oracle:
        message, choice = await ask(oracle)
    [shown], [answered] = choice.stages[1].attachments, message.attachments
    assert shown == answered
    assert (shown.type, shown.url, shown.reference_url) == ("text/markdown", None, pixel["url"])


@pytest.mark.fault("by name: a deployment that streams for ever")
async def test_a_deployment_that_streams_for_ever_is_cut_off() -> None:
    async with callee([{"content": "x" * 300_000}] * 5, hang=asyncio.Event()) as oracle:
        message, _ = await ask(oracle)
        async with asyncio.timeout(20):
            await oracle.cancelled.wait()
    assert (message.failed, len(message.text()) <= 1_300_000) == (False, True)
    json.dumps(message.as_stored())


async def test_nothing_runs_on_after_the_answer() -> None:
    hanging = asyncio.Event()
    async with callee([stage(0, name="Think")], hang=hanging) as oracle:
        asking = asyncio.create_task(ask(oracle))
        async with asyncio.timeout(20):
            await hanging.wait()
            asking.cancel()
            await oracle.cancelled.wait()
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], asyncio.CancelledError)
