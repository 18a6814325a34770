"""A process that answers in a session until a test kills it: `python dying_run.py URL` prints the ids when ready."""

import asyncio
import sys
from contextlib import aclosing

from task.conversation.messages import FunctionCall, ToolCall, assistant, user
from task.llm.base import Usage
from task.runs.traces import TraceRecorder, TraceStart
from task.store.access import StoreOptions
from task.store.records import new_id
from task.store.store import open_store
from tests.support.stores import OWNER


async def main(url: str) -> None:
    store, looker = await open_store(StoreOptions(url)), await open_store(StoreOptions(url))
    session = await store.sessions.start(OWNER)
    question = user("What is it?")
    trace_id = new_id("trace", 12)
    run = await store.runs.start(OWNER, session=session, messages=[question], trace_id=trace_id)
    observer = TraceRecorder(store.traces, TraceStart(OWNER, "http", "m", asked=(question,)), trace_id)
    observer.model_answered(assistant("I was", [ToolCall("c", FunctionCall("look"))]), Usage(5, 1), 0.1)
    store.runs.append_event(run.run_id, "text", text="I was ")
    store.runs.append_event(run.run_id, "text", text="about to")
    async with aclosing(looker.runs.events_after(OWNER, run.run_id, 1)) as events:
        await anext(events)
    while not (await looker.traces.list(OWNER)).items:
        await asyncio.sleep(0.05)
    print(run.run_id, trace_id, session.session_id, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
