"""One coding task: plan, prepare, carry out, verify; each part is an event of its run, from which it is continued."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, time_ns

from task.approvals.approvals import ApprovalRules
from task.closing import run_to_completion
from task.coding.checkpoints import Checkpoints, held_alone
from task.coding.diffs import FileDiff, unseen_changes, whole
from task.coding.executor import CODER_PROMPT, Ask, Coder, PlanStepTool, Progress
from task.coding.planner import Plan, planned
from task.coding.snapshots import Snapshot, SnapshotError
from task.coding.state import STATUSES, TaskState, conversation, record
from task.coding.verification import OwnCommands, changed_tests
from task.conversation.messages import Message, tool_message, unanswered, user
from task.errors import AgentError, ProviderError, reference_of, with_reference
from task.llm.failures import explained
from task.loop import RunOutcome
from task.permissions.coding import coding_policy
from task.permissions.gate import Grants
from task.product import Profile, Services
from task.runs.events import (
    Checkpoint,
    Emit,
    Noted,
    PlanReady,
    RunEvent,
    RunFinished,
    RunStarted,
    TaskEnded,
    TaskResult,
    TaskStarted,
    WorkspaceChanged,
)
from task.runs.request import RunOptions
from task.runs.traces import TraceRecorder, TraceStart, recorded
from task.store.records import Run
from task.store.store import Store
from task.tools.models import Caller
from task.tools.offload import LocalTexts, ReadFileLinesTool, SearchInFileTool
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
LOST = (
    "Error: the work was interrupted before this call's result was kept. It may have run: check whether it did before "
    "you call it again."
)
NUMBERED = "\n\nThe plan:\n{plan}\nReport each step with plan_step_done as soon as it is done."


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Services and profile of a model, the caller it serves, and the model's display name."""

    services: Services
    profile: Profile
    caller: Caller
    label: str


@dataclass(slots=True)
class Work:
    """Plans a task in a workspace, and with `apply` carries it out, as the `run` of this process.

    `earlier` is the task as it was before; `tail` is what it did before its process was killed, kept already. The
    command `setup` runs before the work, `verify` after it. Events go to the store and to `show`, the `notes` first.
    """

    store: Store
    run: Run
    earlier: TaskState
    checkpoints: Checkpoints
    tail: Snapshot | None
    workspace: Workspace
    commands: Commands
    planner: ModelAccess
    coder: ModelAccess
    show: Emit
    ask: Ask
    apply: bool
    setup: str | None
    verify: str | None
    yes: bool
    steps: int
    notes: Sequence[str]
    _progress: Progress = field(init=False)
    _saved: list[Message] = field(default_factory=list[Message], init=False)
    _diffs: list[FileDiff] = field(default_factory=list[FileDiff], init=False)
    _trace_id: str | None = field(default=None, init=False)
    _began_ns: int = field(default=0, init=False)
    _asked: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._progress = self.earlier.progress or Progress([])
        self._saved = list(self._progress.messages)

    async def carry_out(self) -> TaskEnded:
        """Do all of it; failures and interruptions are reported as the task's end."""
        started, run, coder = monotonic(), self.run, self.coder
        options = RunOptions(DOOR, coder.profile.model).as_dict()
        planner = None if self.earlier.plan is not None else self.planner.label
        given, path = {"verify": self.verify}, str(self.workspace.path)
        beginning = (
            RunStarted(run.run_id, None, None, coder.label, 0, options),
            TaskStarted(self.earlier.task, path, planner, coder.label, self.apply, given),
            *((Checkpoint(self.tail.id, start=False),) if self.tail is not None else ()),
        )
        for event in beginning:
            record(self.store, run, event)
        await self.store.runs.save(run.run_id)  # before the user reads the id with which the task is continued
        for event in beginning:
            self.show(event)
        for note in self.notes:
            self._emit(Noted(note))
        work = asyncio.current_task()

        async def stop_on_request() -> None:
            await self.store.runs.cancel_requested(run.run_id)
            assert work is not None
            work.cancel()

        stopping = asyncio.create_task(stop_on_request())
        kept = True
        try:
            result, reason = await self._result()
        except asyncio.CancelledError:
            result, reason = "interrupted", "interrupted"
        except SnapshotError as error:
            result, reason, kept = "failed", str(error), not self.checkpoints.legs
        except ProviderError as error:
            result, reason = "failed", error.display_message or explained(error, self._asked)
        except (AgentError, ValueError) as error:
            result, reason = "failed", str(error)
        except Exception as error:
            reference = reference_of(error)
            logger.exception("a coding task failed unexpectedly (reference %s)", reference)
            result, reason = "failed", with_reference("The run failed unexpectedly.", reference)
        finally:
            stopping.cancel()
        return await run_to_completion(self._ended(result, reason, monotonic() - started, kept=kept))

    async def _ended(self, result: TaskResult, reason: str, seconds: float, *, kept: bool) -> TaskEnded:
        run, diffs, progress = self.run, self._diffs, self._progress
        ended = TaskEnded(
            run.run_id,
            result,
            reason,
            progress.spent.steps,
            progress.last,
            whole(diffs),
            tuple(item.path for item in diffs),
            tuple(changed_tests((item.path for item in diffs), (item.path for item in diffs if not item.is_new))),
            {model: (used.prompt_tokens, used.completion_tokens) for model, used in progress.usage.items()},
            seconds,
            self._trace_id,
        )
        stopped = "stop" if result in ("planned", "verified", "not_verified") else None
        limit = "steps" if result == "limited" else None
        finished = RunFinished(STATUSES[result], run.run_id, None, self._trace_id, stopped, limit)
        record(self.store, run, replace(ended, diff=""))
        record(self.store, run, finished)
        # Where the workspace was not kept at the end, undo looks at it as at that of a task whose process was killed.
        status = STATUSES[result] if kept else "interrupted"
        await self.store.runs.finish(run, status, error=None if result in ("planned", "verified") else reason)
        self.show(ended)
        self.show(finished)
        return ended

    async def _result(self) -> tuple[TaskResult, str]:
        plan = self.earlier.plan
        if plan is None:
            profile, caller, task = self.planner.profile, self.planner.caller, self.earlier.task
            self._asked = profile.model
            files = await asyncio.to_thread(lambda: list(self.workspace.files(".")))
            start = TraceStart(self.run.owner, DOOR, profile.model, asked=(user(task),), run_id=self.run.run_id)
            async with recorded(self.planner.services.store, start) as observer:
                plan, usage = await planned(profile, caller, task, files, observer)
            self._progress.count(profile.model, usage)
        self._emit(PlanReady(tuple(plan.plan), tuple(plan.tests), plan.coder_prompt))
        await self.store.runs.save(self.run.run_id)
        if not self.apply:
            return "planned", ""
        with held_alone(self.workspace.path):
            self._emit(Checkpoint((await self.checkpoints.start()).id, start=True))
            await self.store.runs.save(self.run.run_id)
            try:
                return await self._applied(plan)
            finally:
                await run_to_completion(self._keep_last_step())

    async def _applied(self, plan: Plan) -> tuple[TaskResult, str]:
        own = OwnCommands(self.commands, self._emit)
        own_policy = coding_policy(self.coder.profile.rules.policy, yes=self.yes)
        rules = replace(self.coder.profile.rules, policy=own_policy, refresh=self._keep_calls)
        if self.setup is not None and (refusal := await own.set_up(self.setup, rules, self.ask)):
            return "denied", refusal
        self._began_ns = time_ns()  # what the setup has installed is the user's own wish
        outcome = await self._coded(plan, rules)
        if outcome.status == "cancelled":
            return "interrupted", "interrupted"
        if outcome.error is not None:
            raise outcome.error
        if outcome.status == "limited":
            return "limited", f"stopped at {outcome.limit}, not verified"
        verdict, reason = await own.verify(self.verify, plan.tests)
        if verdict == "verified" and not self.checkpoints.changed_files:
            return "not_verified", "not verified: nothing was changed"
        return verdict, reason

    async def _coded(self, plan: Plan, rules: ApprovalRules) -> RunOutcome:
        coder, store, earlier = self.coder, self.store, self.earlier
        self._asked = coder.profile.model
        progress = self._progress
        if progress.messages:
            progress.messages += [tool_message(call, LOST, failed=True) for call in unanswered(progress.messages)]
            progress.messages.append(user(CONTINUED.format(why=earlier.reason or KILLED)))
        else:
            numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(plan.plan, 1))
            progress.messages.append(user(plan.coder_prompt + NUMBERED.format(plan=numbered)))
        asked, before = (progress.messages[-1],), len(progress.messages) - 1
        start = TraceStart(
            self.run.owner, DOOR, coder.profile.model, asked=asked, history=before, run_id=self.run.run_id
        )
        self._trace_id = await store.traces.new_id()
        observer = TraceRecorder(store.traces, start, self._trace_id)
        await store.runs.traced(self.run.run_id, self._trace_id)
        results = LocalTexts(self.checkpoints.snapshots.folder / "results")  # they go when the snapshots go
        profile = replace(
            coder.profile,
            prompt=CODER_PROMPT,
            tools=[
                *workspace_tools(self.workspace, self.commands),
                PlanStepTool(plan.plan, self._emit),
                ReadFileLinesTool(results),
                SearchInFileTool(results),
            ],
            rules=rules,
            limits=replace(coder.profile.limits, steps=self.steps),
            offloader=replace(coder.profile.offloader, files=results),
        )
        working = Coder(coder.services, profile, coder.caller, self._emit, self.ask, self._keep_step, observer)
        outcome = await working.run(progress)
        observer.end(outcome.status, outcome.error or outcome.limit)
        observer.record()
        return outcome

    async def _keep_step(self) -> None:
        try:
            await self.checkpoints.step()
        finally:  # the conversation is kept where the folder cannot be
            self._keep_conversation()
        await self.store.runs.save(self.run.run_id)

    async def _keep_last_step(self) -> None:
        if self._began_ns:
            for sentence in await asyncio.to_thread(unseen_changes, self.workspace.path, self._began_ns):
                self._emit(Noted(sentence))
        try:
            await self._keep_step()
        finally:
            self._diffs = diffs = await self.checkpoints.diffs()
            if diffs:
                lines = sum(item.added for item in diffs), sum(item.removed for item in diffs)
                self._emit(WorkspaceChanged(len(diffs), *lines))

    async def _keep_calls(self, _: Grants) -> None:
        # Before a call is decided and runs: after a kill, the process that continues must know that it may have run.
        if len(self._progress.messages) != len(self._saved):
            self._keep_conversation()
        await self.store.runs.save(self.run.run_id)

    def _keep_conversation(self) -> None:
        said = conversation(self._progress, self._saved)
        self._saved = list(self._progress.messages)
        self._emit(Checkpoint(self.checkpoints.legs[-1][1].id, start=False, request=said))

    def _emit(self, event: RunEvent) -> None:
        record(self.store, self.run, event)
        self.show(event)
