"""Who the caller is, is asked once and in time: when the first tools run, and not for an answer without tools."""

from __future__ import annotations

import asyncio

from task.agent import _PrincipalInTime
from task.conversation.messages import FunctionCall, ToolCall, assistant
from task.llm.base import Usage
from task.loop import SilentObserver

CALLING = assistant(calls=[ToolCall("call_1", FunctionCall("calculator"))])


async def test_the_first_message_with_calls_asks_who_the_caller_is_and_no_other_does() -> None:
    asked: list[None] = []

    async def principal() -> str:
        asked.append(None)
        return "bucket"

    in_time = _PrincipalInTime(principal, SilentObserver())
    counts: list[int] = []
    for message in (assistant("Hello."), CALLING, CALLING, assistant("Done.")):
        in_time.model_answered(message, Usage(), 0.1)
        await asyncio.sleep(0)
        counts.append(len(asked))
    assert counts == [0, 1, 1, 1]
