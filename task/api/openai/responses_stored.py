"""Responses that were given before: found by their id, told again, gone on with, and taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from task.api.edge.failures import Refused
from task.api.openai.responses_output import Spoken, run_id_of
from task.api.platform.run_request import RunOptions
from task.errors import Conflict, NotFound
from task.store.records import Event, Run
from task.store.store import Store

DOOR = "responses"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A run of the Responses API in its session. Of a run in progress only the first event is known."""

    run: Run
    session_id: str
    options: RunOptions
    events: Sequence[Event]

    @property
    def start(self) -> int:
        """How many messages the session had before this response's own."""
        return self.events[0].data["messages"]

    @property
    def end(self) -> int | None:
        """How many messages the session had after it; None while it goes on, and when its process died."""
        return self.events[-1].data.get("messages") if self.events[-1].type == "finished" else None

    def spoken(self) -> Spoken:
        return Spoken(
            self.run, self.options, self.session_id, _text(self.events),
            [call for event in self.events if event.type == "tool_calls" for call in event.data["tool_calls"]],
            [event.data["attachment"] for event in self.events if event.type == "attachment" and _of_answer(event)],
            _last(self.events, "usage"), (_last(self.events, "error") or {}).get("error"),
            (_last(self.events, "finished") or {}).get("finish_reason"),
        )  # fmt: skip


async def stored_response(store: Store, owner: str, response_id: str) -> StoredResponse:
    """The response.

    Raises:
        NotFound: the owner has no such response: it never was, was not to be stored, or was deleted.
    """
    missing = NotFound(f"there is no response {response_id!r}")
    try:
        run = await store.runs.get(owner, run_id_of(response_id))
    except NotFound:
        raise missing from None
    events = await _events(store, run)
    if run.session_id is None or not events or events[0].data["request"]["door"] != DOOR:
        raise missing
    return StoredResponse(run, run.session_id, RunOptions.from_dict(events[0].data["request"]), events)


async def previous_response(store: Store, owner: str, response_id: str) -> StoredResponse:
    """The response that another one goes on with.

    Raises:
        Refused: there is none, as OpenAI's API tells it.
        Conflict: it is not complete yet.
    """
    try:
        found = await stored_response(store, owner, response_id)
    except NotFound:
        told = f"There is no response {response_id!r} to go on with: it was not stored, or it was deleted."
        raise Refused(404, told, code="previous_response_not_found", param="previous_response_id") from None
    if not found.run.over:
        raise Conflict(f"the response {response_id} is not complete; wait for it, or cancel its run")
    return found


async def take_back(store: Store, owner: str, response_id: str) -> None:
    """Remove the response with its trace; what later responses go on with stays in their conversation.

    Raises:
        NotFound: the owner has no such response.
        Conflict: it is not complete yet.
    """
    found = await stored_response(store, owner, response_id)
    if not found.run.over:
        raise Conflict(f"the response {response_id} is not complete; wait for it, or cancel its run")
    await store.sessions.remove_run(found.run, found.start, found.end)


async def _events(store: Store, run: Run) -> list[Event]:
    found: list[Event] = []
    async with aclosing(store.runs.events_after(run.owner, run.run_id)) as events:
        async for event in events:
            found.append(event)
            if not run.over:
                break
    return found if found and found[0].type == "started" else []


def _text(events: Sequence[Event]) -> str:
    said = "".join(event.data["text"] for event in events if event.type == "text")
    return "\n\n".join(filter(None, (said, *(event.data["text"] for event in events if event.type == "approval"))))


def _of_answer(event: Event) -> bool:
    return event.data["stage"] is None


def _last(events: Sequence[Event], kind: str) -> Mapping[str, Any] | None:
    return next((event.data for event in reversed(events) if event.type == kind), None)
