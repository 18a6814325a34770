"""A person's decision on a card: one for each question, bound to the arguments as the person left them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from task.approvals.stored import ALWAYS
from task.conversation.messages import FunctionCall, ToolCall
from task.errors import ArgumentsError, Conflict, InvalidRequest
from task.permissions.gate import digest
from task.product import Product
from task.runs.answering import Adapt
from task.runs.request import RunCaller
from task.store.records import Answer, Approval, packed
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import named


@dataclass(frozen=True, slots=True)
class Cards:
    """Takes decisions; `adapt` gives the tools the names under which the door offers them."""

    product: Product
    adapt: Adapt = tuple

    async def answer(
        self,
        caller: RunCaller,
        approval_id: str,
        decision: Literal["approve", "always", "deny"],
        reason: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Approval:
        """The answered question; the same answer again changes nothing.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered otherwise, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        approvals = (await self.product.store.get()).approvals
        asked = await approvals.get(caller.owner, approval_id)
        answer = Answer(False, reason) if decision == "deny" else Answer(True, ALWAYS if decision == "always" else "")
        if answer.allowed and arguments is not None and dict(arguments) != dict(asked.arguments):
            answer = await self._changed(caller, asked, answer, arguments)
        if asked.answer == answer:
            return asked
        try:
            return await approvals.answer(caller.owner, approval_id, answer)
        except Conflict:
            found = await approvals.get(caller.owner, approval_id)
            if found.answer == answer:  # the same answer came from another door
                return found
            raise

    async def _changed(self, caller: RunCaller, asked: Approval, answer: Answer, changed: Mapping[str, Any]) -> Answer:
        tool = (await self._tools(caller)).get(asked.tool)
        if tool is None:
            raise Conflict(f"the tool {asked.tool!r} is no longer available; deny the call")
        try:
            call = ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(changed))))
            arguments = tool.parse(call)
        except ArgumentsError as error:
            raise InvalidRequest(str(error)) from error
        return replace(
            answer, arguments=arguments, grant=digest(asked.tool, arguments, self.product.approval_rules.policy)
        )

    async def _tools(self, caller: RunCaller) -> dict[str, BaseTool]:
        async def principal() -> str:
            return caller.owner

        own = self.product.tools
        tools_caller = Caller(caller.core_key, principal, "", dict(caller.headers))
        found = await self.product.mcp.discover(tools_caller, named(own))
        return named(self.adapt([*own, *found.tools]))
