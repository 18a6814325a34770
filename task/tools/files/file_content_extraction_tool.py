"""The tool that reads the user's files for the model, page by page."""

from __future__ import annotations

from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from task.conversation.messages import Message
from task.documents.extract import SUPPORTED
from task.documents.paging import PAGE_CHARS
from task.documents.workers.pool import ReaderPool
from task.errors import ToolError
from task.tools.base import BaseTool
from task.tools.files.documents import Documents, FileSource
from task.tools.models import ToolCallParams
from task.tools.stage_text import request_arguments, response

if TYPE_CHECKING:
    from task.tools.dial_files import DialFiles

MAX_SIZE = 10 * 2**20


class FileContentExtractionTool(BaseTool):
    """Text of files in DIAL, with tables as Markdown. Source: API reference, FileContentExtractionTool.

    `endpoint` is DIAL Core's address, `max_size` the largest file in bytes, `readers` reads them. Without `files` the
    tool opens its own connections to the endpoint when it is first called; `close` closes them, and the readers.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        files: FileSource | None = None,
        max_size: int = MAX_SIZE,
        readers: ReaderPool | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._files = files
        self._max_size = max_size
        self._own_files: DialFiles | None = None
        self._readers = readers or ReaderPool()

    @property
    def name(self) -> str:
        return "file_content_extraction_tool"

    @property
    def description(self) -> str:
        return (
            f"Read the text of a file attached to the conversation ({SUPPORTED}); tables come as Markdown. A long file "
            f"comes in pages of {PAGE_CHARS:,} characters; the last line of a page says how many there are."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "file_url": {"type": "string", "description": "The URL of the file to extract content from"},
                "page": {
                    "type": "integer",
                    "description": f"Page number (default 1). Each page = {PAGE_CHARS:,} chars",
                    "default": 1,
                },
            },
            "required": ["file_url"],
        }

    @property
    def show_in_stage(self) -> bool:
        return False

    def title(self, arguments: dict[str, Any]) -> str:
        file = unquote(PurePosixPath(arguments["file_url"]).name)[:60]
        page = f", page {arguments['page']}" if arguments["page"] != 1 else ""
        return f"{self.name}: {file}{page}"

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        url, page = str(arguments["file_url"]), int(arguments["page"])
        shown = {"file_url": url} if page == 1 else {"file_url": url, "page": page}
        tool_call_params.stage.append_content(request_arguments(shown))
        text = _page_of(await self._documents.pages(url, tool_call_params.api_key), page)
        tool_call_params.stage.append_content(response(text))
        return text

    async def close(self) -> None:
        """End the reader processes and close the connections the tool has opened itself."""
        await self._readers.close()
        if self._own_files is not None:
            await self._own_files.close()

    @cached_property
    def _documents(self) -> Documents:
        return Documents(self._files or self._opened(), max_size=self._max_size, readers=self._readers)

    def _opened(self) -> DialFiles:
        from aidial_client import AsyncDialClientPool

        from task.tools.dial_files import DialFiles

        self._own_files = DialFiles(self._endpoint, AsyncDialClientPool())
        return self._own_files


def _page_of(pages: tuple[str, ...], page: int) -> str:
    if not pages:
        return "The file is empty: it holds no text."
    total = len(pages)
    if not 1 <= page <= total:
        valid = f"its pages are 1 to {total}" if total > 1 else "its only page is 1"
        raise ToolError(f"The file has no page {page}: {valid}.")
    return pages[page - 1] if total == 1 else f"{pages[page - 1]}\n\n**Page #{page}. Total pages: {total}**"
