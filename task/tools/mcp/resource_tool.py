"""The tool that reads resources of MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from task.conversation.messages import Attachment, Message, Role
from task.core_client.files import DialFiles
from task.errors import NotFound, ToolError
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.mcp.mcp_client import TOOL_SECONDS
from task.tools.mcp.mcp_tool import MAX_FILE_BYTES, MAX_FILES, READS, stored
from task.tools.mcp.offers import Offer
from task.tools.mcp.results import MAX_TEXT_CHARS
from task.tools.models import Effect, ToolCallParams

if TYPE_CHECKING:
    from task.tools.mcp.hub import Server

READ_RESOURCE = "read_mcp_resource"
MAX_NAMED, LONGEST_NAMED = 20, 120  # resources in the description, characters of an address there


class ReadResourceTool(BaseTool):
    """Reads what the `servers` list, by their names; what is not text is stored in `files` and attached."""

    def __init__(self, servers: Mapping[str, tuple[Server, Offer]], files: DialFiles | None) -> None:
        self._servers, self._files = servers, files
        listed = [item for _, offer in servers.values() for item in offer.resources]
        self._listed = {(item.server, item.uri) for item in listed if not item.template}
        short = [item for item in listed if not item.template and len(item.uri) <= LONGEST_NAMED][:MAX_NAMED]
        lines = "".join(f"\n- {item.server}: {item.uri} ({item.name})" for item in short)
        more = " Without uri it lists all of a server, which are more." if len(short) < len(listed) else ""
        uri = text("As listed, or made from a template")
        parameters = object_schema("server", server={"type": "string", "enum": [*servers]}, uri=uri)
        described = f"Reads a resource of an MCP server.{more}{lines}"
        self.spec = ToolSpec(READ_RESOURCE, described, parameters, READS, timeout=TOOL_SECONDS)

    async def effects_now(self, arguments: Mapping[str, Any]) -> frozenset[Effect]:
        """What is listed may be read; what is made from a template is an address that the model made up."""
        server, uri = arguments.get("server"), arguments.get("uri", "")
        return frozenset({Effect.READ}) if not uri or (server, uri) in self._listed else READS

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        given = tool_call_params.arguments or {}
        (server, offer), uri = self._servers[given["server"]], given.get("uri", "")
        if not uri:
            marks = {False: "", True: " (template)"}
            lines = (f"- {i.uri}{marks[i.template]}: {i.name}. {i.description}" for i in offer.resources)
            return "\n".join(lines)[:MAX_TEXT_CHARS]
        try:
            offer.checked(uri)
        except NotFound as error:
            raise ToolError(f"{error} Call {READ_RESOURCE} without uri for those that it lists.") from error
        identity = await server.identity(tool_call_params.caller)
        files = await server.client.read(uri, max_bytes=MAX_FILE_BYTES, identity=identity)
        texts, attachments = [file.text for file in files if file.text is not None], list[Attachment]()
        for file in [file for file in files if file.text is None][:MAX_FILES]:
            attachments.append(kept := await stored(self._files, [file], tool_call_params.api_key))
            texts.append(f"Attached for the user: {file.name} ({file.mime_type}) {kept.url}")
        return Message(Role.TOOL, "\n\n".join(texts)[:MAX_TEXT_CHARS], attachments=tuple(attachments))
