"""What a coding run may do in its workspace without a question, and the question about its preparation."""

from __future__ import annotations

import json
from dataclasses import replace

from task.conversation.messages import FunctionCall, ToolCall
from task.permissions.decisions import CallRequest, Effect, WorkspaceAccess
from task.permissions.facts import CallFacts
from task.permissions.policy import Policy, Rule

SETUP = "run --setup"  # a name that no tool can have: it is the user's own command, never offered to a model
WORKSPACE_TOOLS = ("fs_read", "fs_write", "fs_list", "fs_edit", "fs_search", "shell_run", "python_run")
_LOCAL = frozenset({Effect.READ, Effect.WRITE, Effect.EXECUTE})
# Documented; what such a program runs by itself is confined by the sandbox.
_COMMANDS = """ls cd cat head tail find grep sort uniq wc diff pwd echo tree stat file cut tr sed awk rg true test mkdir
touch cp mv make cmake npm pip cargo go git python python3 pytest node ruff mypy"""
ALLOWED_COMMANDS = tuple(_COMMANDS.split())
CODING_RULES = (
    *(Rule("allow", name, frozenset({Effect.READ, Effect.WRITE}), workspace=True) for name in ("fs_write", "fs_edit")),
    Rule("allow", "shell_run", _LOCAL, command=ALLOWED_COMMANDS, workspace=True),
    Rule("allow", "python_run", _LOCAL, workspace=True),
)
_YES_RULES = (
    Rule("allow", effects=_LOCAL, workspace=True),
    Rule("allow", SETUP, _LOCAL | {Effect.NETWORK}),
)


def coding_policy(policy: Policy, *, yes: bool = False) -> Policy:
    """The policy after `--apply`: what stays in the workspace runs where `policy` has no rule that asks or denies.

    `yes` answers the questions that are left about the workspace and about the setup; never one about a call that
    leads out of the workspace, that text from outside makes dangerous, or that a rule of the operator asks.
    """
    rules = (*policy.rules, *CODING_RULES, *(_YES_RULES if yes else ()))
    # The setup is the user's own command, not a tool that could be on a list of tools.
    only = policy.only if policy.only is None else policy.only | {SETUP}
    return replace(policy, rules=rules, only=only)


def is_listed(line: str, root: str) -> bool:
    """Whether a command line in the workspace at `root` runs documented commands only, and stays there."""
    call = ToolCall("listed", FunctionCall("shell_run", json.dumps({"cmd": line})))
    request = CallRequest(call, {"cmd": line}, frozenset({Effect.EXECUTE}), workspace=WorkspaceAccess(root))
    return any(rule.command and rule.fits(CallFacts(request)) for rule in CODING_RULES)


def setup_request(command: str, root: str) -> CallRequest:
    """The call that a gate decides about before `--setup` runs, with the network, in the workspace at `root`."""
    call = ToolCall(SETUP, FunctionCall(SETUP, json.dumps({"command": command})))
    effects = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.NETWORK})
    return CallRequest(call, {"command": command}, effects, workspace=WorkspaceAccess(root))
