"""Keep long results and arguments out of the conversation: the model reads or searches the file they are stored in."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any, Protocol
from urllib.parse import unquote

from task.conversation.messages import CUT, Message, ToolCall
from task.errors import ToolError
from task.tools.base import BaseTool
from task.tools.models import Caller, DownloadedFile, ToolCallParams

HEAD = 4_000
TAIL = 1_000
READ_CHARS = 10_000
MATCHES = 50
LINE_CHARS = 500
MAX_BYTES = 20 * 2**20
_LOCAL = "results/"
_LOCAL_NAME = re.compile(r"[0-9a-f]{16}-[\w.-]+", re.ASCII)


class TextFiles(Protocol):
    """`DialFiles`, which the loop must not import as it knows no network library, or `LocalTexts`."""

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str: ...

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile: ...


@dataclass(frozen=True, slots=True)
class LocalTexts:
    """Keeps texts in a folder of this machine, which it makes, where there is no DIAL Core to keep them."""

    folder: Path

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str) -> str:
        return await asyncio.to_thread(self._kept, f"{token_hex(8)}-{name}", content)

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

    def _kept(self, name: str, content: bytes) -> str:
        safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.folder / safe, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
        except OSError as error:
            raise ToolError(f"no place to keep it: {error.strerror}") from error
        return f"{_LOCAL}{safe}"


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
        size = f"{len(text):,} characters in {lines:,} lines"
        if self.files is None:
            return _cut(text, f"{CUT}the {what} has {size}, and the middle is not kept anywhere]")
        try:
            url = await self.files.upload(file, text.encode(errors="replace"), "text/plain", caller.api_key)
        except ToolError as error:
            return _cut(text, f"{CUT}the {what} has {size}; it could not be stored ({error})]")
        return _cut(
            text,
            f"{CUT}the {what} has {size}. All of it is in {url}: "
            "read_file_lines reads lines of it, search_in_file finds text in it]",
        )


def _cut(text: str, notice: str) -> str:
    return f"{text[:HEAD]}\n\n{notice}\n\n{text[-TAIL:]}"


class _StoredText(BaseTool):
    def __init__(self, files: TextFiles) -> None:
        self._files = files

    @property
    def offloads(self) -> bool:
        return False

    def title(self, arguments: dict[str, Any]) -> str:
        return f"{self.name}: {unquote(PurePosixPath(arguments['file_url']).name)[:60]}"

    async def _lines(self, params: ToolCallParams, url: str) -> list[str]:
        file = await self._files.download(url, params.api_key, MAX_BYTES)
        return file.content.decode(errors="replace").splitlines()


class ReadFileLinesTool(_StoredText):
    """Reads lines of a stored text; at most 10,000 characters a call."""

    @property
    def name(self) -> str:
        return "read_file_lines"

    @property
    def description(self) -> str:
        return "Read lines of a stored text file, such as a long tool result. Lines count from 1."

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "file_url": {"type": "string", "description": "URL of the stored text"},
                "first_line": {"type": "integer", "minimum": 1, "default": 1},
                "last_line": {"type": "integer", "minimum": 1, "description": "default: as many as fit"},
            },
            "required": ["file_url"],
        }

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or {}
        lines = await self._lines(tool_call_params, arguments["file_url"])
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


class SearchInFileTool(_StoredText):
    """Finds lines of a stored text that contain a string, ignoring case; at most 50 lines a call."""

    @property
    def name(self) -> str:
        return "search_in_file"

    @property
    def description(self) -> str:
        return "Find the lines of a stored text file, such as a long tool result, that contain a text."

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "file_url": {"type": "string", "description": "URL of the stored text"},
                "text": {"type": "string", "minLength": 1, "description": "what a line must contain; case is ignored"},
            },
            "required": ["file_url", "text"],
        }

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or {}
        lines = await self._lines(tool_call_params, arguments["file_url"])
        wanted = str(arguments["text"]).casefold()
        found = [number for number, line in enumerate(lines, 1) if wanted in line.casefold()]
        shown = [f"{number}: {lines[number - 1][:LINE_CHARS]}" for number in found[:MATCHES]]
        return "\n".join([*shown, f"[{len(found)} of {len(lines)} lines contain it; {len(shown)} shown]"])
