"""Carry out a plan in the working directory: the documented calls over the coder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from task.closing import run_blocking
from task.coding.coder import CODER_PROMPT, Coder, Progress
from task.coding.settings import Settings, load_settings, model_tree
from task.conversation.messages import FunctionCall, ToolCall, user
from task.llm.base import new_call_id
from task.output.sinks import NullChoice
from task.permissions.coding import coding_policy
from task.product import opened
from task.product.parts import command_limits
from task.tools.models import Caller, ToolCallParams, nobody
from task.tools.workspace.commands import Commands
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import workspace_tools


@dataclass
class ExecSummary:
    """What an execution came to. Source: planner and executor reference, ExecSummary."""

    steps: int
    last: str


def execute(coder_prompt: str, s: Settings | None = None) -> ExecSummary:
    """Carry out the instructions in the working directory. Source: planner and executor reference, execute.

    Raises:
        ProviderError: the model refused or failed.
        RuntimeError: called inside a running event loop; `execute_async` is for that.
    """
    return run_blocking(execute_async, coder_prompt, s)


async def execute_async(coder_prompt: str, s: Settings | None = None) -> ExecSummary:
    """`execute` for callers with an event loop.

    Raises: as `execute`.
    """
    s = s or load_settings()
    tree = model_tree(s, s.coder_model, s.local_host)
    services, profile = opened(tree, tools=(), read_seconds=s.request_timeout_s)
    progress = Progress([user(coder_prompt)])
    try:
        with Workspace(Path.cwd()) as workspace:
            async with Commands(workspace, command_limits(tree), gated=True) as commands:
                profile = replace(
                    profile,
                    prompt=CODER_PROMPT,
                    tools=workspace_tools(workspace, commands),
                    rules=replace(profile.rules, policy=coding_policy(profile.rules.policy)),
                    limits=replace(profile.limits, steps=s.max_steps),
                )
                coder = Coder(services, profile, Caller("", nobody), emit=lambda _: None)
                outcome = await coder.run(progress)
    finally:
        await services.close()
    if outcome.error is not None:
        raise outcome.error
    return ExecSummary(progress.spent.steps, progress.last)


def _tool_schema() -> list[dict[str, Any]]:
    """The schemas of the workspace's tools in OpenAI's shape. Source: planner and executor reference."""
    with Workspace(Path.cwd()) as workspace:
        return [tool.schema for tool in workspace_tools(workspace, Commands(workspace))]


def _dispatch_tool(name: str, args: dict[str, Any]) -> str:
    """The result of one call in the working directory, as the model gets it; failures are text too.

    Source: planner and executor reference, _dispatch_tool. There is no gate in front of it, only the sandbox.
    """
    return run_blocking(_dispatch_tool_async, name, args)


async def _dispatch_tool_async(name: str, args: dict[str, Any]) -> str:
    with Workspace(Path.cwd()) as workspace:
        async with Commands(workspace) as commands:
            tool = next((tool for tool in workspace_tools(workspace, commands) if tool.name == name), None)
            if tool is None:
                return f"ERROR: unknown tool {name}"
            call, sink = ToolCall(new_call_id(), FunctionCall(name, json.dumps(args))), NullChoice()
            return (await tool.execute(ToolCallParams(call, sink, sink, "", ""))).text()
