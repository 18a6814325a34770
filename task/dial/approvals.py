"""The approvals of one DIAL request: what its hidden state left open, what its message decides, what is asked next."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from task.approvals.approvals import EXPIRED, ApprovalRules, codes_in, decision_of, words_of
from task.approvals.forms import form_schema, label, revoked_by, revoking_form
from task.approvals.questions import USAGE, listing, question, revoked
from task.conversation.inner import outer_id
from task.conversation.inputs import Incoming, new_code
from task.conversation.messages import Message, Role, repaired
from task.conversation.state import TurnState, WaitingCall, waits
from task.core_client.models import Caller
from task.memory.commands import COMMAND as MEMORY
from task.memory.commands import answered
from task.memory.memories import Memories
from task.output.sinks import ChoiceSink, StageProcessor
from task.permissions.gate import Grant
from task.permissions.icerc import fenced, shortened
from task.tools.toolbox import Pending

WAITING = " [waiting for your approval]"
ALLOWED_STAGE = "Permissions"
USED = "This approval was used before, so nothing has run now."
FOREIGN = (
    "This approval cannot be accepted: the question was changed, was put to somebody else, or comes from before the "
    "agent was set up again. Nothing has run."
)
NOT_OPEN = (
    "There is no open question here with the code {code}: it was answered before, it has expired, another message came "
    "after it, or it belongs to another chat. Nothing has run."
)
STILL_OPEN = "The last question is still open."
ASK_AGAIN = "Ask me again if you still want it done."
TOO_LATE = "Error: the user's approval came after the question had expired, so this call did not run."
USED_BEFORE = (
    "Error: the user's approval had been used before, so this call did not run now. It may have run then: look whether "
    "it did before you call it again."
)
_COMMAND = re.compile(r"\s*/permissions(?:\s+revoke\s+(all|\d{1,4}))?\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DirectAnswer:
    """An answer without a model; `state` where the turn leaves one, `form` where it has buttons."""

    text: str
    state: TurnState | None = None
    form: dict[str, Any] | None = None


class DialApprovals:
    """The approvals of one request, kept in the chat's hidden state.

    `turns` is what the messages' states hold, by position; a state that is not there was not sealed for this user.
    `latest` is the last of them. `resumed` is the suspended turn that the last message answers, with one
    answer for each of its waiting calls in `answers`.
    """

    def __init__(self, rules: ApprovalRules, incoming: Sequence[Incoming], turns: Mapping[int, TurnState]) -> None:
        before, self.latest = turns.get(len(incoming) - 2), turns[max(turns)] if turns else None
        self._before = before if before is not None and before.turn else None
        self.answers = decision_of(incoming[-1], self._before.codes) if self._before is not None else None
        self.resumed = self._before if self.answers is not None else None
        self._rules, self._incoming, self._sealed = rules, incoming, before is not None
        self._codes = list[str]()  # of the question that this request puts
        self._grants = rules.grants_in(self.latest)
        self._granted = tuple(self._grants.lasting())

    async def direct_answer(self, caller: Caller, memories: Memories | None = None) -> DirectAnswer | None:
        """The answer where no model has to be asked: to a command, or to an approval that cannot be accepted."""
        last, rules, grants = self._incoming[-1], self._rules, self._grants
        if last.role is Role.USER and not last.attachments and last.text().split(None, 1)[:1] == [MEMORY]:
            return DirectAnswer(await answered(memories, caller, "dial", last.text()))
        named = codes_in(words_of(last)) or ()
        command = _COMMAND.fullmatch(last.text()) if last.role is Role.USER and not last.attachments else None
        which = (command[1] or "").lower() if command is not None else None
        if last.form_value is not None and len(self._incoming) > 1 and self._incoming[-2].text().endswith(USAGE):
            which = revoked_by(last.form_value, len(self._granted)) or which
        if which is not None:
            text = revoked(which, grants) if which else listing(grants.lasting())
            return DirectAnswer(text, self.state((), (), grants.lasting()), revoking_form(grants.lasting()))
        # An answer to a question whose state is not ours, or was not sealed for this user.
        count = 0 if self._sealed or len(self._incoming) < 2 else waits(self._incoming[-2].state)
        if count and (decision_of(last, [""] * count) is not None or named or last.form_value is not None):
            return DirectAnswer(f"{FOREIGN} {ASK_AGAIN}")
        if self.resumed is None or self.answers is None:
            before = self._before
            code = next((code for code in named if before is None or code not in before.codes), None)
            if code is None:
                return None
            still = before if before is not None and before.expires > rules.clock() else None
            return DirectAnswer(f"{NOT_OPEN.format(code=code)} {STILL_OPEN if still else ASK_AGAIN}", still)
        if not any(answer.allowed for answer in self.answers):
            return None
        if self.resumed.expires <= rules.clock():
            text, result = EXPIRED, TOO_LATE
        elif not await rules.claims.take(self.resumed.turn, self.resumed.expires, caller.api_key):
            text, result = USED, USED_BEFORE
        else:
            return None
        waiting = {outer_id(call.call_id) for call in self.resumed.pending}
        history = repaired(self.resumed.history, missing=dict.fromkeys(waiting, result))
        return DirectAnswer(f"{text} {ASK_AGAIN}", self.state(history, (), grants.lasting()))

    def show_grants(self, granted: Sequence[Grant], choice: ChoiceSink) -> None:
        """Show what is always allowed in a stage, when that has just grown."""
        if tuple(granted) != self._granted:
            _show(choice, ALLOWED_STAGE, listing(granted))

    def ask(self, pending: Sequence[Pending], choice: ChoiceSink, said: str) -> tuple[str, dict[str, Any]]:
        """Show the waiting calls as stages; the question about them, for an answer that began with `said`, and its
        form."""
        for item in pending:
            command = fenced(shortened(item.card.command))
            _show(choice, f"{label(item.title)}{WAITING}", f"## Request arguments:\n\n{command}\n")
            self._codes.append(new_code(self._codes))
        text = question(pending, self._codes, self._rules.open_seconds, said)
        return f"\n\n{text}" if said else text, form_schema(pending, self._codes)

    def state(
        self,
        history: Sequence[Message],
        pending: Sequence[Pending],
        granted: Sequence[Grant],
        references: Mapping[str, str] | None = None,
    ) -> TurnState | None:
        """The state to save for the turn, whose waiting calls were asked about; None where nothing is new."""
        if not history and tuple(granted) == self._granted:
            return None
        kept = self.latest.references if self.latest is not None else {}
        return TurnState(
            tuple(history),
            tuple(
                WaitingCall(item.call.id, item.digest, code) for item, code in zip(pending, self._codes, strict=True)
            ),
            references if references is not None else kept,
            uuid4().hex if pending else "",
            int(self._rules.clock() + self._rules.open_seconds) if pending else 0,
            self.resumed.turn if self.resumed is not None else "",
            tuple(grant.as_dict() for grant in granted),
        )


def _show(choice: ChoiceSink, title: str, text: str) -> None:
    stage = StageProcessor.open_stage(choice, title)
    stage.append_content(text)
    StageProcessor.close_stage_safely(stage)
