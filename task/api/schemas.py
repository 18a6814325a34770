"""What bodies are made of, and the parameters and pages that listings have in common."""

from collections import Counter
from typing import Annotated, Any, Generic, Literal, TypeVar

import orjson
from fastapi import Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from starlette.responses import JSONResponse

from task.errors import NotFound
from task.store.records import iso, json_bytes, position

INTEGERS = 2**63
UNKNOWN_TYPE = "application/octet-stream"
Order = Literal["asc", "desc"]
SCHEMA_REFERENCE = "#/components/schemas/{model}"
T = TypeVar("T")


class RequestModel(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class ResponseModel(BaseModel):
    """A body that is sent: rendered from data or from the attributes of an object, and described in OpenAPI."""

    model_config = ConfigDict(extra="allow", defer_build=True)


def _unique(tools: list[Any]) -> list[Any]:
    for name, times in Counter(tool.name for tool in tools).items():
        if times > 1:
            raise ValueError(f"two tools are called {name!r}")
    return tools


def is_none(value: object) -> bool:
    """For `exclude_if`: the field is absent rather than null."""
    return value is None


def _sendable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise ValueError("holds half a surrogate pair, or a number or a depth that is too large") from None
    return value


# A bound makes pydantic read the string as UTF-8: without one, half a surrogate pair would pass.
Text = Annotated[str, Field(min_length=0)]
# In brackets, because these are names of our types and not of places in a request.
_IS_TEXT = Discriminator(lambda value: "(items)" if isinstance(value, list) else "(text)")
TextOr = Annotated[Annotated[Text, Tag("(text)")] | Annotated[T, Tag("(items)")], _IS_TEXT]
Filled = Annotated[str, Field(min_length=1)]
Json = Annotated[dict[str, Any], AfterValidator(_sendable)]
Tools = Annotated[list[T], Field(max_length=128), AfterValidator(_unique)]  # no two of one name
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-INTEGERS, lt=INTEGERS)]
# From the store's seconds.
Timestamp = Annotated[str, BeforeValidator(lambda at: iso(at) if isinstance(at, int | float) else at)]
Milliseconds = Annotated[float, BeforeValidator(lambda at: round(at * 1000, 3) if isinstance(at, int | float) else at)]


CachedTokens = dict[Literal["cached_tokens"], int]
ReasoningTokens = dict[Literal["reasoning_tokens"], int]


class UsageBody(ResponseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class FunctionBody(ResponseModel):
    name: str
    arguments: str


class ToolCallBody(ResponseModel):
    id: str
    type: Literal["function"]
    function: FunctionBody


class AttachmentBody(ResponseModel):
    """A file or a source that belongs to an answer or a stage; `file_id` is its name at `/v1/files`."""

    type: str | None = None
    title: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    reference_url: str | None = None
    reference_type: str | None = None


Limit = Annotated[int, Query(ge=1, le=1000)]
QueryText = Annotated[str | None, Query(max_length=200)]
_OF_A_PAGE = AfterValidator(lambda cursor: cursor if cursor is None or position(cursor) else None)
Cursor = Annotated[str | None, Query(max_length=200), _OF_A_PAGE]


class DeletedBody(ResponseModel):
    id: str
    object: Literal["file", "response"]
    deleted: bool


class ItemPage(ResponseModel, Generic[T]):
    object: Literal["list"]
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of_items(items: dict[str, Any], order: Order, limit: int, after: str | None) -> dict[str, Any]:
    """A page of the items, the oldest first; `after` is the last id of the one before.

    Raises:
        NotFound: there is no item `after`.
    """
    ids = list(items if order == "asc" else reversed(items))
    if after is not None and after not in items:
        raise NotFound(f"there is no item {after!r}")
    start = ids.index(after) + 1 if after is not None else 0
    page = ids[start : start + limit]
    return {
        "object": "list",
        "data": [items[name] for name in page],
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
        "has_more": start + limit < len(ids),
    }


class PageBody(ResponseModel):
    """`cursor` is for the next page and null on the last one."""

    count: int
    cursor: str | None


class JsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json_bytes(content)
