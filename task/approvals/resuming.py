"""Go on with a suspended turn: what was approved gets a grant, what was denied gets the person's reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from task.conversation.history import unanswered
from task.conversation.inputs import Incoming, decision_of
from task.conversation.replies import Verdict
from task.conversation.state import TurnState, waits
from task.permissions.decisions import CallRequest, Decision, Denied, Gate
from task.permissions.grants import Grant, Grants

EXPIRED = "This approval came too late: the question is no longer open. Nothing has run."
USED = "This approval was used before, so nothing has run now."
FOREIGN = (
    "This approval cannot be accepted: the question was changed, was put to somebody else, or comes from before the "
    "agent was set up anew. Nothing has run."
)
ASK_AGAIN = "Ask me again if you still want it done."
DENIED = "the user denied it"
TOO_LATE = "Error: the user's approval came after the question had expired, so this call did not run."
USED_BEFORE = (
    "Error: the user's approval had been used before, so this call did not run now. It may have run then: look whether "
    "it did before you call it again."
)


@dataclass(frozen=True, slots=True)
class Resumption:
    """A suspended turn and what the person decided about each of its waiting calls, in their order."""

    turn: TurnState
    verdicts: tuple[Verdict, ...]

    @property
    def approves(self) -> bool:
        return any(verdict.choice != "deny" for verdict in self.verdicts)

    def denials(self) -> dict[str, str]:
        """The reasons why calls do not run, by the calls' ids."""
        pairs = zip(self.turn.pending, self.verdicts, strict=True)
        return {
            waiting.call_id: f"{DENIED}: {verdict.reason}" if verdict.reason else DENIED
            for waiting, verdict in pairs
            if verdict.choice == "deny"
        }

    def grant(self, grants: Grants, whose: tuple[str, str], expires: float) -> None:
        """Allow each approved call once; what is to be allowed always, the gate widens when the call runs.

        `whose` are principal and conversation.
        """
        tools = {call.id: call.name for call in unanswered(self.turn.history)}
        for waiting, verdict in zip(self.turn.pending, self.verdicts, strict=True):
            if verdict.choice != "deny":
                tool, widens = tools[waiting.call_id], verdict.choice == "always"
                grants.add(Grant("call", tool, *whose, expires, digest=waiting.digest, once=True, widens=widens))


@dataclass(slots=True)
class AnsweredGate:
    """Lets a gate decide, except about the calls a person has denied."""

    gate: Gate
    denials: dict[str, str] = field(default_factory=dict[str, str])

    async def decide(self, request: CallRequest) -> Decision:
        reason = self.denials.pop(request.call.id, None)  # once: later calls may have the same id
        return Denied(reason) if reason is not None else await self.gate.decide(request)


def resumption(incoming: Sequence[Incoming], turn: TurnState | None) -> Resumption | None:
    """What the last message decides about `turn`, the state of the message before it; None: it is a question."""
    if turn is None or not turn.turn:
        return None
    verdicts = decision_of(incoming[-1], len(turn.pending))
    return Resumption(turn, verdicts) if verdicts is not None else None


def decides_foreign(incoming: Sequence[Incoming], turn: TurnState | None) -> bool:
    """Whether the last message is a decision about calls of a state that is not sealed for this person."""
    if turn is not None or len(incoming) < 2:
        return False
    count = waits(incoming[-2].state)
    return bool(count) and decision_of(incoming[-1], count) is not None
