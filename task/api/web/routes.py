"""Texts as the web page shows them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from task.api.edge.rendering import json_response
from task.api.edge.values import Text
from task.api.openai.documents import failures
from task.api.service import Service
from task.api.web.markdown import Block, blocks_of

MOST_TEXTS = 100


class MarkdownRequest(BaseModel):
    """Texts that were written as Markdown."""

    model_config = ConfigDict(extra="forbid")

    texts: Annotated[list[Text], Field(max_length=MOST_TEXTS)]


class BlockBody(BaseModel):
    """A block: the line of its text in which it begins, counted from 0, and its HTML."""

    line: int
    html: str


class MarkdownBody(BaseModel):
    """The blocks of each text, in the order of the texts."""

    texts: list[list[BlockBody]]


def markdown_routes(service: Service) -> APIRouter:
    routes = service.routes("Web page")

    @routes.post(
        "/markdown", response_model=None, responses={200: {"model": MarkdownBody}, **failures(400, 413, 415)}
    )  # fmt: skip
    async def render(body: MarkdownRequest, request: Request) -> Response:
        """Render texts as HTML in which nothing acts: no scripts, no HTML of the text's own, no remote pictures."""
        await service.caller(request)
        rendered = await asyncio.to_thread(_all, body.texts)
        return json_response({"texts": [[asdict(block) for block in blocks] for blocks in rendered]})

    return routes


def _all(texts: list[str]) -> list[list[Block]]:
    return list(map(blocks_of, texts))
