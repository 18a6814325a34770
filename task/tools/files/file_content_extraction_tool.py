"""The tool that reads the user's files for the model, page by page."""

import asyncio
from typing import Any

from task.conversation.inputs import shown_name
from task.conversation.messages import Message
from task.core_client.files import DialFiles
from task.documents.extract import SUPPORTED
from task.documents.model import PAGE_CHARS, page_of, pages_of
from task.output.sinks import request_arguments, response
from task.search.readings import Readings
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import ToolCallParams


class FileContentExtractionTool(BaseTool):
    """Text of files in DIAL, with tables as Markdown. Source: API reference, FileContentExtractionTool.

    `endpoint` is DIAL Core's address. `close` closes the `readings`.
    """

    spec = ToolSpec(
        "file_content_extraction_tool",
        f"Read the text of a file attached to the conversation ({SUPPORTED}); tables come as Markdown. A long file "
        f"comes in pages of {PAGE_CHARS:,} characters; the last line of a page says how many there are.",
        object_schema(
            "file_url",
            file_url=text("The URL of the file to extract content from"),
            page={
                "type": "integer",
                "description": f"Page number (default 1). Each page = {PAGE_CHARS:,} chars",
                "default": 1,
            },
        ),
        show_in_stage=False,
    )

    def __init__(self, endpoint: str, *, readings: Readings | None = None) -> None:
        self._readings = readings or Readings(DialFiles(endpoint))

    def title(self, arguments: dict[str, Any]) -> str:
        file = shown_name(arguments["file_url"])[:60]
        page = f", page {arguments['page']}" if arguments["page"] != 1 else ""
        return f"{self.name}: {file}{page}"

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params = tool_call_params
        arguments = params.arguments or self.parse(params.tool_call)
        url, page = str(arguments["file_url"]), int(arguments["page"])
        params.stage.append_content(
            request_arguments({"file_url": url} if page == 1 else {"file_url": url, "page": page})
        )
        _, extraction = await self._readings.read(await self._readings.find(url, params.known_caller))
        shown = page_of(await asyncio.to_thread(pages_of, extraction), page)
        params.stage.append_content(response(shown))
        return shown

    async def close(self) -> None:
        await self._readings.close()
