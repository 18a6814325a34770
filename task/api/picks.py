"""What a user may pick for a message: skills, and the prompts and resources of MCP servers."""

from typing import Annotated, Any, Literal

from pydantic import Field

from task.api.failures import failures
from task.api.messages import Label
from task.api.schemas import AttachmentBody, RequestModel, ResponseModel, Text
from task.api.service import CurrentService, router
from task.core_client.files import file_id_of
from task.product.skills import skills_of
from task.skills.skill import Source
from task.tools.mcp.offers import LONGEST_URI, MAX_ARGUMENTS, MCPPrompt, MCPResource


class SkillBody(ResponseModel):
    name: str
    description: str
    source: Source


class PromptChoice(RequestModel):
    server: Label
    name: Label
    arguments: dict[Text, Text] = Field(default={}, max_length=MAX_ARGUMENTS)


class ResourceChoice(RequestModel):
    server: Label
    uri: Annotated[str, Field(min_length=1, max_length=LONGEST_URI)]


routes = router("Platform")


@routes.get("/skills", response_model=dict[Literal["skills"], list[SkillBody]], responses=failures())
async def list_skills(service: CurrentService) -> Any:
    """The skills that the caller may use, for a request's `skills`."""
    return {"skills": await skills_of(service.services, service.profile, service.caller.of_tools())}


@routes.get("/server-prompts", response_model=dict[Literal["prompts"], list[MCPPrompt]], responses=failures())
async def list_server_prompts(service: CurrentService) -> Any:
    """The prompts of the MCP servers that answer."""
    return {"prompts": await service.services.mcp.prompts(service.caller.of_tools())}


@routes.post("/server-prompts", response_model=AttachmentBody, responses=failures(404, 413, 415))
async def get_server_prompt(body: PromptChoice, service: CurrentService) -> Any:
    """The text of a server's prompt with these arguments: text from outside, to be sent as a part `quote`."""
    asking = service.caller.of_tools(), body.server, body.name, body.arguments
    return (await service.services.mcp.prompt(*asking)).as_dict()


@routes.get("/resources", response_model=dict[Literal["resources"], list[MCPResource]], responses=failures())
async def list_resources(service: CurrentService) -> Any:
    """The resources of the MCP servers that answer; a `template` has variables in its `uri`, such as `{id}`."""
    return {"resources": await service.services.mcp.resources(service.caller.of_tools())}


@routes.post("/resources", response_model=AttachmentBody, responses=failures(404, 413, 415))
async def get_resource(body: ResourceChoice, service: CurrentService) -> Any:
    """A resource, read from its server: a text, to be sent as a part `quote`, or a stored file."""
    found = await service.services.mcp.resource(service.caller.of_tools(), body.server, body.uri)
    return found.as_dict() | ({"file_id": file_id_of(found.url)} if found.url else {})
