"""The routes of saved prompts."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import Field
from starlette.responses import Response

from task.api.edge.failures import failures
from task.api.edge.schemas import RequestModel, ResponseModel, Text
from task.api.service import CurrentCaller, CurrentStore, router
from task.store.records import Prompt

MAX_CHARS = 20_000
# The length stands apart: in the pattern it would copy the table of Unicode's letters 60 times, 6 MB in all.
PromptName = Annotated[str, Path(pattern=r"^[\w-]+$", max_length=60, description="Letters, digits, `_` and `-`.")]


class PromptBody(ResponseModel):
    name: str
    text: str


class PromptList(ResponseModel):
    prompts: list[PromptBody]


class PromptText(RequestModel):
    """`{{name}}` in a text is asked for before the prompt is used."""

    text: Text = Field(min_length=1, max_length=MAX_CHARS)


routes = router("Prompts")


@routes.get("/prompts", response_model=PromptList, responses=failures())
async def list_prompts(caller: CurrentCaller, store: CurrentStore) -> Any:
    """The caller's saved prompts by name."""
    return {"prompts": await (await store.get()).prompts.list(caller.owner)}


@routes.put("/prompts/{name}", response_model=PromptBody, responses=failures(413, 415))
async def save_prompt(name: PromptName, body: PromptText, caller: CurrentCaller, store: CurrentStore) -> Any:
    """Save a prompt in place of the one of that name."""
    prompt = Prompt(name, body.text)
    await (await store.get()).prompts.save(caller.owner, prompt)
    return prompt


@routes.delete("/prompts/{name}", status_code=204, response_class=Response, responses=failures(404))
async def delete_prompt(name: PromptName, caller: CurrentCaller, store: CurrentStore) -> None:
    """Remove a saved prompt."""
    await (await store.get()).prompts.delete(caller.owner, name)
