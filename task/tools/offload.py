"""Keep long texts out of the conversation: the model reads or searches the files and documents that hold them."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

from task.conversation.inputs import shown_name
from task.conversation.messages import CUT, Message, ToolCall
from task.documents.model import Block, page_of, paginate
from task.errors import ToolError
from task.permissions.taint import Origin
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import Caller, DownloadedFile, ToolCallParams

HEAD = 4_000
TAIL = 1_000
READ_CHARS = 10_000
MATCHES = 50
LINE_CHARS = 500
MAX_BYTES = 20 * 2**20
_LOCAL = "results/"
_STORED = text("URL of the stored text")
_LOCAL_NAME = re.compile(r"[0-9a-f]{16}\.txt")


class TextFiles(Protocol):
    """`DialFiles`, which the loop must not import as it knows no network library, or `LocalTexts`."""

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str: ...

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile: ...


@dataclass(frozen=True, slots=True)
class LocalTexts:
    """Keeps texts in a folder of this machine, which it makes, where there is no DIAL Core to keep them."""

    folder: Path

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str:
        kept = f"{token_hex(8)}.txt"

        def keep() -> None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.folder / kept, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)

        try:
            await asyncio.to_thread(keep)
        except OSError as error:
            raise ToolError(f"no place to keep it: {error.strerror}") from error
        return f"{_LOCAL}{kept}"

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        name = url.removeprefix(_LOCAL)
        try:
            # The model names the file: nothing but a name that was made here may lead to one.
            content = await asyncio.to_thread((self.folder / name).read_bytes) if _LOCAL_NAME.fullmatch(name) else None
        except OSError:
            content = None
        if content is None or len(content) > max_size:
            raise ToolError(f"there is no stored text {url[:200]!r}; use the address from the shortened result")
        return DownloadedFile(name, content, "text/plain", None)


@dataclass(frozen=True, slots=True)
class Offloader:
    """Shortens results, and a call's arguments, above `limit` characters.

    Without `files`, or when storing fails, they are only cut.
    """

    files: TextFiles | None
    limit: int = 40_000

    async def shortened(self, name: str, text: str, caller: Caller) -> str:
        """The text of a tool's result."""
        return await self._shortened(f"{name}-result.txt", "result", text, caller) if len(text) > self.limit else text

    async def shortened_call(self, call: ToolCall, caller: Caller) -> ToolCall:
        """A call that has run, as the conversation keeps it."""
        if len(call.function.arguments) <= self.limit:
            return call
        texts = call.texts()
        most = max(self.limit // max(len(texts), 1), 2 * (HEAD + TAIL))
        long = {text for text in texts if len(text) > most}
        stored = [await self._shortened(f"{call.name}-argument.txt", "argument", text, caller) for text in long]
        kept = dict(zip(long, stored, strict=True))
        return call.with_texts(lambda text: kept.get(text, text))

    async def _shortened(self, file: str, what: str, text: str, caller: Caller) -> str:
        lines = text.count("\n") + 1
        whole = ", and the middle is not kept anywhere"
        if self.files is not None:
            try:
                url = await self.files.upload(file, text.encode(errors="replace"), "text/plain", caller.api_key)
                whole = f". All of it is in {url}: read_file_lines reads lines of it, search_in_file finds text in it"
            except ToolError as error:
                whole = f"; it could not be stored ({error})"
        notice = f"{CUT}the {what} has {len(text):,} characters in {lines:,} lines{whole}]"
        return f"{text[:HEAD]}\n\n{notice}\n\n{text[-TAIL:]}"


class _StoredTextTool(BaseTool):
    def __init__(self, files: TextFiles) -> None:
        self._files = files

    def title(self, arguments: dict[str, Any]) -> str:
        return f"{self.name}: {shown_name(arguments['file_url'])[:60]}"

    async def _lines(self, params: ToolCallParams) -> tuple[dict[str, Any], list[str]]:
        arguments = params.arguments or self.parse(params.tool_call)
        file = await self._files.download(arguments["file_url"], params.api_key, MAX_BYTES)
        return arguments, file.content.decode(errors="replace").splitlines()


class ReadFileLinesTool(_StoredTextTool):
    """Reads lines of a stored text; at most 10,000 characters a call."""

    spec = ToolSpec(
        "read_file_lines",
        "Read lines of a stored text file, such as a long tool result. Lines count from 1.",
        object_schema(
            "file_url",
            file_url=_STORED,
            first_line={"type": "integer", "minimum": 1, "default": 1},
            last_line={"type": "integer", "minimum": 1, "description": "default: as many as fit"},
        ),
        offloads=False,
    )

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments, lines = await self._lines(tool_call_params)
        first, last = arguments["first_line"], min(arguments.get("last_line", len(lines)), len(lines))
        if first > len(lines):
            raise ToolError(f"the text has {len(lines)} lines; ask for lines between 1 and {len(lines)}")
        shown: list[str] = []
        room = READ_CHARS
        for number in range(first, last + 1):
            line = f"{number}: {lines[number - 1]}"
            if shown and len(line) > room:
                break
            shown.append(line[:READ_CHARS])
            room -= len(line) + 1
        end = first + len(shown) - 1
        return "\n".join([*shown, f"[lines {first}-{end} of {len(lines)}]"])


class SearchInFileTool(_StoredTextTool):
    """Finds lines of a stored text that contain a string, ignoring case; at most 50 lines a call."""

    spec = ToolSpec(
        "search_in_file",
        "Find the lines of a stored text file, such as a long tool result, that contain a text.",
        object_schema(
            "file_url", "text", file_url=_STORED, text=text("what a line must contain; case is ignored", minLength=1)
        ),
        offloads=False,
    )

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments, lines = await self._lines(tool_call_params)
        wanted = str(arguments["text"]).casefold()
        found = [number for number, line in enumerate(lines, 1) if wanted in line.casefold()]
        shown = [f"{number}: {lines[number - 1][:LINE_CHARS]}" for number in found[:MATCHES]]
        return "\n".join([*shown, f"[{len(found)} of {len(lines)} lines contain it; {len(shown)} shown]"])


class ReadContextDocumentTool(BaseTool):
    """Reads one of the documents of the context, page by page; `read` gives a document's text, None if it is gone."""

    def __init__(self, ids: Sequence[str], read: Callable[[str], Awaitable[str | None]]) -> None:
        self._read = read
        self.spec = ToolSpec(
            "read_context_document",
            "Read a document that belongs to your instructions and was too long for them. Read it when its name fits "
            "the question. A long document comes in pages; the last line of a page says how many there are.",
            object_schema(
                "id", id=text("The document", enum=list(ids)), page={"type": "integer", "minimum": 1, "default": 1}
            ),
            origin=Origin.OWN,  # the operator's own words, as in the system prompt: they taint nothing
        )

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        content = await self._read(arguments["id"])
        if content is None:
            raise ToolError(f"The document {arguments['id']!r} can no longer be read. Answer without it and say so.")
        return page_of(paginate([Block(content)]), arguments["page"], "document")
