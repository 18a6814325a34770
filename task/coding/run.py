"""One coding task: plan, prepare, carry out, verify; each part is an event of its run, from which it is continued."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import monotonic, time_ns

from task.approvals.approvals import ApprovalRules
from task.closing import run_to_completion
from task.coding.checkpoints import Checkpoints
from task.coding.diffs import unseen_changes
from task.coding.executor import Ask, Coder, PlanStepTool, coding_profile
from task.coding.planner import Plan, planned
from task.coding.state import TaskState, record
from task.coding.verification import PytestRuns, changed_tests, command_verdict, verification_commands
from task.conversation.inner import closed
from task.conversation.messages import unanswered, user
from task.errors import AgentError, InvalidRequest, ProviderError, reference_of, with_reference
from task.llm.failures import explained
from task.loop import RunOutcome
from task.permissions.decisions import Deferred, Denied, PermissionMode
from task.permissions.gate import Grants, PolicyGate
from task.permissions.policy import coding_policy, setup_request
from task.product import Profile, Services
from task.runs.events import (
    TASK_STATUSES,
    Checkpoint,
    CommandEnded,
    CommandStarted,
    Emit,
    Noted,
    PlanReady,
    Purpose,
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
from task.tools.models import Caller
from task.tools.offload import LocalTexts, ReadFileLinesTool, SearchInFileTool
from task.tools.toolbox import Pending
from task.tools.workspace.bounds import python_of
from task.tools.workspace.commands import HOME, Commands
from task.tools.workspace.launcher import ShellResult
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import SnapshotError

logger = logging.getLogger(__name__)

DOOR = "coding"
SECONDS: Mapping[Purpose, float] = {"setup": 1800.0, "verification": 600.0}
OUTPUT_CHARS = 4_000  # of a command's output, from its end
CONTINUED = (
    "[Note from the system, not from the user] The work had ended ({why}) and goes on now. Files may have changed "
    "since: read before you write. Finish what is left of the plan."
)
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
    """Plans a task in a workspace, and with `apply` carries it out, as the run of this process.

    `task` is its state before; the command `setup` runs before the work, `verify` after it. Events go to the store
    and to `show`, the `notes` first.
    """

    task: TaskState
    checkpoints: Checkpoints
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
    _trace_id: str | None = field(default=None, init=False)

    async def carry_out(self) -> TaskEnded:
        """Do all of it; failures and interruptions are reported as the task's end."""
        started, task, run_id, work = monotonic(), self.task, self.task.run.run_id, asyncio.current_task()
        assert work is not None
        model, planner = self.coder.profile.model, None if task.plan is not None else self.planner.label
        self._emit(RunStarted(run_id, None, None, self.coder.label, 0, asdict(RunOptions(DOOR, model))))
        given, path = {"verify": self.verify}, str(self.commands.workspace.path)
        self._emit(TaskStarted(task.task, path, planner, self.coder.label, self.apply, given))
        await self.checkpoints.store.runs.save(run_id)
        for note in self.notes:
            self._emit(Noted(note))

        async def stop_on_request() -> None:
            await self.checkpoints.store.runs.cancel_requested(run_id)
            work.cancel()

        stopping, kept = asyncio.create_task(stop_on_request()), True
        result: TaskResult = "failed"
        try:
            result, reason = await self._result()
        except asyncio.CancelledError:
            result, reason = "interrupted", "interrupted"
        except ProviderError as error:
            asked = self.planner.profile.model if task.plan is None else model
            reason = error.display_message or explained(error, asked)
        except (AgentError, ValueError) as error:
            reason, kept = str(error), not (isinstance(error, SnapshotError) and self.checkpoints.legs)
        except Exception as error:
            reference = reference_of(error)
            logger.exception("a coding task failed unexpectedly (reference %s)", reference)
            reason = with_reference("The run failed unexpectedly.", reference)
        finally:
            stopping.cancel()
        return await run_to_completion(self._ended(result, reason, monotonic() - started, kept=kept))

    async def _ended(self, result: TaskResult, reason: str, seconds: float, *, kept: bool) -> TaskEnded:
        run, progress, diffs = self.task.run, self.task.progress, await self.checkpoints.diffs()
        if diffs:
            added, removed = sum(item.added for item in diffs), sum(item.removed for item in diffs)
            self._emit(WorkspaceChanged(len(diffs), added, removed))
        ended = TaskEnded(
            run.run_id,
            result,
            reason,
            progress.spent.steps,
            progress.last,
            "".join(item.text for item in diffs),
            [item.path for item in diffs],
            changed_tests(diffs),
            {model: (used.prompt_tokens, used.completion_tokens) for model, used in progress.usage.items()},
            seconds,
            self._trace_id,
        )
        status = TASK_STATUSES.get(result, "failed")
        stopped = "stop" if status == "finished" or result == "not_verified" else None
        limit = "steps" if status == "limited" else None
        finished = RunFinished(status, run.run_id, None, self._trace_id, stopped, limit)
        record(self.checkpoints.store, run, replace(ended, diff=""))
        record(self.checkpoints.store, run, finished)
        # Where the workspace was not kept at the end, undo looks at it as at that of a task whose process was killed.
        error = None if status == "finished" else reason
        await self.checkpoints.store.runs.finish(run, status if kept else "interrupted", error=error)
        self.show(ended)
        self.show(finished)
        return ended

    async def _result(self) -> tuple[TaskResult, str]:
        task, run_id = self.task, self.task.run.run_id
        if task.plan is None:
            profile = self.planner.profile
            files = await asyncio.to_thread(lambda: list(self.commands.workspace.files(".")))
            start = TraceStart(self.task.run.owner, DOOR, profile.model, asked=(user(task.task),), run_id=run_id)
            async with recorded(self.planner.services.store, start) as observer:
                task.plan, usage = await planned(profile, self.planner.caller, task.task, files, observer)
            task.progress.usage[profile.model] += usage
        plan = task.plan
        self._emit(PlanReady(plan.plan, plan.tests, plan.coder_prompt, plan.writes))
        await self.checkpoints.store.runs.save(run_id)
        if not self.apply:
            return "planned", ""
        with held_alone(self.commands.workspace.path):
            self._emit(Checkpoint((await self.checkpoints.start()).id, start=True))
            await self.checkpoints.store.runs.save(run_id)
            try:
                return await self._applied(plan)
            finally:
                await run_to_completion(self._keep_last_step())

    async def _applied(self, plan: Plan) -> tuple[TaskResult, str]:
        policy = coding_policy(self.coder.profile.rules.policy, yes=self.yes)
        rules = replace(self.coder.profile.rules, policy=policy, refresh=self._keep_calls)
        if self.setup is not None and (refusal := await self._set_up(self.setup, rules)):
            return "denied", refusal
        # What the setup has installed is the user's own wish.
        began_ns, python = time_ns(), python_of(self.commands.workspace.path, os.environ)
        self.task.progress.began_ns = self.task.progress.began_ns or began_ns
        outcome = await self._coded(plan, rules)
        if outcome.status == "cancelled":
            return "interrupted", "interrupted"
        if outcome.error is not None:
            raise outcome.error
        if outcome.status == "limited":
            return "limited", f"stopped at {outcome.limit}, not verified"
        if plan.writes and not self.checkpoints.changed_files:
            return "not_verified", "not verified: nothing was changed"
        if self.verify is None and not self.checkpoints.changed_files:
            return "unchanged", "nothing was changed, as planned"
        if missing := self.commands.available:
            return "not_verified", f"not verified: {missing}"
        if self.verify is not None:
            return command_verdict(self.verify, await self._ran("verification", self.verify, self.commands.run))
        environments = {self.commands.scratch / HOME / ".local": began_ns}
        if python.parent.resolve().is_relative_to(self.commands.workspace.path):
            environments[python.parents[1]] = self.task.progress.began_ns
        runs = PytestRuns(self.commands, python, environments, changed_tests(await self.checkpoints.diffs()))
        for command in verification_commands(plan.tests):
            if runs.fault is None:
                await self._ran("verification", command, runs.run)
        return runs.fault or ("verified", f"verified: {'; '.join(runs.passed)}")

    async def _set_up(self, command: str, rules: ApprovalRules) -> str:
        # The reason why the workspace was not prepared, where that was not approved.
        request = setup_request(command, str(self.commands.workspace.path))
        gate = PolicyGate(rules.policy, Grants(rules.clock), PermissionMode.DEFAULT, "", "")
        decision = await gate.decide(request)
        if isinstance(decision, Denied):
            return f"the setup may not run: {decision.reason}"
        if isinstance(decision, Deferred):
            asked = Pending(request.call, decision.card, decision.digest, decision.reason, title=f"setup: {command}")
            if not (await self.ask([asked]))[0].allowed:
                return "the setup was not approved, and nothing was done; --yes approves it"
        done = await self._ran("setup", command, self.commands.setup)
        if done.code != 0:
            raise InvalidRequest(f"The setup `{command}` failed with exit code {done.code}; nothing else was done.")
        return ""

    async def _ran(self, purpose: Purpose, command: str, run: Callable[..., Awaitable[ShellResult]]) -> ShellResult:
        self._emit(CommandStarted(purpose, command))
        started = monotonic()
        done = await run(command, SECONDS[purpose])
        output = (done.stdout + done.stderr)[-OUTPUT_CHARS:]
        self._emit(CommandEnded(purpose, command, done.code, output, monotonic() - started))
        return done

    async def _coded(self, plan: Plan, rules: ApprovalRules) -> RunOutcome:
        coder, store, run, messages = self.coder, self.checkpoints.store, self.task.run, self.task.progress.messages
        if messages:
            messages += closed(messages, LOST)
            new = user(CONTINUED.format(why=self.task.reason or "its process was stopped"))
        else:
            numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(plan.plan, 1))
            new = user(plan.coder_prompt + NUMBERED.format(plan=numbered))
        asked = () if unanswered(messages) else (new,)  # sub-agents continue first
        start = TraceStart(run.owner, DOOR, coder.profile.model, asked=asked, history=len(messages), run_id=run.run_id)
        messages += asked
        observer = TraceRecorder(store.traces, start)
        self._trace_id = observer.trace_id
        await store.runs.traced(run.run_id, observer.trace_id)
        results = LocalTexts(self.checkpoints.snapshots.folder / "results")  # they go when the snapshots go
        tools = [PlanStepTool(plan.plan, self._emit), ReadFileLinesTool(results), SearchInFileTool(results)]
        profile = coding_profile(coder.profile, self.commands, self.steps)
        offloader = replace(profile.offloader, files=results)
        profile = replace(profile, tools=[*profile.tools, *tools], rules=rules, offloader=offloader)
        progress, caller = self.task.progress, coder.caller
        working = Coder(coder.services, profile, caller, progress, self._emit, self.ask, self._keep_step, observer)
        outcome = await working.run()
        observer.end(outcome.status, outcome.error or outcome.limit, outcome.tool_usage)
        observer.record()
        return outcome

    async def _keep_step(self) -> None:
        try:
            await self.checkpoints.step()
        finally:  # the conversation is kept where the folder cannot be
            self._keep_conversation()
        await self.checkpoints.store.runs.save(self.task.run.run_id)

    async def _keep_last_step(self) -> None:
        if began := self.task.progress.began_ns:
            for sentence in await asyncio.to_thread(unseen_changes, self.commands.workspace.path, began):
                self._emit(Noted(sentence))
        await self._keep_step()

    async def _keep_calls(self, _: Grants) -> None:
        # Before a call is decided and runs: after a kill, the process that continues must know that it may have run.
        if len(self.task.progress.messages) != len(self.task.progress.saved):
            self._keep_conversation()
        await self.checkpoints.store.runs.save(self.task.run.run_id)

    def _keep_conversation(self) -> None:
        tree = self.checkpoints.legs[-1][1].id
        self._emit(Checkpoint(tree, start=False, request=self.task.progress.unsaved()))

    def _emit(self, event: RunEvent) -> None:
        record(self.checkpoints.store, self.task.run, event)
        self.show(event)
