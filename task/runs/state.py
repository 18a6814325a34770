"""The state of a run, folded from its events: live, ended, or read back from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from task.errors import with_reference
from task.llm.base import Usage
from task.runs.request import RunOptions
from task.store.records import Event, Run, RunStatus

BROKEN_OFF = "The answer was interrupted."
UNAVAILABLE = 503  # the process went away: no fault of the request, and none of the product


@dataclass(slots=True)
class RunState:
    """A run up to its latest event.

    `calls` are handed out to the caller, `question` is the text that asks a person about others, `attachments` belong
    to the answer itself. `usage` and `failure` are the data of their events; `finish_reason` is OpenAI's, None where
    the run has failed. `start` and `end` count the messages of the conversation before and after the run.
    """

    run: Run
    options: RunOptions
    session_id: str | None
    status: RunStatus = "running"
    question: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    attachments: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    start: int = 0
    end: int | None = None
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def ids(self) -> dict[str, str | None]:
        return {"session_id": self.session_id, "run_id": self.run.run_id, "trace_id": self.run.trace_id}

    @property
    def over(self) -> bool:
        return self.status != "running"

    @property
    def failed(self) -> bool:
        """Whether the run has ended without an answer."""
        return self.failure is not None and self.finish_reason is None

    @property
    def answer(self) -> str:
        """The whole answer, with a question about waiting calls."""
        return "\n\n".join(filter(None, (self.written, self.question)))

    @property
    def written(self) -> str:
        """The text so far, without a question about waiting calls."""
        return "".join(self._pieces)

    def apply(self, event: Event) -> None:
        """Add the next event."""
        data = event.data
        match event.type:
            case "text":
                self._pieces.append(data["text"])
            case "started":
                self.start = data["messages"]
            case "approval":
                self.question = data["text"]
            case "tool_calls":
                self.calls = data["tool_calls"]
            case "attachment" if data["stage"] is None:
                self.attachments.append(data["attachment"])
            case "usage":
                self.usage = data
            case "error":
                self.failure = data
            case "finished":
                self.status, self.finish_reason = data["status"], data.get("finish_reason")
                self.session_id, self.end = data["session_id"], data.get("messages")
            case _:
                pass

    def fail(self, failure: Mapping[str, Any]) -> None:
        """The run has failed after its last event: it could not be stored."""
        self.failure, self.finish_reason = failure, None


def state_of(run: Run, events: Iterable[Event]) -> RunState | None:
    """The state of a stored run; None where none of its events was stored.

    A run whose process died has no last event; its status is in its row.
    """
    found = list(events)
    started = found[0].type == "started" if found else False
    if not started and run.status != "interrupted":
        return None
    # A process may die before the first event is stored; a client that asks again is to learn that.
    options = RunOptions.from_dict(found[0].data["request"]) if started else RunOptions("", "")
    state = RunState(run, options, run.session_id)
    for event in found:
        state.apply(event)
    if run.over:
        state.status, state.session_id = run.status, run.session_id
    if run.status == "interrupted":
        error = {"message": BROKEN_OFF, "type": "api_error", "param": None, "code": run.status, "reference": run.run_id}
        shown = {**error, "display_message": with_reference(BROKEN_OFF, run.run_id)}
        state.fail(state.failure or {"error": shown, "status": UNAVAILABLE})
    return state


def usage_data(usage: Usage) -> dict[str, Any]:
    """Tokens under OpenAI's names, for events and bodies."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
