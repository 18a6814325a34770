"""One coding run: plan, prepare, carry out, verify; each part is reported, and recorded so that it can be resumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import monotonic, time_ns

from task.approvals.rules import ApprovalRules
from task.closing import run_to_completion
from task.coding.checkpoints import held_alone
from task.coding.coder import CODER_PROMPT, Ask, Coder, PlanStepTool, Progress
from task.coding.commands import RunCommands
from task.coding.journal import STATUSES, Changes, Journal
from task.coding.planner import Plan, planned
from task.coding.snapshots import SnapshotError
from task.coding.unseen import unseen_changes
from task.coding.verification import changed_tests
from task.conversation.messages import user
from task.errors import AgentError, ProviderError, reference_of, with_reference
from task.llm.base import Usage
from task.llm.failures import explained
from task.loop import RunOutcome
from task.permissions.coding import coding_policy
from task.product import Profile, Services
from task.runs.events import (
    Emit,
    Noted,
    PlanReady,
    RunFinished,
    RunStarted,
    TaskEnded,
    TaskResult,
    TaskStarted,
    WorkspaceChanged,
)
from task.runs.traces import TraceRecorder, TraceStart, recorded
from task.tools.models import Caller
from task.tools.offload import ReadFileLinesTool, SearchInFileTool
from task.tools.workspace.commands import Commands
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import workspace_tools

logger = logging.getLogger(__name__)

DOOR = "coding"
CONTINUED = (
    "[Note from the system, not from the user] The work had ended ({why}) and goes on now. Files may have changed "
    "since: read before you write. Finish what is left of the plan."
)
KILLED = "its process was stopped"
NUMBERED = "\n\nThe plan:\n{plan}\nReport each step with plan_step_done as soon as it is done."


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Services and profile of a model, the caller it serves, and the model's display name."""

    services: Services
    profile: Profile
    caller: Caller
    label: str


@dataclass(frozen=True, slots=True)
class Order:
    """What a person wants done now: plan only, or also carry out, with a command before it and one that verifies.

    `notes` are sentences that a person should read first.
    """

    task: str
    owner: str
    apply: bool = False
    setup: str | None = None
    verify: str | None = None
    yes: bool = False
    steps: int = 25
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Work:
    """Carries an order out in a workspace; a run whose journal has a plan is continued with it."""

    order: Order
    journal: Journal
    workspace: Workspace
    commands: Commands
    planner: ModelAccess
    coder: ModelAccess
    emit: Emit
    ask: Ask
    _progress: Progress | None = field(default=None, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)
    _unkept: str = field(default="", init=False)
    _planning: dict[str, Usage] = field(default_factory=dict[str, Usage], init=False)
    _trace_id: str | None = field(default=None, init=False)
    _began_ns: int = field(default=0, init=False)
    _asked: ModelAccess = field(init=False)

    def __post_init__(self) -> None:
        self._asked = self.planner

    async def run(self) -> TaskEnded:
        """Do all of it; failures and interruptions are reported as the run's end."""
        started, order, journal = monotonic(), self.order, self.journal
        planner = None if journal.record.plan is not None else self.planner.label
        path = str(self.workspace.path)
        self.emit(RunStarted(journal.run_id, None, None, self.coder.label, 0))
        self.emit(TaskStarted(order.task, path, planner, self.coder.label, order.apply))
        for note in order.notes:
            self.emit(Noted(note))
        try:
            result, reason = await self._result()
        except asyncio.CancelledError:
            result, reason = "interrupted", "interrupted"
        except ProviderError as error:
            result, reason = "failed", error.display_message or explained(error, self._asked.profile.model)
        except (AgentError, ValueError) as error:
            result, reason = "failed", str(error)
        except Exception as error:
            reference = reference_of(error)
            logger.exception("a coding run failed unexpectedly (reference %s)", reference)
            result, reason = "failed", with_reference("The run failed unexpectedly.", reference)
        ended = await run_to_completion(self._ended(result, reason, started))
        self.emit(ended)
        reason = "stop" if result in ("planned", "verified", "not_verified") else None
        limit = "steps" if result == "limited" else None
        self.emit(RunFinished(STATUSES[ended.result], journal.run_id, None, ended.trace_id, reason, limit))
        return ended

    async def _ended(self, result: TaskResult, reason: str, started: float) -> TaskEnded:
        changes, journal = self._changes, self.journal
        tests = tuple(changed_tests(changes.files, changes.existing))
        if self._unkept:
            result, reason = "failed", self._unkept
        await journal.end(result, reason, self._progress, tests, kept=not self._unkept)
        progress = self._progress or Progress([])
        return TaskEnded(
            journal.run_id, result, reason, progress.spent.steps, progress.last, changes.diff, changes.files, tests,
            _tokens(self._planning, progress.usage), monotonic() - started, self._trace_id,
        )  # fmt: skip

    async def _result(self) -> tuple[TaskResult, str]:
        order = self.order
        plan = self.journal.record.plan or await self._plan()
        self.emit(PlanReady(tuple(plan.plan), tuple(plan.tests), plan.coder_prompt))
        await self.journal.planned(plan)
        if not order.apply:
            return "planned", ""
        with held_alone(self.workspace.path):
            await self.journal.begin()
            try:
                return await self._applied(plan)
            finally:
                await run_to_completion(self._keep_last_step())

    async def _keep_last_step(self) -> None:
        if self._began_ns:
            for sentence in await asyncio.to_thread(unseen_changes, self.workspace.path, self._began_ns):
                self.emit(Noted(sentence))
        try:
            self._changes = await self.journal.checkpoint(self._progress)
        except SnapshotError as error:
            self._changes, self._unkept = await self.journal.changes(), str(error)

    async def _applied(self, plan: Plan) -> tuple[TaskResult, str]:
        order, own = self.order, RunCommands(self.commands, self.emit)
        rules = self.coder.profile.rules
        rules = replace(rules, policy=coding_policy(rules.policy, yes=order.yes))
        if order.setup is not None:
            refusal = await own.set_up(order.setup, rules, self.ask)
            if refusal:
                return "denied", refusal
        self._began_ns = time_ns()  # what the setup has installed is the person's own wish
        outcome = await self._carry_out(plan, rules)
        if outcome.status == "cancelled":
            return "interrupted", "interrupted"
        if outcome.error is not None:
            raise outcome.error
        if outcome.status == "limited":
            return "limited", f"stopped at {outcome.limit}, not verified"
        return await own.verify(order.verify, plan.tests)

    async def _plan(self) -> Plan:
        profile, caller, order = self.planner.profile, self.planner.caller, self.order
        files = await asyncio.to_thread(lambda: list(self.workspace.files(".")))
        start = TraceStart(order.owner, DOOR, profile.model, asked=(user(order.task),), run_id=self.journal.run_id)
        async with recorded(self.planner.services.store, start) as observer:
            plan, usage = await planned(profile, caller, order.task, files, observer)
        self._planning[profile.model] = usage
        return plan

    async def _carry_out(self, plan: Plan, rules: ApprovalRules) -> RunOutcome:
        order = self.order
        self._asked = coder = self.coder
        earlier, why = self.journal.record.progress, self.journal.record.reason
        if earlier is None:
            asked = user(plan.coder_prompt + NUMBERED.format(plan=_numbered(plan.plan)))
            self._progress = progress = Progress([asked])
        else:
            self._progress = progress = earlier
            progress.messages.append(user(CONTINUED.format(why=why or KILLED)))
        store = await coder.services.store.get()
        start = TraceStart(
            order.owner, DOOR, coder.profile.model, asked=(progress.messages[-1],),
            history=len(progress.messages) - 1, run_id=self.journal.run_id,
        )  # fmt: skip
        observer = TraceRecorder(store.traces, start, await store.traces.new_id())
        self._trace_id = observer.trace_id
        await self.journal.traced(observer.trace_id)
        results = self.journal.results
        profile = replace(
            coder.profile,
            prompt=CODER_PROMPT,
            tools=[
                *workspace_tools(self.workspace, self.commands),
                PlanStepTool(plan.plan, self.emit),
                ReadFileLinesTool(results),
                SearchInFileTool(results),
            ],
            rules=rules,
            limits=replace(coder.profile.limits, steps=order.steps),
            offloader=replace(coder.profile.offloader, files=results),
        )
        working = Coder(coder.services, profile, coder.caller, self.emit, self.ask, self._checkpoint, observer)
        outcome = await working.run(progress)
        observer.end(outcome.status, outcome.error or outcome.limit)
        observer.record()
        return outcome

    async def _checkpoint(self, progress: Progress) -> None:
        before, self._changes = self._changes, await self.journal.checkpoint(progress)
        if self._changes != before:
            self.emit(WorkspaceChanged(len(self._changes.files), self._changes.added, self._changes.removed))


def _numbered(plan: Sequence[str]) -> str:
    return "\n".join(f"{number}. {step}" for number, step in enumerate(plan, 1))


def _tokens(*parts: Mapping[str, Usage]) -> dict[str, tuple[int, int]]:
    total: dict[str, Usage] = {}
    for model, usage in chain.from_iterable(part.items() for part in parts):
        total[model] = total.get(model, Usage()) + usage
    return {model: (used.prompt_tokens, used.completion_tokens) for model, used in total.items()}
