"""The commands of a run that its coder does not call: the setup before the work, the verification after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from task.approvals.rules import ApprovalRules
from task.coding.coder import Ask
from task.coding.verification import Checked, Verdict, verdict, verification_commands
from task.errors import InvalidRequest
from task.permissions.coding import setup_request
from task.permissions.decisions import Deferred, Denied, PermissionMode
from task.permissions.gate import PolicyGate
from task.permissions.grants import Grants
from task.runs.events import CommandEnded, CommandStarted, Emit, Noted, Purpose
from task.tools.toolbox import Pending
from task.tools.workspace.commands import Commands, ShellResult

VERIFY_SECONDS, SETUP_SECONDS = 600.0, 1800.0
OUTPUT_CHARS = 4_000  # of a command's output, from its end


@dataclass(frozen=True, slots=True)
class RunCommands:
    """Runs and reports them."""

    commands: Commands
    emit: Emit

    async def set_up(self, command: str, rules: ApprovalRules, ask: Ask) -> str:
        """Prepare the workspace; the reason why that did not happen, if nobody approved it.

        Raises:
            InvalidRequest: the command failed.
        """
        if refusal := await self._refusal(command, rules, ask):
            return refusal
        done = await self._ran("setup", command)
        if done.code != 0:
            raise InvalidRequest(f"The setup `{command}` failed with exit code {done.code}; nothing else was done.")
        return ""

    async def verify(self, command: str | None, tests: Sequence[str]) -> tuple[Verdict, str]:
        """Whether the work is done, and a sentence about it: by a person's command, else by the plan's tests."""
        if missing := self.commands.available:
            return "not_verified", f"not verified: {missing}"
        commands, left_out = verification_commands(command, tests)
        for text in left_out:
            self.emit(Noted(f"The plan's test {text!r} is not a pytest command or node id; it was left out."))
        checked: list[Checked] = []
        for text in commands:
            done = await self._ran("verification", text)
            checked.append(Checked(text, done.code, done.stdout + done.stderr))
        return verdict(checked)

    async def _refusal(self, command: str, rules: ApprovalRules, ask: Ask) -> str:
        request = setup_request(command, str(self.commands.workspace.path))
        gate = PolicyGate(rules.policy, Grants(rules.clock), PermissionMode.DEFAULT, "", "", rules.clock)
        decision = await gate.decide(request)
        if isinstance(decision, Denied):
            return f"the setup may not run: {decision.reason}"
        if isinstance(decision, Deferred):
            waiting = Pending(
                request.call, decision.card, decision.digest, decision.reason, title=f"setup: {command}",
                arguments=request.arguments,
            )  # fmt: skip
            [reply] = await ask([waiting])
            return "" if reply.allowed else "the setup was not approved, and nothing was done; --yes approves it"
        return ""

    async def _ran(self, purpose: Purpose, command: str) -> ShellResult:
        self.emit(CommandStarted(purpose, command))
        started = monotonic()
        if purpose == "setup":
            done = await self.commands.setup(command, SETUP_SECONDS)
        else:
            done = await self.commands.run(command, VERIFY_SECONDS)
        output = (done.stdout + done.stderr)[-OUTPUT_CHARS:]
        self.emit(CommandEnded(purpose, command, done.code, output, monotonic() - started))
        return done
