"""However asking, answering, retrying, stopping and killing interleave in two processes, an approved call runs once."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from task.approvals.approvals import ApprovalRules
from task.conversation.inputs import Answer
from task.conversation.messages import INTERRUPTED, PERHAPS_RUN, Message, Role, user
from task.errors import AgentError, NotFound, StoreUnavailable
from task.llm.base import Delta, Finish, ModelOptions, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.permissions.decisions import Effect
from task.product import Backend, Services, opened
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.runs.table import Preparing
from task.settings import Settings
from task.store import tables
from task.store.access import StoreAccess, StoreOptions
from task.store.records import Approval, RequestKey, Run
from task.store.store import Store, open_store
from tests.support.simulated_loop import SimulatedLoop
from tests.support.stores import StoreClock, sqlite_url
from tests.support.tools import MadeTool
from tests.support.upstream_rules import fault_of

IN_TEST, IN_SYSTEM = 20, 2_000
SECONDS = 30
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
WORDS = ("approve", "approve", "approve", "deny", "always")
DEAD = "this process is dead"
LATE = 4_000.0  # longer than a question is open
KINDS = (
    "ask", "ask", "ask", "ask", "code", "code", "code", "word", "word", "card", "card", "foreign", "key", "key", "stop",
    "kill", "late",
)  # fmt: skip


@dataclass(frozen=True)
class Action:
    """What somebody does at one of the processes; the next action follows after so many steps of the event loop, or
    (None) when this one is over."""

    kind: str
    process: int
    pick: int
    steps: int | None


STEPS = st.one_of(st.none(), st.integers(0, 400))
ACTIONS = st.builds(Action, st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 9), STEPS)
PLANS = st.lists(ACTIONS, min_size=3, max_size=14)


class TickingClock(StoreClock):
    """A clock by which nothing happens at the same time."""

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@dataclass(eq=False)
class Process:
    """A process that shares the store with the other one. From its crash on, nothing of it reaches the database."""

    services: Services
    store: Store
    runner: Runner
    preparing: Preparing
    alive: bool = True


class EagerModel:
    """A model that wants to write something new whenever it is asked, and takes its time."""

    name = "eager"

    def __init__(self, pair: Pair, process: Callable[[], Process]) -> None:
        self._pair, self._process = pair, process

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        body = {"messages": [message.as_dict() for message in messages], **({"tools": list(tools)} if tools else {})}
        assert (fault := fault_of(body)) is None, fault
        world, dice = self._pair.world, self._pair.world.dice
        world.last_request = list(messages)
        wanted = not world.quiet and (messages[-1].role is not Role.TOOL or dice.random() < 0.25)
        if dice.random() < 0.4:
            yield TextDelta("Well. ")
        await world.linger()
        if not self._process().alive:
            raise StoreUnavailable(DEAD)
        for index in range(dice.choice((1, 1, 2)) if wanted else 0):
            # Some servers number the calls of each answer from zero.
            yield ToolCallDelta(index, f"call_{index}", "write", f'{{"text": "text {next(world.numbers)}"}}')
        if not wanted:
            yield TextDelta("Done.")
        yield Usage(3, 2)
        yield Finish("tool_calls" if wanted else "stop")


@dataclass(eq=False)
class Pair:
    """Two processes on one database; a new one takes the place of one that crashed."""

    url: str
    clock: TickingClock = field(default_factory=TickingClock)
    processes: list[Process] = field(default_factory=list[Process])
    dead: list[Process] = field(default_factory=list[Process])
    entering: asyncio.Lock = field(default_factory=asyncio.Lock)
    world: World = field(init=False)

    async def process(self) -> Process:
        async with self.entering:
            store = await open_store(StoreOptions(self.url, clock=self.clock, chores=False))
            alive = update(tables.processes).where(tables.processes.c.id == store.processes.own_id)
            await store.database.execute(alive.values(seen_at=self.clock() + 1e9))

        async def write(text: str) -> str:
            if not made.alive:
                raise StoreUnavailable(DEAD)
            self.world.ran[text] += 1
            await self.world.linger()
            return f"noted: {text}"

        services, profile = opened(Settings(), tools=[MadeTool("write", write, TEXT, frozenset({Effect.WRITE}))])
        services = replace(services, store=StoreAccess(StoreOptions(self.url), _store=store))
        profile = replace(
            profile,
            backend=Backend(lambda *_: EagerModel(self, lambda: made), fetches_files=True, listed=False),
            rules=ApprovalRules(clock=self.clock),
        )
        runner = Runner(services, profile, detach_seconds=3_600)
        made = Process(services, store, runner, Preparing(services, profile))
        for name in ("read", "write"):
            setattr(store.database, name, partial(visited, made, getattr(store.database, name)))
        return made

    async def crash(self, place: int) -> None:
        """Leave of the process what a crash leaves: its row, and what it had written."""
        process = self.processes[place]
        process.alive = False
        self.dead.append(process)
        process.store.writer._task.cancel()
        self.processes[place] = new = await self.process()
        lost = update(tables.processes).where(tables.processes.c.id == process.store.processes.own_id)
        await new.store.database.execute(lost.values(place=f"{socket.gethostname()} 999999999 1"))

    async def bury(self, *processes: Process) -> None:
        for process in processes:
            await process.runner.close()
            await process.services.close()
            process.store.writer._task.cancel()
            await asyncio.wait({process.store.writer._task})
            await process.store.database.close()


@dataclass(eq=False)
class World:
    """A person with two sessions, and what was asked, meant and done."""

    pair: Pair
    number: int
    dice: random.Random
    sessions: list[str] = field(default_factory=list[str])
    ran: Counter[str] = field(default_factory=Counter[str])
    meant: set[str] = field(default_factory=set[str])
    words: set[str] = field(default_factory=set[str])  # the sessions in which a bare word approved
    always: bool = False
    quiet: bool = False
    hurry: bool = False
    numbers: count[int] = field(default_factory=count)
    last_request: list[Message] = field(default_factory=list[Message])
    keyed: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    seen: Counter[str] = field(default_factory=Counter[str])

    @property
    def me(self) -> RunCaller:
        return RunCaller(f"ann-{self.number}")

    async def linger(self) -> None:
        for _ in range(0 if self.hurry else self.dice.randrange(300)):
            await asyncio.sleep(0)

    async def play(self, plan: Sequence[Action]) -> None:
        acting: set[asyncio.Task[None]] = set()
        for action in plan:
            task = asyncio.create_task(self.act(action))
            acting.add(task)
            if action.steps is None:
                await asyncio.wait({task}, timeout=SECONDS)
            for _ in range(action.steps or 0):
                await asyncio.sleep(0)
        self.hurry = True
        done, late = await asyncio.wait(acting, timeout=SECONDS)
        assert not late, f"still waiting: {late}"
        for task in done:
            task.result()

    async def act(self, action: Action) -> None:
        process = self.pair.processes[action.process]
        try:
            run = await getattr(self, f"_{action.kind}")(process, action)
            if run is not None and action.steps is None:
                await (await process.runner.follow(run.owner, run.run_id)).ended
            self.seen[action.kind] += 1
        except AgentError:
            self.seen[f"{action.kind} refused"] += 1

    async def said(self, process: Process, text: str, session_id: str | None, key: RequestKey | None = None) -> Run:
        options = RunOptions("test", "eager")
        async with process.runner.once(self.me.owner, key) as run:
            if run is not None:
                return run
            request = await process.preparing.in_session(self.me, [user(text)], options, session_id)
            return await process.runner.start(request, key)

    async def asked(self, process: Process) -> tuple[Approval, ...]:
        return await process.store.approvals.list(self.me.owner, waiting=False)

    async def _ask(self, process: Process, action: Action) -> Run:
        return await self.said(process, f"Note something, {action.pick}", self.sessions[action.pick % 2])

    async def _code(self, process: Process, action: Action) -> Run | None:
        if not (questions := await self.asked(process)):
            return None
        chosen = [questions[-1 - action.pick // 2 % len(questions)]]
        chosen += [item for item in questions if action.pick % 2 and item.run_id == chosen[0].run_id]
        word = WORDS[action.pick % len(WORDS)]
        self._mean(word, *chosen)
        codes = " and ".join(dict.fromkeys(item.code for item in chosen))
        return await self.said(process, f"{word} {codes}", None if action.pick % 3 else chosen[0].session_id)

    async def _word(self, process: Process, action: Action) -> Run:
        word, session_id = WORDS[action.pick % len(WORDS)], self.sessions[action.pick % 2]
        self._mean(word)
        if word != "deny":
            self.words.add(session_id)
        return await self.said(process, word, session_id)

    async def _card(self, process: Process, action: Action) -> Run | None:
        if not (questions := await self.asked(process)):
            return None
        chosen, word = questions[-1 - action.pick // 2 % len(questions)], WORDS[action.pick % len(WORDS)]
        self._mean(word, chosen)
        await process.preparing.answer(self.me, chosen.approval_id, Answer.of(word))
        request = await process.preparing.resumed(self.me, chosen.run_id or "")
        return await process.runner.start(request) if request is not None else None

    async def _foreign(self, process: Process, action: Action) -> None:
        for item in (await self.asked(process))[-1:]:
            mallory, options = RunCaller(f"mallory-{self.number}"), RunOptions("test", "eager")
            with pytest.raises((NotFound, StoreUnavailable)):
                await process.preparing.in_session(mallory, [user(f"approve {item.code}")], options)
            with pytest.raises((NotFound, StoreUnavailable)):
                await process.preparing.answer(mallory, item.approval_id, Answer(True))

    async def _key(self, process: Process, action: Action) -> Run:
        key = RequestKey(f"key-{self.number}-{action.pick % 2}", f"body {action.pick // 2 % 2}")
        run = await self.said(process, "Note something", self.sessions[action.pick // 2 % 2], key)
        self.keyed[key.name].add((key.digest, run.run_id))
        return run

    async def _stop(self, process: Process, action: Action) -> None:
        for run in (await process.store.runs.list(self.me.owner, limit=1)).items:
            await process.runner.stop(run.owner, run.run_id)
            await self.pair.processes[1 - action.process].store.runs.poll_requests()

    async def _kill(self, process: Process, action: Action) -> None:
        if not process.alive:
            return
        await self.pair.crash(action.process)
        for _ in range(50 * action.pick):
            await asyncio.sleep(0)
        while not (living := [item for item in self.pair.processes if item.alive]):  # both crash at the moment
            await asyncio.sleep(0)
        await living[(1 - action.process) % len(living)].store.processes.interrupt_orphans()

    async def _late(self, process: Process, action: Action) -> None:
        async with self.pair.entering:
            self.pair.clock.now += LATE

    def _mean(self, word: str, *chosen: Approval) -> None:
        self.always = self.always or word == "always"
        if word != "deny":
            self.meant.update(item.arguments["text"] for item in chosen)

    async def settle(self) -> None:
        """Let everything end, and then say something in both sessions."""
        for process in (*self.pair.dead, *self.pair.processes):
            tasks = [live.task for live in process.runner._live.values() if live.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=SECONDS)
        survivor = self.pair.processes[0]
        await survivor.store.processes.interrupt_orphans()
        self.quiet = True
        for session_id in self.sessions:
            await self.check_session(survivor, session_id)

    async def check_session(self, process: Process, session_id: str) -> None:
        run = await self.said(process, "What did you do?", session_id)
        await asyncio.wait_for((await process.runner.follow(run.owner, run.run_id)).ended, SECONDS)
        results = results_of(self.last_request)
        questions = await process.store.approvals.list(self.me.owner, session_id=session_id, waiting=False)
        for text in {item.arguments["text"] for item in questions}:
            asked = [item for item in questions if item.arguments["text"] == text]
            allowed = any(item.status == "allowed" for item in asked)
            result = results.get(text, "")
            note = f"{text}: {'allowed' if allowed else 'not allowed'}, ran {self.ran[text]} times, {result!r}"
            if self.ran[text]:
                assert allowed or self.always, note
                assert text in self.meant or session_id in self.words or self.always, note
                assert result in (f"noted: {text}", PERHAPS_RUN), note
            elif allowed:
                runs = [await process.store.runs.get(self.me.owner, item.run_id or "") for item in asked]
                # A process may have died after it had put the question and before the call was in the session.
                lost = any(run.status == "interrupted" for run in runs)
                assert result in (PERHAPS_RUN, INTERRUPTED, *([""] if lost else [])), note
            else:
                assert not result or "did not approve it" in result or "This call was not allowed" in result, note


def results_of(messages: Sequence[Message]) -> dict[str, str]:
    """What the model reads as the result of each call, by what the call would write."""
    found: dict[str, str] = {}
    calls: dict[str, str] = {}
    for message in messages:
        if message.tool_calls:
            calls = {call.id: call.function.arguments[10:-2] for call in message.tool_calls}
        elif message.role is Role.TOOL and message.tool_call_id is not None:
            found[calls[message.tool_call_id]] = message.text()
    return found


async def visited(process: Process, visit: Callable[[Any], Awaitable[Any]], work: Any) -> Any:
    if not process.alive:
        raise StoreUnavailable(DEAD)
    result = await visit(work)
    if not process.alive:
        raise StoreUnavailable(DEAD)
    return result


async def played(pair: Pair, number: int, plan: Sequence[Action], seed: int) -> Counter[str]:
    world = World(pair, number, random.Random(seed))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.dice = random.Random(seed)
    pair.world, sessions = world, pair.processes[0].store.sessions
    world.sessions = [(await sessions.start(world.me.owner)).session_id for _ in range(2)]
    await world.play(plan)
    await world.settle()
    asked = {item.arguments["text"] for item in await world.asked(pair.processes[0])}
    unasked = [text for text in world.ran if text not in asked]
    assert world.always or not unasked, f"{unasked} ran without a question"
    assert max(world.ran.values(), default=0) <= 1
    for name, started in world.keyed.items():
        assert len(started) == 1, f"{name} has started {started}"
    await pair.bury(*pair.dead)
    pair.dead.clear()
    return Counter({"ran": world.ran.total(), **world.seen})


def play_all(examples: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    monkeypatch.setattr("task.store.runs.monotonic", lambda: asyncio.get_running_loop().time())
    seen, numbers = Counter[str](), count()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, asyncio.Runner(loop_factory=SimulatedLoop) as running:
        pair = Pair(sqlite_url(Path(folder)))

        @settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow],
            phases=[Phase.generate, Phase.shrink],
        )  # fmt: skip
        @given(PLANS, st.integers(0, 2**32))
        def play(plan: list[Action], seed: int) -> None:
            seen.update(running.run(played(pair, next(numbers), plan, seed)))

        pair.processes = [running.run(pair.process()) for _ in range(2)]
        try:
            play()
        finally:
            running.run(pair.bury(*pair.dead, *pair.processes))
    return seen


@pytest.mark.fault("http api: any order of asking, answering, retrying, stopping and killing in two processes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("examples", [IN_TEST, pytest.param(IN_SYSTEM, marks=pytest.mark.system)])
def test_an_approved_call_runs_once_and_no_other_does(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_all(examples, monkeypatch)["ran"] > examples // 10
