"""The platform API: `/chat`, personas, prompts, the tools' health, runs with their events, approvals and grants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import Header, Path, Query
from pydantic import Field
from starlette.responses import Response

from task.api.edge.failures import failures
from task.api.edge.rendering import EventStream, sse, stream_of
from task.api.edge.schemas import Cursor, Limit, QueryText, RequestModel, ResponseModel, Text
from task.api.platform import schemas as bodies
from task.api.platform.events import RunEvent
from task.api.service import CurrentCaller, CurrentKey, CurrentService, CurrentStore, router
from task.closing import run_to_completion
from task.errors import StoreUnavailable
from task.llm.base import REQUEST_FIELDS, ModelOptions
from task.llm.window import schema_tokens
from task.product import Profile, Services
from task.product.profile import offered
from task.runs.events import sent
from task.runs.runner import Runner
from task.store.records import Prompt
from task.tools.base import BaseTool
from task.tools.toolbox import named

logger = logging.getLogger(__name__)

CHAT_TOKENS = 2048
CHAT_PROMPT = "You are a helpful assistant"
CHAT_TOOLS = {"duckduckgo_web_search": "web search", "calculator": "calculator"}  # which the documented prompt promises


routes = router("Platform")
run_routes = router("Runs")
prompt_routes = router("Prompts")
health_routes = router("Health")


@routes.post("/chat", response_model=bodies.ChatBody, responses=failures(404, 409, 413, 415))
async def chat(body: bodies.ChatRequest, key: CurrentKey, service: CurrentService, caller: CurrentCaller) -> Any:
    """Answer a conversation in a session, which is made where none is named."""
    async with service.runner.once(caller.owner, key) as run:
        if run is None:
            received = await service.reader.read(caller, body.messages)
            fields = REQUEST_FIELDS & bodies.ChatRequest.model_fields.keys()
            asked = ModelOptions.requested(body.model_dump(include=set(fields)))
            asked = replace(asked, max_tokens=asked.max_tokens or CHAT_TOKENS)
            given = body.system_prompt if received.prompt is None else received.prompt
            prompt = await _chat_prompt(service.services, service.profile) if given is None else given
            options = await service.options("chat", body, asked, prompt)
            prepared = await service.preparing.in_session(caller, received.messages, options, body.session_id)
            run = await service.runner.start(prepared, key)
    live = await service.runner.follow(caller.owner, run.run_id)
    await service.answers.wait(live)
    state = live.state
    return {
        "response": state.answer,
        "attachments": state.attachments,
        "status": state.status,
        "session_id": state.session_id,
        "run_id": live.run.run_id,
        "trace": live.trace,
    }


@routes.get("/personas", response_model=bodies.PersonaList, responses=failures())
async def list_personas(service: CurrentService, _: CurrentCaller) -> Any:
    """The personas of the context, for a request's `persona`; `default` answers where a request names none."""
    context = service.profile.context
    if context is None:
        return {"personas": [], "descriptions": {}, "default": None}
    found = await context.persona_summaries()
    return {"personas": list(found), "descriptions": found, "default": context.persona or None}


@run_routes.post("/runs", status_code=202, response_model=bodies.RunBody, responses=failures(404, 409, 413, 415))
async def start_run(body: bodies.RunStart, key: CurrentKey, service: CurrentService, caller: CurrentCaller) -> Any:
    """Start an answer in a session and return at once; its events follow it."""
    async with service.runner.once(caller.owner, key) as run:
        if run is None:
            received = await service.reader.read(caller, body.messages)
            options = await service.completion_options("runs", body, received)
            session = (body.session_id, body.origin)
            prepared = await service.preparing.in_session(caller, received.messages, options, *session)
            run = await service.runner.start(prepared, key)
    service.runner.detach(run.run_id)
    return run


@run_routes.get("/runs", response_model=bodies.RunList, responses=failures())
async def list_runs(
    caller: CurrentCaller,
    store: CurrentStore,
    session_id: QueryText = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Any:
    """The caller's runs, the newest first."""
    return await (await store.get()).runs.list(caller.owner, session_id, limit, cursor)


@run_routes.get("/runs/{run_id}", response_model=bodies.RunBody, responses=failures(404))
async def get_run(run_id: str, caller: CurrentCaller, store: CurrentStore) -> Any:
    """One run."""
    return await (await store.get()).runs.get(caller.owner, run_id)


@run_routes.get("/runs/{run_id}/events", response_class=Response, responses={**stream_of(RunEvent), **failures(404)})
async def listen(
    run_id: str,
    service: CurrentService,
    caller: CurrentCaller,
    store: CurrentStore,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The run's events as server-sent events: past ones first, then each as it happens."""
    await (await store.get()).runs.get(caller.owner, run_id)
    seen = int(last_event_id) if last_event_id is not None and _is_number(last_event_id) else after
    return EventStream(_events(service.runner, caller.owner, run_id, seen), service.answers.heartbeat)


@run_routes.post("/runs/{run_id}/cancel", response_model=bodies.RunBody, responses=failures(404))
async def cancel_run(run_id: str, service: CurrentService, caller: CurrentCaller) -> Any:
    """Stop a run; what it has written stays. One that is over stays as it is."""
    return await service.runner.stop(caller.owner, run_id)


@run_routes.get("/approvals", response_model=bodies.ApprovalList, responses=failures())
async def list_approvals(
    caller: CurrentCaller,
    store: CurrentStore,
    session_id: QueryText = None,
    run_id: QueryText = None,
    waiting: bool = True,
) -> Any:
    """Open questions; with `waiting=false` also those that are closed."""
    found = await (await store.get()).approvals.list(
        caller.owner, session_id=session_id, run_id=run_id, waiting=waiting
    )
    return {"approvals": found, "count": len(found)}


@run_routes.post(
    "/approvals/{approval_id}", response_model=bodies.AnsweredBody, responses=failures(404, 409, 413, 415)
)  # fmt: skip
async def answer_approval(
    approval_id: str,
    body: bodies.ApprovalAnswer,
    key: CurrentKey,
    service: CurrentService,
    caller: CurrentCaller,
    store: CurrentStore,
) -> Any:
    """Answer a question; the first answer counts, and the same one again gets the same reply.

    After the last answer of a run another run continues it.
    """

    async def answer_and_resume() -> dict[str, Any]:
        async with service.runner.once(caller.owner, key) as resumed:
            if resumed is None:
                answered = await service.preparing.answer(caller, approval_id, body.answer)
                prepared = await service.preparing.resumed(caller, answered.run_id or "")
                resumed = await service.runner.start(prepared, key) if prepared is not None else None
        if resumed is not None:
            service.runner.detach(resumed.run_id)
        return {"approval": await (await store.get()).approvals.get(caller.owner, approval_id), "resumed": resumed}

    return await run_to_completion(answer_and_resume())  # a person who leaves after the click has still decided


@run_routes.get("/grants", response_model=bodies.GrantList, responses=failures())
async def list_grants(caller: CurrentCaller, store: CurrentStore, session_id: QueryText = None) -> Any:
    """Grants: what was allowed for longer than one call."""
    found = await (await store.get()).grants.list(caller.owner, session_id)
    return {"grants": [{**grant.data, **asdict(grant)} for grant in found], "count": len(found)}


@run_routes.delete("/grants/{grant_id}", status_code=204, response_class=Response, responses=failures(404))
async def revoke_grant(grant_id: str, caller: CurrentCaller, store: CurrentStore) -> None:
    """Revoke a grant."""
    await (await store.get()).grants.revoke(caller.owner, grant_id)


async def _chat_prompt(services: Services, profile: Profile) -> str:
    """The documented prompt, which promises only tools that are there, and the agent's own."""
    tools = named((await offered(services, profile))[0])
    found = " and ".join(words for name, words in CHAT_TOOLS.items() if name in tools)
    promise = f"{CHAT_PROMPT} with access to {found} tools." if found else f"{CHAT_PROMPT}."
    return f"{promise}\n\n{profile.prompt}"


async def _events(runner: Runner, owner: str, run_id: str, after: int) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(runner.events(owner, run_id, after, sure=True)) as events:
            async for event in events:
                yield sse(sent(event), number=event.number)
    except StoreUnavailable as error:  # a stream without a last event is followed again
        logger.warning("the events of %s end early: %s", run_id, error)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


MAX_CHARS = 20_000
# The length stands apart: in the pattern it would copy the table of Unicode's letters 60 times, 6 MB in all.
PromptName = Annotated[str, Path(pattern=r"^[\w-]+$", max_length=60, description="Letters, digits, `_` and `-`.")]


class PromptBody(ResponseModel):
    name: str
    text: str


class PromptList(ResponseModel):
    prompts: list[PromptBody]


class PromptText(RequestModel):
    """`{{name}}` in a text is asked for before the prompt is used."""

    text: Text = Field(min_length=1, max_length=MAX_CHARS)


@prompt_routes.get("/prompts", response_model=PromptList, responses=failures())
async def list_prompts(caller: CurrentCaller, store: CurrentStore) -> Any:
    """The caller's saved prompts by name."""
    return {"prompts": await (await store.get()).prompts.list(caller.owner)}


@prompt_routes.put("/prompts/{name}", response_model=PromptBody, responses=failures(413, 415))
async def save_prompt(name: PromptName, body: PromptText, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Save a prompt in place of the one of that name."""
    prompt = Prompt(name, body.text)
    await (await store.get()).prompts.save(caller.owner, prompt)
    return prompt


@prompt_routes.delete("/prompts/{name}", status_code=204, response_class=Response, responses=failures(404))
async def delete_prompt(name: PromptName, caller: CurrentCaller, store: CurrentStore) -> None:
    """Remove a saved prompt."""
    await (await store.get()).prompts.delete(caller.owner, name)


class ToolHealth(ResponseModel):
    """`calls`, `failed` and `mean_seconds` are since the start; nothing is counted where metrics are off."""

    name: str
    schema_tokens: int
    calls: int
    failed: int
    mean_seconds: float | None


class ServerIssue(ResponseModel):
    """A server whose tools are missing."""

    server: str
    reason: str


class ToolsHealth(ResponseModel):
    """The tools that answer, and the servers that do not."""

    tools: list[ToolHealth]
    issues: list[ServerIssue]
    schema_tokens: int


@health_routes.get("/health/tools", response_model=ToolsHealth, responses=failures())
async def tools_health(service: CurrentService, _: CurrentCaller) -> Any:
    """The tools with their calls, failures, mean time and tokens of their schemas, and the servers that are down."""
    tools, issues = await offered(service.services, service.profile)
    metrics = service.services.telemetry.metrics
    figures = await asyncio.to_thread(metrics.tools) if metrics is not None else {}
    return {
        "tools": [_tool_health(tool, *figures.get(tool.name, (0, 0, 0.0))) for tool in tools],
        "issues": [{"server": issue.server, "reason": issue.summary} for issue in issues],
        "schema_tokens": schema_tokens([tool.schema for tool in tools]),
    }


def _tool_health(tool: BaseTool, calls: int, failed: int, seconds: float) -> dict[str, Any]:
    mean, tokens = seconds / calls if calls else None, schema_tokens([tool.schema])
    return {"name": tool.name, "schema_tokens": tokens, "calls": calls, "failed": failed, "mean_seconds": mean}
