"""Answer one run of the HTTP door: its request as a turn, the turn's outcome as its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from task.api.edge.failures import Failure, failure_of
from task.api.platform.approvals import RunPermissions, Suspension
from task.api.platform.choice import RunChoice
from task.api.platform.run_request import RunRequest
from task.api.platform.web_search import with_web_search
from task.conversation.messages import Message, ToolCall
from task.errors import ProviderError
from task.llm.base import Usage
from task.loop import CONTENT_FILTER, EMPTY_ANSWER, Limits, LoopObserver, RunOutcome
from task.product import Product
from task.store.records import Run, RunStatus
from task.store.store import Store
from task.tools.models import Caller
from task.turn import TurnRequest, take_turn


@dataclass(slots=True)
class Result:
    """How a run ended. `calls` are those the caller is to make; `question` is put to a person about other calls.

    `session_id` is the session that a run without one was given, so that it can be continued. `cut`: the
    answer ended at the model's limit of tokens.
    """

    status: RunStatus
    added: tuple[Message, ...] = ()
    usage: Usage = field(default_factory=Usage)
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    question: str = ""
    limit: str | None = None
    error: BaseException | None = None
    failure: Failure | None = None
    session_id: str | None = None
    cut: bool = False

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's word for the end, where a filtered or an empty answer is an answer; None: it is an error."""
        if self.error is not None:
            return _finish_reason(self.error)
        if self.calls:
            return "tool_calls"
        return "length" if self.cut or self.status == "cancelled" else "stop"  # OpenAI has no word for a stopped one

    def with_error(self, error: BaseException) -> Result:
        return replace(self, error=error, failure=self.failure or failure_of(error))


async def answer(
    product: Product, request: RunRequest, run: Run, choice: RunChoice, observer: LoopObserver, store: Store, steps: int
) -> Result:
    """Answer into `choice`; every failure, and a cancellation, is a result. `steps` limits the requests with tools."""
    permissions: RunPermissions | None = None
    outcome = RunOutcome("cancelled", (), Usage())
    question, session_id, calls = "", None, tuple[ToolCall, ...]()
    try:
        permissions = await RunPermissions.of(request, run, store, product.approval_rules)
        turn = _turn_request(request, permissions, replace(product.limits, steps=steps))
        outcome = await take_turn(product, turn, choice, observer)
        outcome = replace(outcome, added=permissions.with_notes(outcome.added))
        if outcome.status not in ("cancelled", "failed"):
            suspension = Suspension(permissions, outcome.pending, turn.own_names)
            calls = suspension.calls
            question, session_id = await suspension.ask(request, run, outcome.added, choice)
            await permissions.save_grants()
    except asyncio.CancelledError:
        outcome, calls = RunOutcome("cancelled", outcome.added, Usage()), ()
    except Exception as error:
        outcome, calls = RunOutcome("failed", outcome.added, Usage(), error=error), ()
    choice.flush()
    return Result(
        outcome.status, outcome.added, outcome.usage, choice.text, calls, question,
        outcome.limit, outcome.error, session_id=session_id, cut=outcome.cut,
    )  # fmt: skip


def _turn_request(request: RunRequest, permissions: RunPermissions, limits: Limits) -> TurnRequest:
    options, caller = request.options, request.caller

    async def principal() -> str:
        return caller.owner

    return TurnRequest(
        (*permissions.history(request.history), *request.new),
        Caller(caller.core_key, principal, permissions.conversation, dict(caller.headers), request.files),
        options.model,
        permissions.decisions(),
        replace(options.model_options, tool_choice=None if options.choice == "auto" else options.choice),
        prompt=options.prompt,
        own_tools=options.tools,
        adapt=with_web_search,
        mode=options.mode,
        limits=limits,
    )


def _finish_reason(error: BaseException) -> str | None:
    # A provider that refuses the question itself does so with a status.
    ended = error.code if isinstance(error, ProviderError) and error.status_code is None else None
    return {CONTENT_FILTER: "content_filter", EMPTY_ANSWER: "stop"}.get(ended or "")
