"""Read everything back after `make scale`, and compare it with what people were told and what tools have written."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.scale_people import READ_SECONDS, RETRY_SECONDS, Event, Gone, Person, Turn

LEAST = 300  # answered questions, for a figure or a verdict to mean something
READERS = 16  # requests at a time when all is read back


@dataclass
class Report:
    """What was lost, what was done twice, and which requests failed (HTTP 500), by kind, with an example of each;
    `unread` sessions could not be read back in time."""

    lost: Counter[str] = field(default_factory=Counter[str])
    duplicated: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    unread: int = 0
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, where: Counter[str], kind: str, example: str) -> None:
        where[kind] += 1
        self.examples.setdefault(kind, example)


async def audit(people: Sequence[Person], notes: Sequence[str]) -> Report:
    """Read everything back and compare it with what people were told."""
    report, written, slots = Report(), Counter(notes), asyncio.Semaphore(READERS)
    end = asyncio.get_running_loop().time() + READ_SECONDS

    async def check(person: Person) -> None:
        async with slots:
            try:
                async with asyncio.timeout_at(end):
                    await _check(person, written, report)
            except Gone as error:
                report.add(report.lost, "sessions", f"{person.session_id}: {error}")
            except TimeoutError:
                report.unread += 1
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
            report.add(report.lost, "answers", f"{where}: {turn.answer[-60:]!r}, in {', '.join(turn.runs)}")
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


def verdict(report: Report, turns: Sequence[Turn]) -> tuple[int, str]:
    """The exit code, and why: 1 where the product is at fault, 2 where the machine was too slow to find out."""
    answered, refused = sum(turn.seconds is not None for turn in turns), sum(bool(turn.refused) for turn in turns)
    if report.lost or report.duplicated or report.failed:
        return 1, "Something was lost, done twice, or failed."
    if report.unread:
        return 2, f"This measured nothing: {report.unread} sessions could not be read back in time."
    if answered < LEAST:
        return 2, f"This measured nothing: {answered} questions were answered, and it takes {LEAST}."
    if refused >= answered:
        return 1, "Most questions were refused."
    return 0, "Nothing was lost, nothing was done twice, nothing failed."


async def unsettled(people: Sequence[Person]) -> list[str]:
    """The runs that are still in progress after `READ_SECONDS`; sooner, once there are none."""
    found, slots = dict[int, list[str]](), asyncio.Semaphore(READERS)

    async def settle(person: Person) -> None:
        with suppress(Gone):  # `audit` reports it, and what cannot be read
            while found.get(person.number) != []:
                async with slots:
                    runs = (await person.read(f"/runs?session_id={person.session_id}"))["runs"]
                found[person.number] = [run["run_id"] for run in runs if run["status"] == "running"]
                if found[person.number]:
                    await asyncio.sleep(RETRY_SECONDS)

    with suppress(TimeoutError):
        async with asyncio.timeout(READ_SECONDS):
            await asyncio.gather(*(settle(person) for person in people if person.session_id))
    return [run_id for running in found.values() for run_id in running]
