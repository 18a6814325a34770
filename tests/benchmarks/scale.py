"""Many conversations before three replicas that are killed, frozen, cut off and replaced: what is lost or done twice.

`python -m tests.benchmarks.scale [--seed 1] [--seconds 300] [--conversations 200] [--logs FOLDER]` starts PostgreSQL,
Redis, nginx, two interpreters, three agents whose clocks are five minutes apart, and a deterministic model. The first
third of the time has no faults; then they come at random times, which follow from the seed, under the same load. People
read their answers as clients should: they send a request that fails once more under its `Idempotency-Key`, and ask
again for the events after the last one they have. At the end all sessions, runs and questions are read back and
compared with what people were told, and with what the tools have written. Exit code 1 unless nothing was lost, nothing
was done twice, no agent failed unexpectedly (HTTP 500), and more than half of the questions were answered. FOLDER gets
the logs of the agents.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import orjson

from tests.benchmarks import processes
from tests.benchmarks.product_load import percentile
from tests.benchmarks.upstream import WORD
from tests.support.cluster import FAKETIME, Cluster, Replica, cluster
from tests.support.interpreter import TOKEN
from tests.support.interpreter_fleet import interpreter_fleet
from tests.support.next_version import later_product
from tests.support.postgres_server import DEBIAN
from tests.support.up import dial_agent

SECONDS, CONVERSATIONS, SEED = 300.0, 200, 1
CLOCKS = (0, 300, -300)  # seconds by which the replicas' clocks are off
QUIET = 1 / 3  # the share of the time without faults
WORDS, PAUSE_MS = 40, 50
THINKS = (20.0, 60.0)  # seconds: 200 people then ask five questions a second, which two cores answer
IMPATIENT = (0.5, 2.0)  # in a run of less than a minute
RETRY_SECONDS, ANSWER_SECONDS, SETTLE_SECONDS, READ_SECONDS = 1.0, 150.0, 90.0, 60.0
BETWEEN_FAULTS = (2.0, 8.0)
KINDS = ("kill", "freeze", "restart_database", "cut_off", "lose_redis", "roll_out", "migrate")
READERS = 16  # requests at a time when all is read back
NEEDED = {"nginx": "nginx-light", "redis-server": "redis-server"}
BROKEN = (aiohttp.ClientError, TimeoutError, ConnectionError)
SUM = re.compile(r"sum=(\d+);")
CODERS = 20  # of so many people one runs code
Event = dict[str, Any]


class Refused(Exception):
    """The request was not answered, or not to its end; the text says how."""


@dataclass(slots=True)
class Turn:
    """What a person asked and what became of it. `runs` has the events that were seen of each run, by their numbers."""

    word: str
    script: str
    began: float
    seconds: float | None = None
    accepted: bool = False
    answer: str = ""
    refused: str = ""
    words: int = WORDS
    runs: dict[str, dict[int, Event]] = field(default_factory=dict[str, dict[int, Event]])
    approved: list[str] = field(default_factory=list[str])

    @property
    def ending(self) -> str:
        """The text after the last call."""
        match self.script.split():
            case ["note", word]:
                return f"noted: {word}"
            case ["record", word, *_]:
                return f"recorded: {word}"
            case ["add", *_]:
                return self.answer
            case _:
                return WORD * self.words

    @property
    def writes(self) -> bool:
        return self.script.startswith(("note", "record"))


@dataclass(slots=True)
class Person:
    """One conversation in a session. Of three turns one writes a note, which the person approves, and one calls a tool
    that writes without a question."""

    number: int
    url: str
    key: str
    session: aiohttp.ClientSession
    thinks: tuple[float, float]
    words: int = WORDS  # of an answer
    session_id: str = ""
    turns: list[Turn] = field(default_factory=list[Turn])
    codes: bool = False  # whether some of its turns add to a variable of its kernel
    sums: set[int] = field(default_factory=lambda: {0})  # what that may be by now
    wrong_sums: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])  # requests that an agent failed to handle

    async def converse(self, seed: int, stopping: asyncio.Event) -> None:
        dice = random.Random(f"{seed} {self.number}")
        await _unless(stopping, dice.uniform(0, sum(self.thinks) / 2))  # the load is the same from the beginning
        while not self.session_id and not stopping.is_set():
            with suppress(Refused, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    self.session_id = (await self.sent("/session/start", {}, "start"))["session_id"]
        while not stopping.is_set():
            place = len(self.turns) + self.number
            word = f"w{self.number}-{len(self.turns)}"
            if self.codes and not len(self.turns) % 3:
                script = f"add {place + 1} {word}"
            else:
                paced = f"{self.words} {PAUSE_MS}"
                script = (f"note {word}", f"paced {paced} {word}", f"record {word} {paced}")[place % 3]
            self.turns.append(turn := Turn(word, script, perf_counter(), words=self.words))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await (self._streamed(turn) if place % 3 and place % 2 else self._followed(turn))
                turn.seconds = perf_counter() - turn.began
                self._check_sum(turn)
            except Refused as refusal:
                turn.refused = str(refusal)
            except TimeoutError:
                turn.refused = "no answer in time"
            if turn.refused and turn.script.startswith("add"):  # it may have been done, also in a new kernel
                number = int(turn.script.split()[1])
                self.sums |= {before + number for before in self.sums} | {0, number}
            await _unless(stopping, dice.uniform(*self.thinks))

    def _check_sum(self, turn: Turn) -> None:
        if not turn.script.startswith("add"):
            return
        found = SUM.search(turn.answer)
        possible = {before + int(turn.script.split()[1]) for before in self.sums}
        if found is None or int(found[1]) not in possible:
            self.wrong_sums.append(f"{turn.word}: {turn.answer[:80]!r}, not one of {sorted(possible)}")
        self.sums = {int(found[1])} if found is not None else possible | self.sums

    async def _followed(self, turn: Turn) -> None:
        """Ask with `POST /runs`, follow the events, and approve what is asked."""
        run_id = (await self.sent("/runs", self._body(turn), turn.word))["run_id"]
        turn.accepted = True
        status = await self._events(turn, run_id)
        if status == "suspended":
            [approval] = [item for event in turn.runs[run_id].values() for item in event.get("approvals", ())]
            path = f"/approvals/{approval['approval_id']}"
            decided = await self.sent(path, {"decision": "approve"}, f"{turn.word} approved")
            turn.approved.append(approval["approval_id"])
            resumed = decided.get("resumed")
            if resumed is None:
                raise Refused("approved, and not continued")
            run_id = resumed["run_id"]
            status = await self._events(turn, run_id)
        turn.answer = "".join(
            event["text"] for _, event in sorted(turn.runs[run_id].items()) if event["type"] == "text"
        )
        if status != "finished":
            raise Refused(status)

    async def _streamed(self, turn: Turn) -> None:
        """Ask with `/v1/chat/completions`, as OpenAI's clients do."""
        body = {**self._body(turn), "stream": True}
        for again in (False, True):
            pause = RETRY_SECONDS
            try:
                async with self._post("/v1/chat/completions", body, turn.word) as response:
                    turn.accepted = turn.accepted or response.status == 200
                    self._note(response)
                    text = await response.text()
                if response.status == 200 and text.rstrip().endswith("[DONE]"):
                    return self._read(turn, text)
                reason = f"HTTP {response.status}" if response.status != 200 else _error(text)
                if again or response.status == 409:
                    raise Refused(reason)
                pause = _pause(response)
            except BROKEN as error:
                if again:
                    raise Refused(type(error).__name__) from error
            await asyncio.sleep(pause)
        return None

    def _read(self, turn: Turn, text: str) -> None:
        chunks = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        if any("error" in chunk for chunk in chunks):
            raise Refused(_error(text))
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        turn.answer = "".join(choice["delta"].get("content") or "" for choice in choices)
        if "stop" not in {choice.get("finish_reason") for choice in choices}:
            raise Refused("cancelled")

    async def _events(self, turn: Turn, run_id: str) -> str:
        """The run's status at its end; a stream that breaks is followed again from where it broke."""
        seen = turn.runs.setdefault(run_id, {})
        while True:
            try:
                async with aclosing(self.live(run_id, max(seen, default=0))) as events:
                    async for event in events:
                        seen.setdefault(event["id"], event)
                        if event["type"] == "finished":
                            return event["status"]
            except BROKEN:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def sent(self, path: str, body: dict[str, Any], key: str) -> Any:
        """What a POST returns; one that fails is sent once more."""
        for again in (False, True):
            pause = RETRY_SECONDS
            try:
                async with self._post(path, body, key) as response:
                    self._note(response)
                    if response.status < 300:
                        return await response.json()
                    if again or response.status < 500:
                        raise Refused(f"HTTP {response.status}")
                    pause = _pause(response)
            except BROKEN as error:
                if again:
                    raise Refused(type(error).__name__) from error
            await asyncio.sleep(pause)
        return None

    def _post(self, path: str, body: dict[str, Any], key: str) -> Any:
        headers = {**self._headers, "Idempotency-Key": f"{self.number} {key}"}
        return self.session.post(f"{self.url}{path}", json=body, headers=headers)

    def _note(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 500:
            self.errors.append(f"{response.method} {response.url.path}, person {self.number}")

    def _body(self, turn: Turn) -> dict[str, Any]:
        return {"session_id": self.session_id, "messages": [{"role": "user", "content": turn.script}]}

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def read(self, path: str) -> Any:
        """What a GET returns, once the agents are all there again."""
        async with self.session.get(f"{self.url}{path}", headers=self._headers) as response:
            self._note(response)
            assert response.status == 200, f"GET {path}: HTTP {response.status}"
            return orjson.loads(await response.read())

    async def live(self, run_id: str, after: int = 0) -> AsyncGenerator[Event]:
        """The run's events after that number, as they come, until the stream ends."""
        headers = {**self._headers, "Last-Event-ID": str(after)}
        async with self.session.get(f"{self.url}/runs/{run_id}/events", headers=headers) as response:
            self._note(response)
            if response.status == 404:
                raise Refused("the run is gone")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield orjson.loads(line[6:])

    async def events(self, run_id: str) -> list[Event]:
        """All of the run's events."""
        async with aclosing(self.live(run_id)) as events:
            return [event async for event in events]


def _pause(response: aiohttp.ClientResponse) -> float:
    return float(response.headers.get("Retry-After", RETRY_SECONDS))


async def _unless(stopping: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until it is time to stop."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)


def _error(text: str) -> str:
    return "interrupted" if "interrupted" in text else "cancelled" if "error" not in text else "an error in the stream"


@dataclass
class Faults:
    """What happens to the cluster, at random times. `spell` is how long a replica is frozen or cut off, at most."""

    cluster: Cluster
    dice: random.Random
    spell: float
    done: Counter[str] = field(default_factory=Counter[str])
    _locks: dict[int, asyncio.Lock] = field(default_factory=dict[int, asyncio.Lock])
    _spells: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _migrated: bool = False

    async def work(self, until: float) -> None:
        """Faults until then; at the end everything runs again."""
        kinds: list[str] = []
        while perf_counter() < until:
            if not kinds:
                kinds = self.dice.sample(KINDS, len(KINDS))
            await getattr(self, f"_{kinds.pop()}")()
            await asyncio.sleep(min(self.dice.uniform(*BETWEEN_FAULTS), max(until - perf_counter(), 0)))
        await self._spells_over()

    async def once(self, kind: str) -> None:
        """One fault, to its end."""
        await getattr(self, f"_{kind}")()
        await self._spells_over()

    async def _spells_over(self) -> None:
        await asyncio.gather(*self._spells)

    async def _kill(self) -> None:
        async with self._lock(replica := self._chosen()):
            self.done["a replica killed"] += 1
            await replica.kill()
            await replica.start()

    async def _roll_out(self) -> None:
        self.done["a roll-out"] += 1
        for replica in self.cluster.replicas:
            async with self._lock(replica):
                await replica.stop()
                await replica.start()

    async def _restart_database(self) -> None:
        self.done["the database restarted"] += 1
        await self.cluster.postgres.stop()
        await asyncio.sleep(self.dice.uniform(0, 3))
        await self.cluster.postgres.start()

    async def _lose_redis(self) -> None:
        self.done["Redis gone and back"] += 1
        await self.cluster.redis.stop()
        await asyncio.sleep(self.dice.uniform(1, min(self.spell, 5)))
        await self.cluster.redis.start()

    async def _freeze(self) -> None:
        self._begin("a replica frozen", lambda replica: replica.freeze(), lambda replica: replica.wake())

    async def _cut_off(self) -> None:
        self._begin(
            "a replica cut off from the database",
            lambda replica: replica.store.flowing.clear(),
            lambda replica: replica.store.flowing.set(),
        )

    async def _migrate(self) -> None:
        if self._migrated:
            return
        self._migrated = True
        self.done["a migration"] += 1
        later = later_product(self.cluster.folder / "later")
        url = self.cluster.postgres.url
        migrated = await dial_agent(self.cluster.folder, "store", "migrate", AGENT_STORE__URL=url, PYTHONPATH=later)
        assert migrated.code == 0, migrated.err

    def _begin(self, name: str, begin: Callable[[Replica], None], end: Callable[[Replica], None]) -> None:
        replica = self._chosen()

        async def spell() -> None:
            async with self._lock(replica):
                self.done[name] += 1
                begin(replica)
                try:
                    await asyncio.sleep(self.spell)
                finally:
                    end(replica)
                await replica.ready()

        self._spells.add(task := asyncio.create_task(spell()))
        task.add_done_callback(self._spells.discard)

    def _chosen(self) -> Replica:
        free = [replica for replica in self.cluster.replicas if not self._lock(replica).locked()]
        return self.dice.choice(free or self.cluster.replicas)

    def _lock(self, replica: Replica) -> asyncio.Lock:
        return self._locks.setdefault(replica.port, asyncio.Lock())


@dataclass
class Report:
    """What was lost, what was done twice, and which requests failed (HTTP 500), by kind, with an example of each."""

    lost: Counter[str] = field(default_factory=Counter[str])
    duplicated: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, where: Counter[str], kind: str, example: str) -> None:
        where[kind] += 1
        self.examples.setdefault(kind, example)


async def audit(people: Sequence[Person], notes: Sequence[str]) -> Report:
    """Read everything back and compare it with what people were told."""
    report, written, slots = Report(), Counter(notes), asyncio.Semaphore(READERS)

    async def check(person: Person) -> None:
        async with slots:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    await _check(person, written, report)
            except (*BROKEN, AssertionError, Refused) as error:
                report.add(report.lost, "sessions", f"{person.session_id} cannot be read back: {error!r}")
        for request in person.errors:
            report.add(report.failed, "HTTP 500", request)

    await asyncio.gather(*(check(person) for person in people))
    for word, times in written.items():
        if times > 1:
            report.add(report.duplicated, "side effects", f"the note {word} stands {times} times")
    return report


async def _check(person: Person, written: Counter[str], report: Report) -> None:
    if not person.session_id:
        return
    messages = (await person.read(f"/session/{person.session_id}"))["messages"]
    said = Counter(item["content"] for item in messages if item["role"] == "user")
    answers = [item["content"] for item in messages if item["role"] == "assistant"]
    whole = Counter(_answers(messages, {turn.script: turn.ending for turn in person.turns}))
    for wrong in person.wrong_sums:
        report.add(report.duplicated, "sums of a kernel", wrong)
    for turn in person.turns:
        where = f"{turn.word} in {person.session_id}, {turn.refused or 'answered'}"
        if turn.accepted and not said[turn.script]:
            report.add(report.lost, "messages", where)
        if said[turn.script] > 1:
            report.add(report.duplicated, "messages", where)
        if turn.seconds is not None and not (turn.answer.endswith(turn.ending) and turn.ending in answers):
            report.add(report.lost, "answers", f"{where}: {turn.answer[-60:]!r}")
        if whole[turn.script] > 1:
            report.add(report.duplicated, "answers", where)
        if turn.seconds is not None and turn.writes and not written[turn.word]:
            report.add(report.lost, "side effects", where)
        for run_id, seen in turn.runs.items():
            if problem := _difference(seen, await person.events(run_id)):
                report.add(report.lost, "events", f"{where}, {run_id}: {problem}")
            asked = [item["approval_id"] for event in seen.values() for item in event.get("approvals", ())]
            if not asked:
                continue
            found = (await person.read(f"/approvals?run_id={run_id}&waiting=false"))["approvals"]
            statuses = {item["approval_id"]: item["status"] for item in found}
            for approval_id in asked:
                if approval_id not in statuses or (approval_id in turn.approved and statuses[approval_id] != "allowed"):
                    report.add(report.lost, "approvals", f"{where}: {statuses.get(approval_id)}")


def _answers(messages: Sequence[dict[str, Any]], endings: Mapping[str, str]) -> list[str]:
    """The question of each whole answer."""
    found, asked = list[str](), ""
    for item in messages:
        if item["role"] == "user":
            asked = item["content"]
        elif item["role"] == "assistant" and item["content"] == endings.get(asked):
            found.append(asked)
    return found


def _difference(seen: dict[int, Event], stored: Sequence[Event]) -> str:
    if not stored:
        return "none is stored"
    if [event["id"] for event in stored] != list(range(1, len(stored) + 1)):
        return f"numbers {[event['id'] for event in stored]}"
    last = stored[-1]
    if last["type"] != "finished":
        return f"the last one is {last['type']}"
    by_number = {event["id"]: event for event in stored}
    end = last["id"] if last["status"] == "interrupted" else None  # beyond it a dying process may have sent more
    for number, event in seen.items():
        if (end is None or number < end) and by_number.get(number) != event:
            return f"number {number} was {event['type']}, stored is {by_number.get(number, {}).get('type')}"
    return ""


async def unsettled(people: Sequence[Person], seconds: float = SETTLE_SECONDS) -> list[str]:
    """The runs that are still in progress after so many seconds; sooner, once there are none."""
    found, slots = dict[int, list[str]](), asyncio.Semaphore(READERS)

    async def settle(person: Person) -> None:
        found[person.number] = [f"unknown, of {person.session_id}"]
        while found[person.number]:
            with suppress(*BROKEN, AssertionError):
                async with slots:
                    runs = (await person.read(f"/runs?session_id={person.session_id}"))["runs"]
                found[person.number] = [run["run_id"] for run in runs if run["status"] == "running"]
            if found[person.number]:
                await asyncio.sleep(RETRY_SECONDS)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(settle(person) for person in people if person.session_id))
    return [run_id for running in found.values() for run_id in running]


def variables(upstream: int) -> dict[str, str]:
    """The settings of agents before the deterministic model."""
    return {
        "AGENT_BACKEND": "openai", "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}/v1",
        "OPENAI_API_KEY": "sk-test", "DEPLOYMENT_NAME": "bench", "AGENT_LOG_LEVEL": "WARNING",
    }  # fmt: skip


async def scale(folder: Path, seed: int, seconds: float, conversations: int) -> bool:
    """Run it all and print the figures; whether nothing was lost, done twice, or failed, and most questions were
    answered."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(processes.upstream(core=None))
        kernels = folder / "kernels"
        kernels.mkdir()
        fleet = await stack.enter_async_context(interpreter_fleet(kernels, 2))
        more = {"PYINTERPRETER_MCP_URL": fleet.url, "AGENT_MCP_TOKEN": TOKEN}
        made = await stack.enter_async_context(cluster(folder, variables(upstream) | more, clocks=CLOCKS))
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(ANSWER_SECONDS, sock_connect=10)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        thinks = THINKS if seconds >= 60 else IMPATIENT
        keys = await made.keys([f"person-{number}" for number in range(conversations)])
        people = [Person(number, made.url, key, session, thinks) for number, key in enumerate(keys)]
        for person in people[::CODERS]:
            person.codes = True
        began = perf_counter()
        faults_from, until = began + seconds * QUIET, began + seconds
        faults = Faults(made, random.Random(seed), min(60.0, seconds * (1 - QUIET) / 3))
        stopping = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stopping.set)
        talking = asyncio.gather(*(person.converse(seed, stopping) for person in people))
        await asyncio.sleep(seconds * QUIET)
        await asyncio.gather(talking, faults.work(until))
        running = await unsettled(people)
        report = await audit(people, made.notes())
        for run_id in running:
            report.add(report.lost, "ends of runs", run_id)
    turns = [turn for person in people for turn in person.turns]
    timed = [turn for person in people for turn in person.turns[1:]]  # not while agents and kernels load what they need
    quiet = [turn.seconds for turn in timed if turn.seconds and turn.began + turn.seconds <= faults_from]
    later = [turn.seconds for turn in timed if turn.seconds and turn.began > faults_from]
    refused = Counter(turn.refused for turn in turns if turn.refused)
    answered = sum(turn.seconds is not None for turn in turns)
    print(f"Seed {seed}, {conversations} conversations, {seconds:g} s; clocks of the agents five minutes apart.")
    print("Faults: " + ", ".join(f"{name} {count} ×" for name, count in sorted(faults.done.items())))
    early = sum(turn.began <= faults_from for turn in turns)
    rates = early / (seconds * QUIET), (len(turns) - early) / (seconds * (1 - QUIET))
    print(
        f"Questions {len(turns):,} ({rates[0]:.1f} a second without faults, {rates[1]:.1f} with them), "
        f"answered {answered:,}"
    )
    figures = {"Lost": report.lost, "Duplicated": report.duplicated, "Failed": report.failed, "Refused": refused}
    for name, counts in figures.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
        print(f"{name} {counts.total()}" + (f": {kinds}" if kinds else ""))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        if not (quiet and later):
            print(f"{name} added: too few answers to measure it")
            continue
        before, after = percentile(quiet, share), percentile(later, share)
        print(f"{name} added {after - before:.2f} s ({before:.2f} s without faults, {after:.2f} s with them)")
    for kind, example in report.examples.items():
        print(f"  {kind}: {example}")
    return not (report.lost or report.duplicated or report.failed) and 2 * answered > len(turns)


def missing() -> list[str]:
    """The Debian packages that are not there."""
    found = [package for command, package in NEEDED.items() if shutil.which(command) is None]
    found += [] if shutil.which("postgres") or glob(f"{DEBIAN}/postgres") else ["postgresql"]
    return [*found, *([] if glob(FAKETIME) else ["faketime"])]


def main() -> None:
    options = argparse.ArgumentParser(prog="make scale")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--conversations", type=int, default=CONVERSATIONS)
    options.add_argument("--logs", type=Path, help="a folder for the logs of the agents")
    given = options.parse_args()
    if given.seconds < 10 or given.conversations < 2:
        options.error("SECONDS is at least 10, CONVERSATIONS at least 2")
    if packages := missing():
        sys.exit(f"make scale needs these Debian packages: {' '.join(packages)}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            sound = asyncio.run(scale(Path(folder), given.seed, given.seconds, given.conversations))
        finally:
            if given.logs is not None:
                given.logs.mkdir(parents=True, exist_ok=True)
                for log in Path(folder).glob("*/agent.log"):
                    shutil.copy(log, given.logs / f"{log.parent.name}.log")
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
