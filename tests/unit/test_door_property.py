"""Whatever a person does, every request to the model is valid, and nothing risky runs that was not approved."""

import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from task.approvals.approvals import read_reply
from task.approvals.forms import presses
from task.conversation.messages import Message
from task.conversation.state import waits
from task.llm.base import Delta, Finish, ModelOptions, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.permissions.decisions import Effect
from task.tools.base import BaseTool
from tests.support.in_process import Agents, Chat, agents
from tests.support.tools import MadeTool
from tests.support.upstream_rules import fault_of

IN_TEST, PARTS, IN_PART = 150, 10, 1_000
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
# `{0}` and so on stand for codes of the last questions.
REPLIES = (
    "approve", "yes", "Approve {0}", "approve {0}, deny {1} because it is old", "deny", "no, use b", "always",
    "always {1}", "аpprove", "What will it do?", "/permissions", "/permissions revoke all", "approve {2}", "",
)  # fmt: skip
FORMS: tuple[Any, ...] = ({"decision": 1}, {"decision": 2}, {"decision": 3}, {"decision": 4, "calls": ["1"]}, {}, 7)


class Wild:
    """A model that calls and says anything, and refuses to read an invalid conversation."""

    name = "wild"

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.requests = 0

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        body = {"messages": [message.as_dict() for message in messages], **({"tools": list(tools)} if tools else {})}
        assert (fault := fault_of(body)) is None, fault
        self.requests += 1
        if self._dice.random() < 0.3:
            yield TextDelta(self._dice.choice(("Let me see.", "Done.", "word " * 300)))
        calls = self._dice.choice((0, 1, 1, 2, 3)) if tools else 0
        for index in range(calls):
            yield self._call(index)
        if not calls:
            yield TextDelta("So it is.")
        yield Usage(3, 2)
        yield Finish("tool_calls" if calls else "stop")

    def _call(self, index: int) -> ToolCallDelta:
        name = self._dice.choice(("write", "write", "look", "look", "nothing_of_ours"))
        arguments = self._dice.choice(('{"text": "a"}', '{"text": "b"}', "{}", '{"text": 7}', '{"text": "cu'))
        call_id = self._dice.choice((f"call_{index}", "call_0", "", f"c{self._dice.randrange(10**6)}"))
        return ToolCallDelta(index, call_id, name, arguments)


class Person:
    """Somebody who asks, decides, edits, leaves, asks again, waits too long, and shares a chat with somebody else."""

    def __init__(self, chat: Chat, ran: Counter[str], dice: random.Random) -> None:
        self.chat, self._ran, self._dice = chat, ran, dice
        self._used: set[str] = set()
        self._asked: dict[str, str] = {}  # who was asked, by the turn in which they were

    async def acts(self) -> None:
        messages, dice = self.chat.messages, self._dice
        before = self._ran.total()
        waiting = waits(state_of(messages[-1])) if messages else 0
        action = dice.choice(("reply", "reply", "reply", "ask", "edit", "again", "leave", "late", "other", "forget"))
        self.chat.key = "bob" if action == "other" else "ann"
        if action == "edit" and messages:
            self.chat.edit(2 * dice.randrange(len(messages) // 2), self._words())
            await self.chat.answer()
        elif action == "again" and messages:
            messages.pop()
            await self.chat.answer()
        elif action == "leave":
            steps = dice.randrange(1, 60)
            await self.chat.leave(dice.choice(("Go on", self._words())), lambda step: step >= steps)
        elif action == "forget" and len(messages) > 2:
            at = 2 * dice.randrange(len(messages) // 2)
            del messages[at : at + 2]
            return
        elif action == "reply" and waiting:
            codes = [code for message in messages for code in codes_of(message)]
            buttons = [{"button": number} for number in presses(codes[-3:])]  # also of earlier questions
            await self.chat.say(self._words(), dice.choice((None, None, *FORMS, *buttons)))
        else:
            if action == "late":
                await self.chat.agents.clock.advance(4_000)
            await self.chat.say(dice.choice(("Note it", "approve", "x " * 700)))
        self._asked.setdefault(state_of(messages[-1]).get("turn", ""), self.chat.key)
        self._nothing_unasked(self._ran.total() - before, too_late=action == "late")

    def _words(self) -> str:
        codes = [code for message in self.chat.messages for code in codes_of(message)]
        return self._dice.choice(REPLIES).format(*[*codes[-3:], "a1a1", "a2a2", "a3a3"])

    def _nothing_unasked(self, ran: int, *, too_late: bool) -> None:
        if not ran:
            return
        question, reply = self.chat.messages[-3] if len(self.chat.messages) > 2 else {}, self.chat.messages[-2]
        state = state_of(question)
        granted = any("write" in str(state_of(message).get("grants")) for message in self.chat.messages)
        if granted:
            return
        form_value = reply.get("custom_content", {}).get("form_value")
        verdicts = read_reply(reply["content"], form_value, codes_of(question))
        approved = sum(verdict.allowed for verdict in verdicts or ())
        always = any(verdict.always for verdict in verdicts or ())
        assert not too_late, "an approval ran something after its time"
        assert self._asked.get(state.get("turn", "")) == self.chat.key, "somebody else's approval ran something"
        assert approved, f"{ran} calls ran without an approval"
        assert always or ran <= approved
        assert state["turn"] not in self._used, "an approval was used twice"
        self._used.add(state["turn"])


def state_of(message: dict[str, Any]) -> dict[str, Any]:
    return message.get("custom_content", {}).get("state") or {}


def codes_of(message: dict[str, Any]) -> list[str]:
    return [item["code"] for item in state_of(message).get("pending", ())]


def tools(ran: Counter[str]) -> list[BaseTool]:
    async def write(text: str = "") -> str:
        ran[text] += 1
        return f"wrote {text}"

    async def look(text: str = "") -> str:
        return text * 3_000

    read, writes = frozenset({Effect.READ}), frozenset({Effect.WRITE})
    return [MadeTool("write", write, TEXT, writes), MadeTool("look", look, TEXT, read)]


async def played(seed: int, running: Agents, ran: Counter[str]) -> int:
    """One sequence of 3 to 9 actions; how many requests the model got."""
    dice = random.Random(seed)
    model = Wild(dice)
    running.model, running.tokens = model, dice.choice((None, None, 2_000, 400))
    person = Person(Chat(running, conversation_id=f"chat-{seed}"), ran, dice)
    for _ in range(dice.randrange(3, 10)):
        await person.acts()
    return model.requests


async def all_played(seeds: range) -> tuple[int, int]:
    ran: Counter[str] = Counter()
    async with agents(Wild(random.Random(0)), *tools(ran)) as running:
        requests = [await played(seed, running, ran) for seed in seeds]
    return sum(requests), ran.total()


@pytest.mark.fault("approval: any order of turns, edits, stops, prunes, approvals and resumes")
async def test_every_request_is_valid_and_nothing_runs_unasked() -> None:
    requests, ran = await all_played(range(IN_TEST))
    assert requests > 3 * IN_TEST
    assert ran > IN_TEST // 5


@pytest.mark.system
@pytest.mark.parametrize("part", range(PARTS))
async def test_ten_thousand_times_every_request_is_valid_and_nothing_runs_unasked(part: int) -> None:
    first = IN_TEST + part * IN_PART
    requests, _ = await all_played(range(first, first + IN_PART))
    assert requests > 3 * IN_PART
