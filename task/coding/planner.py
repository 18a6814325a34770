"""Ask a model for a plan of a coding task, and read its answer however it is wrapped."""

import json
import re
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from task.closing import run_blocking
from task.coding.settings import Settings, load_settings, model_tree
from task.conversation.messages import Message, repaired, system, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ModelOptions, Usage
from task.loop import LoopObserver
from task.permissions.icerc import plain
from task.product import Profile, opened
from task.tools.models import Caller, nobody

PLANNER_PROMPT = """\
You plan coding tasks for another model, the coder. It can read, search, edit and write files, and run commands and \
tests in the project's folder. You cannot call tools yourself.

Answer with one JSON object and nothing else: no prose, no code fence.
{"plan": ["3 to 7 short steps"], "coder_prompt": "complete instructions", "tests": ["pytest ..."], "writes": true}

- plan: what is done, step by step, in the order of the work; reading the code comes first.
- coder_prompt: everything the coder has to know: the task, the files that are concerned, names, expected behaviour, \
what must not change. The coder sees nothing else.
- tests: the commands that show that the work is done, each a pytest command or node id; [] if there is none.
- writes: whether any step changes a file; false for a task that only asks for an answer."""
REPAIR = "That is not the JSON object I asked for: {fault}. Answer again with the JSON object only."
_NUMBER = re.compile(r"^\s*(?:[-*•]|\(?\d+[.):])\s+")
MAX_FILES = 200
ATTEMPTS = 2
MOST_OBJECTS = 100  # beginnings of one in an answer that are tried


_Line = Annotated[str, AfterValidator(lambda line: _NUMBER.sub("", line).strip())]
_Lines = Annotated[
    list[_Line],
    BeforeValidator(lambda value: value.splitlines() if isinstance(value, str) else value or []),
    AfterValidator(lambda lines: list(filter(None, lines))),
]


@dataclass
class Plan:
    """What the planner wants done. Source: planner and executor reference, Plan."""

    plan: Annotated[_Lines, Field(min_length=1)]
    coder_prompt: Annotated[str, Field(min_length=1)]
    tests: _Lines
    writes: Annotated[bool, BeforeValidator(lambda value: value is not False)] = True


_PLAN = TypeAdapter(Plan)
_SCHEMA = _PLAN.json_schema()
_SCHEMA["properties"]["writes"] = {"type": "boolean"}  # strict formats have no defaults, and require all properties
_SCHEMA.update(description="A plan for the coder.", additionalProperties=False, required=list(_SCHEMA["properties"]))
_FORMAT = {"type": "json_schema", "json_schema": {"name": "plan", "schema": _SCHEMA, "strict": True}}


def get_plan(task: str, s: Settings | None = None) -> Plan:
    """The plan for a task. Source: planner and executor reference, get_plan.

    Raises:
        ValueError: the planner's answer is not a plan, also when it is asked a second time.
        ProviderError: the planner refused or failed; it has the fields of the documented `httpx.HTTPStatusError`.
        RuntimeError: called inside a running event loop; `get_plan_async` is for that.
    """
    return run_blocking(get_plan_async, task, s)


async def get_plan_async(task: str, s: Settings | None = None) -> Plan:
    """`get_plan` for callers with an event loop; it raises the same."""
    s = s or load_settings()
    services, profile = opened(model_tree(s, s.planner_model, s.turbo_host), tools=(), read_seconds=s.request_timeout_s)
    try:
        return (await planned(profile, Caller("", nobody), task, (), LoopObserver()))[0]
    finally:
        await services.close()


async def planned(
    profile: Profile, caller: Caller, task: str, files: Sequence[str], observer: LoopObserver
) -> tuple[Plan, Usage]:
    """The plan that the profile's model makes, and the tokens it took; `files` are paths in the workspace.

    Raises: as `get_plan`.
    """
    shown = "\n".join(map(plain, files[:MAX_FILES]))  # a name with line breaks would look like several, or like orders
    more = f"\n... and {len(files) - MAX_FILES} more" if len(files) > MAX_FILES else ""
    asked = f"{task}\n\nFiles of the project:\n{shown}{more}" if files else task
    messages, total, fault = [system(PLANNER_PROMPT), user(asked)], Usage(), ""
    model, plain_text = profile.backend.chat_model(profile.model, caller), profile.options_for(ModelOptions())
    options, attempts = replace(plain_text, extra={**plain_text.extra, "response_format": _FORMAT}), ATTEMPTS
    while attempts:
        received, started = Accumulator(), perf_counter()
        try:
            async with aclosing(model.stream(messages, [], options)) as deltas:
                async for delta in deltas:
                    received.add(delta)
        except ProviderError as error:
            if error.status_code != 400 or options is plain_text:
                raise
            options = plain_text  # some providers refuse a format; the prompt asks for it as well
            continue
        attempts -= 1
        reply, usage = received.message(), received.usage or Usage()
        observer.model_answered(reply, usage, perf_counter() - started)
        total += usage
        try:
            return parse_plan(reply), total
        except ValueError as error:
            fault = str(error)
        messages += [*repaired([reply]), user(REPAIR.format(fault=fault))]
    raise ValueError(f"The planner's answer is not a plan, also when asked again: {fault}.")


def parse_plan(reply: Message | str) -> Plan:
    """The plan in an answer: fences, text around the object and tokens of a chat template are left out.

    Raises:
        ValueError: it is not a plan; says why.
    """
    if not isinstance(reply, str) and reply.tool_calls:
        raise ValueError("the planner called a tool, and there is none")
    text = reply if isinstance(reply, str) else reply.text()
    found, decoder = list[dict[str, Any]](), json.JSONDecoder()
    for brace in islice(re.finditer("{", text), MOST_OBJECTS):
        with suppress(ValueError, RecursionError):
            found.append(decoder.raw_decode(text, brace.start())[0])
    if not found:
        raise ValueError("there is no JSON object in it")
    chosen = next((value for value in found if "plan" in value), found[0])
    try:
        return _PLAN.validate_python({"tests": [], **chosen})
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
