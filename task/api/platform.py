"""The platform API's `/chat`, personas, saved prompts, and the health of the tools."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from starlette.responses import Response

from task.api.failures import failures
from task.api.messages import ChatFields, UserMessage
from task.api.schemas import AttachmentBody, RequestModel, ResponseModel, Text
from task.api.service import CurrentKey, CurrentService, router
from task.api.traces import TraceBody
from task.llm.window import schema_tokens
from task.product.profile import offered
from task.store.records import Prompt, RunStatus
from task.tools.toolbox import named

CHAT_TOKENS = 2048
CHAT_PROMPT = "You are a helpful assistant"
CHAT_TOOLS = {"duckduckgo_web_search": "web search", "calculator": "calculator"}  # which the documented prompt promises


class ChatRequest(ChatFields):
    """`POST /chat`, which takes no tools of the caller."""

    @property
    def unknown(self) -> list[str]:
        carried = any(isinstance(each, UserMessage) and each.tools for each in self.messages)
        return sorted([*super().unknown, *(["messages.tools"] if carried else [])])


class ChatBody(ResponseModel):
    response: str
    attachments: list[AttachmentBody]
    status: RunStatus
    session_id: str
    trace: TraceBody | None
    run_id: str


class PersonaList(ResponseModel):
    """`descriptions` are the first lines of the personas' texts."""

    personas: list[str]
    descriptions: dict[str, str]
    default: str | None


routes = router("Platform")


@routes.post("/chat", response_model=ChatBody, responses=failures(404, 409, 413, 415))
async def chat(body: ChatRequest, key: CurrentKey, service: CurrentService) -> Any:
    """Answer a conversation in a session, which is made where none is named."""
    async with service.runner.once(service.owner, key) as run:
        if run is None:
            received = await service.read(body.messages, body.system_prompt)
            if received.prompt is None:
                # The documented prompt, which promises only tools that are there, and the agent's own.
                tools = named((await offered(service.services, service.profile))[0])
                found = " and ".join(words for name, words in CHAT_TOOLS.items() if name in tools)
                promised = f" with access to {found} tools" if found else ""
                received = replace(received, prompt=f"{CHAT_PROMPT}{promised}.\n\n{service.profile.prompt}")
            given = {"max_tokens": body.max_tokens or CHAT_TOKENS}
            options = await service.run_options("chat", body, received, given)
            prepared = await service.preparing.in_session(service.caller, received.messages, options, body.session_id)
            run = await service.runner.start(prepared, key)
    live = await service.runner.follow(service.owner, run.run_id)
    await service.wait(live)
    state = live.state
    return {
        "response": state.answer,
        "attachments": state.attachments,
        "status": state.run.status,
        "session_id": state.run.session_id,
        "run_id": live.run.run_id,
        "trace": live.trace,
    }


@routes.get("/personas", response_model=PersonaList, responses=failures())
async def list_personas(service: CurrentService) -> Any:
    """The personas of the context, for a request's `persona`; `default` answers where a request names none."""
    context = service.profile.context
    if context is None:
        return {"personas": [], "descriptions": {}, "default": None}
    found = await context.personas()
    return {"personas": list(found), "descriptions": found, "default": context.persona or None}


MAX_CHARS = 20_000
# The length stands apart: in the pattern it would copy the table of Unicode's letters 60 times, 6 MB in all.
PromptName = Annotated[str, Path(pattern=r"^[\w-]+$", max_length=60, description="Letters, digits, `_` and `-`.")]


class PromptList(ResponseModel):
    prompts: list[Prompt]


class PromptText(RequestModel):
    """`{{name}}` in a text is asked for before the prompt is used."""

    text: Text = Field(min_length=1, max_length=MAX_CHARS)


@routes.get("/prompts", response_model=PromptList, responses=failures())
async def list_prompts(service: CurrentService) -> Any:
    """The caller's saved prompts by name."""
    return {"prompts": await (await service.store()).prompts.list(service.owner)}


@routes.put("/prompts/{name}", response_model=Prompt, responses=failures(413, 415))
async def save_prompt(name: PromptName, body: PromptText, service: CurrentService) -> Any:
    """Save a prompt in place of the one of that name."""
    prompt = Prompt(name, body.text)
    await (await service.store()).prompts.save(service.owner, prompt)
    return prompt


@routes.delete("/prompts/{name}", status_code=204, response_class=Response, responses=failures(404))
async def delete_prompt(name: PromptName, service: CurrentService) -> None:
    """Remove a saved prompt."""
    await (await service.store()).prompts.delete(service.owner, name)


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


@routes.get("/health/tools", response_model=ToolsHealth, responses=failures())
async def tools_health(service: CurrentService) -> Any:
    """The tools with their calls, failures, mean time and tokens of their schemas, and the servers that are down."""
    tools, issues = await offered(service.services, service.profile)
    metrics, described = service.services.telemetry.metrics, list[dict[str, Any]]()
    figures = await asyncio.to_thread(metrics.tools) if metrics is not None else {}
    for tool in tools:
        calls, failed, seconds = figures.get(tool.name, (0, 0, 0.0))
        counted = {"calls": calls, "failed": failed, "mean_seconds": seconds / calls if calls else None}
        described.append({"name": tool.name, "schema_tokens": schema_tokens([tool.schema]), **counted})
    return {
        "tools": described,
        "issues": [{"server": issue.server, "reason": issue.summary} for issue in issues],
        "schema_tokens": schema_tokens([tool.schema for tool in tools]),
    }
