"""Ask a model for a plan of a coding task, and read its answer however it is wrapped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from task.closing import run_blocking
from task.coding.settings import Settings, load_settings, planner_tree
from task.conversation.messages import Message, repaired, system, user
from task.errors import ProviderError
from task.llm.accumulator import Accumulator
from task.llm.base import ModelOptions, Usage
from task.loop import LoopObserver
from task.permissions.icerc import plain
from task.product import Profile, opened
from task.tools.models import Caller

PLANNER_PROMPT = """\
You plan coding tasks for another model, the coder. It can read, search, edit and write files, and run commands and \
tests in the project's folder. You cannot call tools yourself.

Answer with one JSON object and nothing else: no prose, no code fence.
{"plan": ["3 to 7 short steps"], "coder_prompt": "complete instructions for the coder", "tests": ["pytest ..."]}

- plan: what is done, step by step, in the order of the work; reading the code comes first.
- coder_prompt: everything the coder has to know: the task, the files that are concerned, names, expected behaviour, \
what must not change. The coder sees nothing else.
- tests: the commands that show that the work is done, each a pytest command or node id; [] if there is none."""
REPAIR = "That is not the JSON object I asked for: {fault}. Answer again with the JSON object only."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "plan": {"type": "array", "items": {"type": "string"}},
        "coder_prompt": {"type": "string"},
        "tests": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["plan", "coder_prompt", "tests"],
    "additionalProperties": False,
}
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True},
}
_NUMBER = re.compile(r"^\s*(?:[-*•]|\(?\d+[.):])\s+")
MAX_FILES = 200
MOST_OBJECTS = 100  # of an answer, tried as a plan


@dataclass
class Plan:
    """What the planner wants done. Source: planner and executor reference, Plan."""

    plan: list[str]
    coder_prompt: str
    tests: list[str]


def get_plan(task: str, s: Settings | None = None) -> Plan:
    """The plan for a task. Source: planner and executor reference, get_plan.

    Raises:
        ValueError: the planner's answer is not a plan, also when it is asked a second time.
        ProviderError: the planner refused or failed; it has the fields of the documented `httpx.HTTPStatusError`.
        RuntimeError: called inside a running event loop; `get_plan_async` is for that.
    """
    return run_blocking(get_plan_async, task, s)


async def get_plan_async(task: str, s: Settings | None = None) -> Plan:
    """`get_plan` for callers with an event loop.

    Raises: as `get_plan`.
    """
    s = s or load_settings()
    services, profile = opened(planner_tree(s), tools=(), read_seconds=s.request_timeout_s)
    try:
        return (await planned(profile, Caller("", _nobody), task))[0]
    finally:
        await services.close()


async def planned(
    profile: Profile, caller: Caller, task: str, files: Sequence[str] = (), observer: LoopObserver | None = None
) -> tuple[Plan, Usage]:
    """The plan that the profile's model makes, and the tokens it took; `files` are paths in the workspace.

    Raises: as `get_plan`.
    """
    planner = _Planner(profile, caller, observer or LoopObserver())
    messages = [system(PLANNER_PROMPT), user(_with_files(task, files))]
    reply, usage = await planner.answer(messages)
    try:
        return parse_plan(reply), usage
    except ValueError as fault:
        messages += [*repaired([reply]), user(REPAIR.format(fault=fault))]
    reply, more = await planner.answer(messages)
    try:
        return parse_plan(reply), usage + more
    except ValueError as fault:
        raise ValueError(f"The planner's answer is not a plan, also when asked again: {fault}.") from None


def parse_plan(reply: Message | str) -> Plan:
    """The plan in an answer: fences, text around the object and tokens of a chat template are left out.

    Raises:
        ValueError: it is no plan; says why.
    """
    if not isinstance(reply, str) and reply.tool_calls:
        raise ValueError("the planner called a tool, and there is none")
    text = reply if isinstance(reply, str) else reply.text()
    try:
        return _PlanData.model_validate(_object_in(text)).as_plan()
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "the plan"
        raise ValueError(f"{place}: {fault['msg'].removeprefix('Value error, ')}") from None


def _lines(value: Any) -> Any:
    if isinstance(value, str):
        lines = value.splitlines()
    elif isinstance(value, list):
        lines = cast("list[Any]", value)
    else:
        return value
    plain = [_NUMBER.sub("", line).strip() if isinstance(line, str) else line for line in lines]
    return [line for line in plain if line != ""]


def _steps(value: Any) -> Any:
    steps = _lines(value)
    if steps == []:
        raise ValueError("it has no steps")
    return steps


def _tests(value: Any) -> Any:
    if value is None:
        return []
    return _lines(value if isinstance(value, list) else str(value))


class _PlanData(BaseModel):
    plan: Annotated[list[str], BeforeValidator(_steps)]
    coder_prompt: Annotated[str, Field(min_length=1)]
    tests: Annotated[list[str], BeforeValidator(_tests)] = []

    def as_plan(self) -> Plan:
        return Plan(self.plan, self.coder_prompt, self.tests)


def _object_in(text: str) -> Any:
    """The first JSON object of the text that has a plan, else the first one."""
    found: list[dict[str, Any]] = []
    decoder, place = json.JSONDecoder(), text.find("{")
    for _ in range(MOST_OBJECTS):
        if place == -1:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            found.append(value)
        place = text.find("{", end)
    if not found:
        raise ValueError("there is no JSON object in it")
    return next((value for value in found if "plan" in value), found[0])


@dataclass(frozen=True, slots=True)
class _Planner:
    profile: Profile
    caller: Caller
    observer: LoopObserver

    async def answer(self, messages: Sequence[Message]) -> tuple[Message, Usage]:
        options = self.profile.options_for(ModelOptions())
        try:
            return await self._asked(messages, replace(options, extra={**options.extra, "response_format": _FORMAT}))
        except ProviderError as error:
            if error.status_code != 400:  # some providers refuse a format; the schema is in the prompt as well
                raise
        return await self._asked(messages, options)

    async def _asked(self, messages: Sequence[Message], options: ModelOptions) -> tuple[Message, Usage]:
        received, started = Accumulator(), perf_counter()
        model = self.profile.backend.chat_model(self.profile.model, self.caller)
        async with aclosing(model.stream(messages, [], options)) as deltas:
            async for delta in deltas:
                received.add(delta)
        message, usage = received.message(), Usage() + (received.usage or Usage())
        self.observer.model_answered(message, usage, perf_counter() - started)
        return message, usage


def _with_files(task: str, files: Sequence[str]) -> str:
    if not files:
        return task
    shown = "\n".join(map(plain, files[:MAX_FILES]))  # a name with line breaks would look like several, or like orders
    more = f"\n... and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    return f"{task}\n\nFiles of the project:\n{shown}{more}"


async def _nobody() -> str:
    return ""
