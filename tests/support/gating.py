"""Calls and conversations as the gate sees them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.permissions.decisions import CallRequest, Effect, PermissionMode
from task.permissions.facts import CallFacts
from task.permissions.gate import Grants, PolicyGate
from task.permissions.icerc import Brief
from task.permissions.policy import DEFAULT_POLICY, Policy
from task.permissions.taint import ContextView, Origin
from tests.support.clock import FakeClock

READS = frozenset({Effect.READ})
SEARCHES = frozenset({Effect.READ, Effect.NETWORK})
CHANGES = frozenset({Effect.READ, Effect.NETWORK, Effect.WRITE})  # an MCP tool that is not marked read-only
RUNS = frozenset({Effect.READ, Effect.WRITE, Effect.EXECUTE})  # a shell in the workspace
ORIGINS = {
    "calculator": Origin.OWN,
    "search": Origin.OUTSIDE,
    "fetch_page": Origin.OUTSIDE,
    "read_file": Origin.OUTSIDE,
    "execute_code": Origin.MADE,
    "ask_model": Origin.MADE,
}


def request(
    name: str,
    effects: frozenset[Effect],
    messages: Sequence[Message] = (),
    /,
    *,
    brief: Brief | None = None,
    call_id: str = "next",
    **arguments: Any,
) -> CallRequest:
    call = ToolCall(call_id, FunctionCall(name, json.dumps(arguments)))
    names = frozenset(arguments)  # all that a schema declares
    return CallRequest(call, arguments, effects, ContextView(messages, ORIGINS), brief or Brief(), names=names)


def facts(name: str, effects: frozenset[Effect], messages: Sequence[Message] = (), /, **arguments: Any) -> CallFacts:
    return CallFacts(request(name, effects, messages, **arguments))


def turn(name: str, arguments: Mapping[str, Any], result: str, call_id: str = "") -> list[Message]:
    """A call of the model and its result."""
    call = ToolCall(call_id or f"{name}-{abs(hash(result)) % 10_000}", FunctionCall(name, json.dumps(dict(arguments))))
    return [assistant(None, [call]), tool_message(call, result)]


def after_search(text: str = "Some page.") -> list[Message]:
    """A conversation in which text from the web stands."""
    return [user("Look it up"), *turn("search", {"query": "it"}, text)]


def gate(
    policy: Policy = DEFAULT_POLICY, *, mode: PermissionMode = PermissionMode.DEFAULT, grants: Grants | None = None
) -> PolicyGate:
    now = FakeClock(1_000).now
    return PolicyGate(policy, grants or Grants(now), mode, "anna", "c1")
