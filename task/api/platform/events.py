"""The events of a run as the OpenAPI document describes them."""

from __future__ import annotations

from dataclasses import fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, RootModel, create_model

from task.api.edge.failures import ErrorDetail
from task.api.edge.schemas import AttachmentBody, CachedTokens, ReasoningTokens, ResponseModel, ToolCallBody
from task.api.platform.schemas import ApprovalBody
from task.runs.events import KEPT, AnswerEvent

_BODIES: dict[str, Any] = {  # of the fields whose data are objects
    "error": ErrorDetail,
    "tool_calls": list[ToolCallBody],
    "attachment": AttachmentBody,
    "approvals": list[ApprovalBody],
    "prompt_tokens_details": CachedTokens,
    "completion_tokens_details": ReasoningTokens,
}


def _body(event: type[Any]) -> type[ResponseModel]:
    types = get_type_hints(event)
    kept = sorted(fields(event), key=lambda item: item.name != "type")  # the type first
    described: dict[str, Any] = {
        item.name: (_BODIES.get(item.name, types[item.name]), None if item.default is None else ...)
        for item in kept
        if item.name != KEPT
    }
    return create_model(event.__name__, __base__=ResponseModel, id=(Annotated[int, Field(ge=1)], ...), **described)


_EVERY: Any = reduce(or_, map(_body, get_args(AnswerEvent)))


class RunEvent(RootModel[Annotated[_EVERY, Field(discriminator="type")]]):
    """One event of a run. The stream ends after `finished`."""
