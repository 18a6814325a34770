"""MCPTool: one tool of an MCP server, as a tool of the agent."""

import json
import re
from collections.abc import Sequence
from typing import Any

from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import Sources
from task.core_client.files import DialFiles
from task.errors import ToolError
from task.tools.base import BaseTool, ToolSpec
from task.tools.mcp.connection import CallIdentity, conversation_meta, identity_of
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.mcp.results import MCPFile, MCPResult
from task.tools.models import Effect, ToolCallParams

READS = frozenset({Effect.READ, Effect.NETWORK})
MAX_FILE_BYTES = 20 * 2**20
MAX_FILES = 20
MAX_CHECKS = 20_000
MAX_SOURCES = 50
MAX_SUMMARY_CHARS = 600
_ACTIVE = re.compile(r"[\[\]<]")  # what would be a link or a picture in the chat, which shows a citation as Markdown
REPORT_SECONDS = 5.0  # in which the client itself reports that its server took too long


class MCPTool(BaseTool):
    """A tool of an MCP server. Source: API reference, MCPTool.

    `name` is its name for the model if that differs from the server's; `files` stores the pictures and files of
    results; `forward_key` sends the caller's own key and headers to the server.
    """

    def __init__(
        self,
        client: MCPClient,
        mcp_tool_model: MCPToolModel,
        *,
        name: str | None = None,
        files: DialFiles | None = None,
        forward_key: bool = False,
    ) -> None:
        self.client = client
        self.mcp_tool_model = mcp_tool_model
        self.spec = ToolSpec(
            name or mcp_tool_model.name,
            mcp_tool_model.description,
            mcp_tool_model.parameters,
            effects=READS if mcp_tool_model.read_only else READS | {Effect.WRITE},
            timeout=client.timeout + REPORT_SECONDS,
        )
        self._files = files
        self._forward_key = forward_key

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, checked unless values and parts of the schema are so many that only the server may do it."""
        values, parts = json.dumps(arguments).count(","), json.dumps(self.parameters).count("{")
        return super().checked(arguments) if values * parts <= MAX_CHECKS else arguments

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        caller = tool_call_params.caller
        identity = await identity_of(caller, forward_key=self._forward_key)
        result = await self.client.call(
            self.mcp_tool_model.name,
            tool_call_params.arguments or {},
            meta=conversation_meta(caller.conversation_id, await caller.principal()) if caller else {},
            identity=identity,
        )
        if result.is_error:
            raise ToolError(result.text or f"{self.name} failed without saying why.")
        found, citations = _numbered(result, tool_call_params.sources)
        attachments, notes = await self._kept(result.files, tool_call_params.api_key, identity)
        text = "\n\n".join(filter(None, (found, "\n".join(notes)))) or "The tool gave no result."
        return Message(Role.TOOL, text, attachments=(*attachments, *citations))

    async def _kept(
        self, files: Sequence[MCPFile], api_key: str, identity: CallIdentity
    ) -> tuple[list[Attachment], list[str]]:
        attachments: list[Attachment] = []
        notes: list[str] = []
        for file in files[:MAX_FILES]:
            try:
                attachment = await self._attachment(file, api_key, identity)
            except ToolError as error:
                notes.append(f"{file.name} ({file.mime_type}) could not be attached: {error}")
                continue
            attachments.append(attachment)
            notes.append(f"Attached for the user: {file.name} ({file.mime_type}) {attachment.url or file.uri or ''}")
        if len(files) > MAX_FILES:
            notes.append(f"{len(files) - MAX_FILES} further files of the result were left out.")
        return attachments, notes

    async def _attachment(self, file: MCPFile, api_key: str, identity: CallIdentity) -> Attachment:
        content = file.content
        if file.uri is not None and file.uri.startswith(("http://", "https://")):
            return Attachment("text/markdown", file.name, data=file.name, reference_url=file.uri)
        if file.uri is not None:
            read = await self.client.read(file.uri, max_bytes=MAX_FILE_BYTES, identity=identity)
            content = b"".join(item.content or b"" for item in read)
        if not content:
            raise ToolError("the server sent no readable content for it")
        if len(content) > MAX_FILE_BYTES:
            raise ToolError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        if self._files is None:
            raise ToolError("there is nowhere to keep files")
        url = await self._files.upload(file.name, content, file.mime_type, api_key)
        return Attachment(file.mime_type, file.name, url=url)


def _numbered(result: MCPResult, sources: Sources) -> tuple[str, list[Attachment]]:
    """The result's text with the number of each source behind what it says of the source, and the citations."""
    pieces, citations, start = [], [], 0
    for source in result.sources[:MAX_SOURCES]:
        url = source.url.partition("#")[0]
        number = sources.number(url)
        summary = _ACTIVE.sub(r"\\\g<0>", source.summary[:MAX_SUMMARY_CHARS])
        citations.append(sources.citation(number, source.title, data=summary, reference_url=url))
        pieces.append(f"{result.text[start : source.end]}\n   Cite as [{number}].")
        start = source.end
    return "".join((*pieces, result.text[start:])), citations
