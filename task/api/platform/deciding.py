"""A person's answers to the questions of suspended runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from task.api.edge.identity import ApiCaller
from task.api.platform.pausing import ALWAYS
from task.api.platform.schemas import ApprovalAnswer
from task.api.platform.web_search import with_web_search
from task.conversation.messages import FunctionCall, ToolCall
from task.errors import ArgumentsError, Conflict, InvalidRequest
from task.permissions.gate import digest
from task.product import Product
from task.store.records import Answer, Approval
from task.store.wire import packed
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import named


@dataclass(frozen=True, slots=True)
class Deciding:
    """Takes answers; changed arguments are checked, and the answer is bound to the digest of the changed call."""

    product: Product

    async def answer(self, caller: ApiCaller, approval_id: str, given: ApprovalAnswer) -> Approval:
        """The answered question.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered before, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        store = await self.product.store.get()
        asked = await store.approvals.get(caller.owner, approval_id)
        if asked.status != "waiting":
            raise Conflict(f"the approval {approval_id} is {asked.status} already")
        if given.decision == "deny":
            return await store.approvals.answer(caller.owner, approval_id, Answer(False, given.reason))
        answer = Answer(True, ALWAYS if given.decision == "always" else "")
        if given.arguments is not None and dict(given.arguments) != dict(asked.arguments):
            answer = await self._changed(caller, asked, answer, given)
        return await store.approvals.answer(caller.owner, approval_id, answer)

    async def _changed(self, caller: ApiCaller, asked: Approval, answer: Answer, given: ApprovalAnswer) -> Answer:
        tool = (await self._tools(caller)).get(asked.tool)
        if tool is None:
            raise Conflict(f"there is no tool {asked.tool!r} any more; deny the call")
        try:
            call = ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(given.arguments or {}))))
            arguments = tool.parse(call)
        except ArgumentsError as error:
            raise InvalidRequest(str(error)) from error
        policy = self.product.approval_rules.policy
        return replace(answer, arguments=arguments, grant=digest(asked.tool, arguments, policy))

    async def _tools(self, caller: ApiCaller) -> dict[str, BaseTool]:
        async def principal() -> str:
            return caller.owner

        own = self.product.tools
        tools_caller = Caller(caller.core_key, principal, "", dict(caller.headers))
        found = await self.product.mcp.discover(tools_caller, named(own))
        return named(with_web_search([*own, *found.tools]))
