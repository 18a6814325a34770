"""The tool that reads resources of MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from task.conversation.messages import Attachment, Message, Role
from task.core_client.files import DialFiles
from task.errors import NotFound, ToolError
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.mcp.mcp_client import TOOL_SECONDS
from task.tools.mcp.mcp_tool import MAX_FILES, READS, stored
from task.tools.mcp.offers import Offer
from task.tools.mcp.results import MAX_TEXT_CHARS
from task.tools.models import ToolCallParams

if TYPE_CHECKING:
    from task.tools.mcp.hub import Server

READ_RESOURCE = "read_mcp_resource"
DESCRIBED = "Reads the resource of an MCP server at uri; without uri it lists what the server has."


class ReadResourceTool(BaseTool):
    """Reads what the `servers` list, by their names; what is not text is stored in `files` and attached.

    What was listed in the conversation is an address that the gate knows; one made from a template the model made up.
    """

    def __init__(self, servers: Mapping[str, tuple[Server, Offer]], files: DialFiles | None) -> None:
        self._servers, self._files = servers, files
        uri = text("As listed, or made from a template")
        parameters = object_schema("server", server={"type": "string", "enum": [*servers]}, uri=uri)
        self.spec = ToolSpec(READ_RESOURCE, DESCRIBED, parameters, READS, timeout=TOOL_SECONDS)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        given = tool_call_params.arguments or {}
        (server, offer), uri = self._servers[given["server"]], given.get("uri", "")
        if not uri:
            marks = {False: "", True: " (template)"}
            lines = (f"- {i.uri}{marks[i.template]}: {i.name}. {i.description}" for i in offer.resources)
            return "\n".join(lines)[:MAX_TEXT_CHARS]
        try:
            files = await server.read(offer.checked(uri), tool_call_params.caller)
        except NotFound as error:
            raise ToolError(f"{error} Call {READ_RESOURCE} without uri for those that it lists.") from error
        texts, attachments = [file.text for file in files if file.text is not None], list[Attachment]()
        for file in [file for file in files if file.text is None][:MAX_FILES]:
            attachments.append(kept := await stored(self._files, [file], tool_call_params.api_key))
            texts.append(f"Attached for the user: {file.name} ({file.mime_type}) {kept.url}")
        return Message(Role.TOOL, "\n\n".join(texts)[:MAX_TEXT_CHARS], attachments=tuple(attachments))
