"""What a user may pick for a message: skills, and the prompts and resources of MCP servers."""

from typing import Annotated, Any, Literal

from pydantic import Field

from task.api.failures import failures
from task.api.schemas import AttachmentBody, RequestModel, Text
from task.api.service import CurrentService, router
from task.core_client.files import file_id_of
from task.product.skills import skills_of
from task.skills.skill import Skill
from task.tools.mcp.offers import LONGEST_PICK, MAX_ARGUMENTS, MCPItem


class Choice(RequestModel):
    pick: Annotated[str, Field(min_length=1, max_length=LONGEST_PICK)]
    arguments: dict[Text, Text] = Field(default={}, max_length=MAX_ARGUMENTS)


routes = router("Platform")


@routes.get("/skills", response_model=dict[Literal["skills"], list[Skill]], responses=failures())
async def list_skills(service: CurrentService) -> Any:
    """The skills that the caller may use, for a request's `skills`."""
    return {"skills": await skills_of(service.services, service.profile, service.caller.of_tools())}


@routes.get("/picks", response_model=dict[Literal["picks"], list[MCPItem]], responses=failures())
async def list_picks(service: CurrentService) -> Any:
    """The prompts (`/server:name`) and resources (`@server:uri`) of the MCP servers that answer; variables of a
    template are in braces, such as `{id}`."""
    return {"picks": await service.services.mcp.items(service.caller.of_tools())}


@routes.post("/picks", response_model=AttachmentBody, responses=failures(404, 413, 415))
async def pick(body: Choice, service: CurrentService) -> Any:
    """A resource, or a prompt with these arguments: a text from outside, to be sent as a part `quote`, or a file."""
    found = await service.services.mcp.picked(service.caller.of_tools(), body.pick, body.arguments)
    return found.as_dict() | ({"file_id": file_id_of(found.url)} if found.url else {})
