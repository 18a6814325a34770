"""Texts as the web page shows them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from task.api.edge.failures import failures
from task.api.edge.schemas import Text
from task.api.service import CurrentCaller, router
from task.api.web.markdown import Block, blocks_of

MAX_TEXTS = 100


class MarkdownRequest(BaseModel):
    """Texts that were written as Markdown."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[list[Text], Field(max_length=MAX_TEXTS)]


class BlockBody(BaseModel):
    """A block: the line of its text in which it begins, counted from 0, and its HTML."""

    line: int
    html: str


class MarkdownBody(BaseModel):
    """The blocks of each text, in the order of the texts."""

    texts: list[list[BlockBody]]


routes = router("Web page")


@routes.post("/markdown", response_model=MarkdownBody, responses=failures(400, 413, 415))
async def render(body: MarkdownRequest, _: CurrentCaller) -> Any:
    """Render texts as HTML in which nothing acts: no scripts, no HTML of the text's own, no remote pictures."""
    return {"texts": await asyncio.to_thread(_render_all, body.texts)}


def _render_all(texts: list[str]) -> list[list[Block]]:
    return list(map(blocks_of, texts))
