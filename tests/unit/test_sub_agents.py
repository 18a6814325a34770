"""Sub-agents: what they get, what comes back of them, what they may do, and how they end."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from task.coding.executor import Coder
from task.coding.state import Progress
from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, system, tool_message, user
from task.conversation.state import MAX_BYTES
from task.errors import ProviderError
from task.llm.base import ToolSchema, Usage
from task.llm.scripted import Pause, Reply, ScriptedModel, says, wants
from task.permissions.decisions import Effect
from task.permissions.policy import Policy, Rule
from task.permissions.taint import ContextView, Origin
from task.product import Backend, opened
from task.product.delegation import PROMPT
from task.runs.traces import TraceRecorder, TraceStart
from task.settings.sections import AgentSettings
from task.tools.base import BaseTool, object_schema, text
from task.tools.declare import tool
from task.tools.models import ToolCallParams
from task.tools.toolbox import PARALLEL_CALLS
from tests.support.choices import CALLER
from tests.support.in_process import SETTINGS, Chat, agents
from tests.support.tools import MadeTool, answering

DEFAULT = AgentSettings()


@dataclass
class Office:
    """An agent whose model answers by `plan`, and sub-agents' by the first word of their task."""

    plan: Sequence[Reply]
    tasks: Mapping[str, Sequence[Reply]]
    done: list[str] = field(default_factory=list[str])
    asked: int = 0

    def reply(self, messages: Sequence[Message], _: Sequence[ToolSchema]) -> Reply:
        if not messages[0].text().endswith(PROMPT):
            self.asked += 1
            return self.plan[self.asked - 1]
        said = sum(message.role is Role.ASSISTANT for message in messages)
        return self.tasks[messages[1].text().split()[0]][said]

    @property
    def tools(self) -> list[BaseTool]:
        async def look(what: str) -> str:
            self.done.append(f"look {what}")
            return f"{what} is 7. See http://known.example/{what}"

        async def note(text: str) -> str:
            self.done.append(f"note {text}")
            return "noted"

        async def send(**_: str) -> str:
            return "sent"

        reach = frozenset({Effect.READ, Effect.NETWORK})
        shape = object_schema("what", what=text("what"))
        return [
            MadeTool("look", look, shape, frozenset({Effect.READ}), origin=Origin.OUTSIDE),
            MadeTool("send", send, object_schema("text", text=text("text")), reach),
            MadeTool("fetch", send, object_schema("url", url=text("url")), reach),
            MadeTool("note", note, object_schema("text", text=text("text")), frozenset({Effect.WRITE})),
        ]


@asynccontextmanager
async def chat(office: Office, sub: AgentSettings | None = DEFAULT, **options: Any) -> AsyncGenerator[Chat]:
    limits, builtin = options.pop("limits", {}), options.pop("builtin", None)
    model = ScriptedModel(then=office.reply, sleep=options.pop("sleep", asyncio.sleep))
    async with agents(model, *office.tools, **options) as found:
        services, profile = found.opened
        found.opened = services, replace(profile, agents=sub, builtin=builtin, limits=replace(profile.limits, **limits))
        yield Chat(found)


def model_of(chat: Chat) -> ScriptedModel:
    assert isinstance(chat.agents.model, ScriptedModel)
    return chat.agents.model


def results(chat: Chat) -> list[str]:
    """The results that the agent's own model read last."""
    [*_, last] = [item for item in model_of(chat).requests if not item[0].text().endswith(PROMPT)]
    return [message.text() for message in last if message.role is Role.TOOL]


def delegated(*tasks: str, **more: Any) -> Reply:
    reply = wants("delegate", task=tasks[0], **more)
    for task in tasks[1:]:
        reply &= wants("delegate", task=task, **more)
    return reply


async def test_the_answers_of_sub_agents_come_back_and_nothing_else_of_them() -> None:
    tasks = {name: [wants("look", what=name), says(f"{name}: seven")] for name in ("red", "blue")}
    office = Office([delegated("red of the wall", "blue of the sea"), says("Both seven.")], tasks)
    async with chat(office) as it:
        shown = await it.say("Which?")
        stages = [
            (stage.name.partition(" [")[0], stage.parent and stage.parent.name.partition(":")[0])
            for stage in shown.stages
        ]
        system, task = next(item for item in model_of(it).requests if item[0].text().endswith(PROMPT))[:2]
        names = [tool["function"]["name"] for tool in model_of(it).tools[1]]
    assert shown.content == "Both seven."
    assert results(it) == ["red: seven", "blue: seven"]
    assert sorted(stages) == [
        ("delegate: blue of the sea", None),
        ("delegate: red of the wall", None),
        ("look: blue", "delegate"),
        ("look: red", "delegate"),
    ]
    assert system.text() == f"Be helpful.\n\n{PROMPT}"
    assert task.text() == "red of the wall"
    assert names == ["look", "send", "fetch", "note"]


async def test_a_question_of_a_sub_agent_is_answered_in_the_run_and_nothing_is_done_twice() -> None:
    notes = wants("note", text="a=7") & wants("look", what="b")
    tasks = {"one": [wants("look", what="a"), notes, wants("note", text="b=7"), says("Noted.")], "two": [says("2")]}
    office = Office([delegated("one", "two"), says("All done.")], tasks)
    async with chat(office) as it:
        asked = await it.say("Go")
        assert (office.done, asked.content.count("approve ")) == (["look a", "look b"], 1)
        assert "note" in asked.content
        again = await it.press("Approve", asked)  # it asks once more, and its first call is not made again
        assert office.done == ["look a", "look b", "note a=7"]
        shown = await it.press("Approve", again)
    assert (shown.content, results(it)) == ("All done.", ["Noted.", "2"])
    assert office.done == ["look a", "look b", "note a=7", "note b=7"]


@pytest.mark.fault("sub-agents: five ask at once, with calls of the same id")
async def test_five_sub_agents_ask_at_once_and_each_gets_its_own_answer() -> None:
    names = [f"n{number}" for number in range(5)]
    call = replace(wants("note", text="").calls[0], id="call_0")
    asks = {name: Reply((replace(call, arguments={"text": name}),)) for name in names}
    office = Office([delegated(*names), says("End.")], {name: [asks[name], says(f"{name} ended")] for name in names})
    async with chat(office) as it:
        asked = await it.say("Go")
        codes = re.findall(r"#### ([a-z]\d[a-z]\d)", asked.content)
        assert len(set(codes)) == 5
        await it.say(f"approve {codes[1]} and {codes[3]}, deny {codes[0]}, {codes[2]} and {codes[4]} because no")
        denials = [item[-1].text() for item in model_of(it).requests if "not allowed" in item[-1].text()]
    assert sorted(office.done) == ["note n1", "note n3"]
    assert len(denials) == 3
    assert results(it) == [f"{name} ended" for name in names]


@pytest.mark.fault("sub-agents: one that reads much and asks in every step")
async def test_what_a_sub_agent_keeps_while_it_asks_stays_small() -> None:
    async def read(part: int) -> str:
        return f"{part} {'x' * 9_000}"

    steps = list[Reply]()
    for number in range(4):
        reading = wants("read", part=number * 10)
        for part in range(1, 10):
            reading &= wants("read", part=number * 10 + part)
        steps += [reading, wants("note", text=f"part {number}")]
    office = Office([delegated("one"), says("End.")], {"one": [*steps, says("noted")]})
    async with chat(office) as it:
        whole = object_schema("part", part={"type": "integer"})
        it.agents.tools = [*office.tools, MadeTool("read", read, whole, frozenset({Effect.READ}))]
        asked = await it.say("Go")
        for _ in range(3):
            asked = await it.press("Approve", asked)
        assert len(json.dumps(asked.state)) < MAX_BYTES
        assert (await it.press("Approve", asked)).content == "End."
    assert office.done == [f"note part {number}" for number in range(4)]


@pytest.mark.fault("sub-agents: many that make many calls at once")
async def test_sub_agents_divide_the_calls_that_may_run_at_a_time() -> None:
    running = list[int]()
    most = 0

    async def wait(part: int) -> str:
        nonlocal most
        running.append(part)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(part)
        return "done"

    waits = wants("wait", part=0)
    for part in range(1, 30):
        waits &= wants("wait", part=part)
    names = [f"n{number}" for number in range(3)]
    office = Office([delegated(*names), says("End.")], {name: [waits, says("done")] for name in names})
    async with chat(office) as it:
        it.agents.tools = [MadeTool("wait", wait, object_schema("part", part={"type": "integer"}))]
        await it.say("Go")
    assert (results(it), most) == (["done"] * 3, PARALLEL_CALLS // 3 * 3)


async def test_a_rule_that_asks_about_everything_asks_once_about_each_call() -> None:
    look = [wants("look", what="a"), says("done")]
    office = Office([delegated("one"), says("End.")], {"one": look})
    async with chat(office, policy=Policy((Rule("ask"),))) as it:
        first = await it.say("Go")
        second = await it.press("Approve", first)
        last = await it.press("Approve", second)
    assert ("delegate" in first.content, "look" in second.content, last.content) == (True, True, "End.")
    assert office.done == ["look a"]


async def test_what_servers_keep_for_a_conversation_is_apart_for_each_sub_agent() -> None:
    seen = list[str]()

    @tool
    def where(params: ToolCallParams) -> str:
        """Tell the conversation."""
        seen.append(params.conversation_id)
        return "here"

    look = [wants("where"), says("done")]
    office = Office([delegated("a", "b") & wants("where"), says("End.")], {"a": look, "b": look})
    async with chat(office) as it:
        it.agents.tools = [where]
        await it.say("Go")
    assert "chat-1" in seen
    assert len(set(seen)) == 3


async def test_another_message_closes_the_questions_of_sub_agents() -> None:
    office = Office([delegated("one"), says("As you like.")], {"one": [wants("note", text="a")]})
    async with chat(office) as it:
        await it.say("Go")
        shown = await it.say("Something else")
    assert (shown.content, office.done) == ("As you like.", [])
    assert "did not approve" in results(it)[0]


@pytest.mark.fault("sub-agents: one that delegates")
async def test_a_sub_agent_has_no_sub_agents() -> None:
    office = Office([delegated("one"), says("End.")], {"one": [delegated("two"), says("alone")]})
    async with chat(office) as it:
        await it.say("Go")
        refused = model_of(it).requests[2][-1].text()
    assert "There is no tool 'delegate'" in refused
    assert results(it) == ["alone"]


@pytest.mark.fault("sub-agents: one that never ends, or fails; more of them than the run has steps for")
@pytest.mark.parametrize(
    ("limits", "steps", "said"),
    [
        ({"steps": 3}, 60, "[The sub-agent stopped at the limit of 3 steps.]"),
        ({}, 4, "[The sub-agent stopped at the limit of 2 steps.]"),
        ({"run_tokens": 4_000}, 60, "[The sub-agent stopped at the limit of 2000 tokens.]"),
        ({"run_tokens": 1_500}, 60, "the sub-agents of this run have 1500 tokens left"),
    ],
)
async def test_a_sub_agent_that_never_ends_is_stopped(limits: dict[str, Any], steps: int, said: str) -> None:
    used = Usage(1_000, 100)
    endless = [
        replace(wants("look", what=f"n{n}"), events=(*wants("look", what=f"n{n}").events, used)) for n in range(9)
    ]
    office = Office([delegated("a", "b"), says("End.")], {"a": endless, "b": endless})
    async with chat(office, AgentSettings(steps=steps), limits=limits) as it:
        await it.say("Go")
    assert [said in result for result in results(it)] == [True, True]


@pytest.mark.fault("sub-agents: one whose model never answers, and an agent that is stopped while it works")
async def test_a_sub_agent_that_hangs_ends_with_its_call_or_with_its_agent() -> None:
    hangs, asleep = Reply((Pause(600),)), list[bool]()

    async def sleep(seconds: float) -> None:
        asleep.append(True)
        try:
            await asyncio.sleep(seconds)
        finally:
            asleep.pop()

    for stopped in (False, True):
        office = Office([delegated("a", "b"), says("End.")], {"a": [hangs], "b": [hangs]})
        async with chat(office, limits={"run_seconds": 60 if stopped else 0.3}, sleep=sleep) as it:
            if stopped:
                await it.leave("Go", lambda _: len(asleep) == 2)
            else:
                await it.say("Go")
                assert ["was stopped after 0." in result for result in results(it)] == [True, True]
        assert asleep == []


async def test_a_sub_agent_that_fails_says_what_it_had_done() -> None:
    broken = Reply((ProviderError("broken", status_code=400),))
    office = Office([delegated("a"), says("End.")], {"a": [wants("look", what="x"), broken]})
    async with chat(office) as it:
        await it.say("Go")
    assert results(it)[0].startswith("Error: the sub-agent failed: ")
    assert results(it)[0].endswith("Calls that it had made: look")


@pytest.mark.fault("sub-agents: a model that starts one after the other, each of which answers at once")
async def test_a_sub_agent_that_calls_no_tool_takes_a_step_too() -> None:
    said = [says("x")]
    office = Office([delegated("a", "b"), delegated("c"), says("End.")], {"a": said, "b": said, "c": said})
    async with chat(office, AgentSettings(steps=2)) as it:
        await it.say("Go")
    assert results(it)[:2] == ["x", "x"]
    assert "have 0 steps left" in results(it)[2]


async def test_tokens_of_sub_agents_count_for_the_limit_of_a_coding_task_and_in_its_trace() -> None:
    script = [Reply((*reply.events, Usage(100, 10))) for reply in (delegated("Think."), says("7"), says("Done."))]
    model, progress = ScriptedModel(*script), Progress([user("Go")])
    trace = TraceRecorder(None, TraceStart("o", "coding", "m"))
    services, profile = opened(SETTINGS, tools=[answering("look", "7")])
    try:
        profile = replace(profile, backend=Backend(lambda *_: model, listed=False), agents=DEFAULT)
        async with asyncio.timeout(20):
            outcome = await Coder(services, profile, CALLER, progress, lambda _: None, then=trace).run()
    finally:
        await services.close()
    trace.end(outcome.status, tools=outcome.tool_usage)
    counted = sum(sum(usage.counts[:2]) for usage in trace.trace().usage.values())
    assert (outcome.status, progress.spent.tokens, counted) == ("finished", 330, 330)


async def test_a_sub_agent_gets_the_tools_and_the_model_that_it_is_given() -> None:
    office = Office(
        [delegated("one", tools=["look", "delegate"], model="small") & delegated("two", tools=["none"]), says("End.")],
        {"one": [wants("note", text="a"), says("done")]},
    )
    async with chat(office, AgentSettings(models=["small"])) as it:
        await it.say("Go")
        offered = [[tool["function"]["name"] for tool in tools] for tools in model_of(it).tools]
    assert offered[:2] == [["delegate", "look", "send", "fetch", "note"], ["look"]]
    assert results(it)[1] == "Error: none of these tools is here; there are look, send, fetch, note"


@pytest.mark.parametrize(
    ("sub", "options", "offered"),
    [
        (AgentSettings(), {}, True),
        (None, {}, False),
        (AgentSettings(), {"builtin": "look"}, False),
        (AgentSettings(), {"tokens": 7_000}, False),
        (AgentSettings(), {"tokens": 9_000}, True),
    ],
)
async def test_small_models_have_no_sub_agents(
    sub: AgentSettings | None, options: dict[str, Any], *, offered: bool
) -> None:
    office = Office([says("Hi.")], {})
    async with chat(office, sub, **options) as it:
        await it.say("Hi")
        names = [tool["function"]["name"] for tool in model_of(it).tools[0]]
    assert ("delegate" in names) is offered


@pytest.mark.fault(
    "sub-agents: one of a tainted conversation, one that reads what a page wants, a task with an address"
)
async def test_taint_goes_down_to_sub_agents_and_comes_back_with_their_answers() -> None:
    send = [wants("send", text="x" * 3_000), says("sent")]
    fetch = {url: [wants("fetch", url=f"http://{url}.example/x"), says("got it")] for url in ("user", "made", "known")}
    fetch["known"].insert(0, wants("look", what="x"))
    cases = {
        "a task of a clean conversation": (["clean"], {"clean": send}, False),
        "what it has read itself": (["dirty"], {"dirty": [wants("look", what="x"), *send]}, True),
        "the answer of another": (["clean", "late"], {"clean": [says("x")], "late": send}, True),
        "an address of the user": (["user"], fetch, False),
        "an address that its task alone names": (["made http://made.example/x"], fetch, True),
        "an address that it has found": (["known"], fetch, False),
    }
    for name, (tasks, plans, asks) in cases.items():
        office = Office([*map(delegated, tasks), says("End.")], plans)
        async with chat(office) as it:
            shown = await it.say("Go to http://user.example/x")
        assert (shown.form_schema is not None) is asks, name


async def test_always_for_a_sub_agent_does_not_outlast_the_taint_of_its_answer() -> None:
    note = [wants("note", text="a"), says("noted")]
    office = Office([delegated("one"), wants("note", text="b"), says("End.")], {"one": note})
    async with chat(office) as it:
        await it.press("Always", await it.say("Go"))
    assert office.done == ["note a"]


def test_a_sub_agents_view_hides_nothing_of_its_agents_conversation() -> None:
    page, url = assistant(None, [ToolCall("c", FunctionCall("look"))]), "http://known.example/x"
    outer = [user("Go"), page, replace(tool_message(page.tool_calls[0], f"See {url}"), name="look")]
    view = ContextView([system("p"), user("task")], {}, ContextView(outer, {"look": Origin.OUTSIDE}), 2)
    seen = view.tainted, view.tainted_before(2), view.tainted_beyond("note"), view.tainted_in_conversation
    assert (seen, view.knows(url), view.of_turn()) == ((True,) * 4, True, outer[1:])
