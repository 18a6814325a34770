"""The tool that reads what the context definition names and the system prompt has no room for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from task.conversation.messages import Message
from task.documents.model import Block, page_of, paginate
from task.errors import ToolError
from task.permissions.taint import Origin
from task.tools.base import BaseTool
from task.tools.models import ToolCallParams


class ReadContextDocumentTool(BaseTool):
    """Reads one of the documents of the context, page by page; `read` gives a document's text, None if it is gone."""

    def __init__(self, ids: Sequence[str], read: Callable[[str], Awaitable[str | None]]) -> None:
        self._ids, self._read = list(ids), read

    @property
    def name(self) -> str:
        return "read_context_document"

    @property
    def description(self) -> str:
        return (
            "Read a document that belongs to your instructions and was too long for them. Read it when its name fits "
            "the question. A long document comes in pages; the last line of a page says how many there are."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "id": {"type": "string", "enum": self._ids, "description": "The document"},
                "page": {"type": "integer", "minimum": 1, "default": 1},
            },
            "required": ["id"],
        }

    @property
    def origin(self) -> Origin:
        """The operator's own words, as in the system prompt: they taint nothing."""
        return Origin.OWN

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        text = await self._read(arguments["id"])
        if text is None:
            raise ToolError(f"The document {arguments['id']!r} can no longer be read. Answer without it and say so.")
        return page_of(paginate([Block(text)]), arguments["page"], "document")
