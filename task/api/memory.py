"""What the caller lets the agent remember: shown, switched on and off, edited, deleted."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from task.api.failures import failures
from task.api.schemas import RequestModel, Text
from task.api.service import CurrentService, Service, router
from task.errors import NotFound
from task.memory.commands import FORBIDDEN
from task.memory.memories import FACT_CHARS, MOST_FACTS, Memory, UserMemory


class MemoryChange(RequestModel):
    """`consent` is the caller's own, or takes it back; `facts` are other texts by ids, null deletes one."""

    consent: bool | None = None
    facts: Mapping[str, Annotated[Text, Field(max_length=FACT_CHARS)] | None] = Field({}, max_length=MOST_FACTS)


routes = router("Memory")


@routes.get("/memory", response_model=Memory, responses=failures(404))
async def show_memory(service: CurrentService) -> Any:
    """All that is remembered; this is the export, too."""
    return await (await _memory(service)).load()


@routes.patch("/memory", response_model=Memory, responses=failures(404, 409, 413, 415))
async def change_memory(body: MemoryChange, service: CurrentService) -> Any:
    """Consent or take that back, after which facts are neither given nor stored; edit and delete facts."""
    memory = await _memory(service)

    def changed(known: Memory) -> Memory:
        for fact_id, text in body.facts.items():
            known = known.edited(fact_id, text, memory.now())
        return known if body.consent is None else known.with_consent(body.consent, memory.now())

    return await memory.change(changed)


@routes.delete("/memory", status_code=204, response_class=Response, responses=failures(404))
async def delete_memory(service: CurrentService) -> None:
    """Delete all facts and the consent."""
    await (await _memory(service)).delete()


async def _memory(service: Service) -> UserMemory:
    if service.services.memory is None:
        raise NotFound(FORBIDDEN)
    return await service.services.memory.of(service.caller.of_tools(), "api")
