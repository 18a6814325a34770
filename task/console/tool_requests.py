"""The questions of the console: calls under the tools' documented names, and what the user answers to their cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from task.console.ui_manager import PermissionQuestion, UserInterfaceManager
from task.conversation.replies import Answer
from task.product.framework import ConsoleProduct
from task.store.records import Approval
from task.tools.schemas import FRAMEWORK

_ALIASES = {alias.tool: alias for alias in FRAMEWORK}


def decided(
    ui: UserInterfaceManager,
    product: ConsoleProduct,
    card: Mapping[str, Any],
    request: Mapping[str, Any],
    code: str = "",
    answered_elsewhere: Callable[[], bool] = lambda: False,
) -> Answer | None:
    """The user's answer to a card; None: none in time, no terminal, or it was answered elsewhere."""
    grant = str(card.get("grant_description", "")) if product.remembers else ""
    question = PermissionQuestion(request, {**card, "grant_description": grant}, code, grant)
    answer = ui.ask_permission(question, product.confirmation_seconds, answered_elsewhere)
    # "always" needs something that can be granted
    return replace(answer, always=False) if answer is not None and answer.always and not grant else answer


def decided_approval(
    ui: UserInterfaceManager,
    product: ConsoleProduct,
    approval: Approval,
    answered_elsewhere: Callable[[], bool] = lambda: False,
) -> Answer | None:
    """The same for the question of a suspended run; the arguments of the answer have the tool's own names."""
    answer = decided(ui, product, approval.card, request_of(approval), approval.code, answered_elsewhere)
    if answer is None or answer.arguments is None:
        return answer
    names = _ALIASES[approval.tool].arguments if approval.tool in _ALIASES else {}
    return replace(answer, arguments={names.get(name, name): value for name, value in answer.arguments.items()})


def request_of(approval: Approval) -> dict[str, Any]:
    """The documented ToolRequest of a stored question, under the tool's documented name."""
    alias = _ALIASES.get(approval.tool)
    theirs = {own: name for name, own in alias.arguments.items()} if alias is not None else {}
    return {
        "request_id": approval.call_id,
        "tool_name": alias.name if alias is not None else approval.tool,
        "parameters": {theirs.get(name, name): value for name, value in approval.arguments.items()},
        "icerc": dict(approval.card),
    }
