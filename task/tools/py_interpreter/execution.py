"""What goes into an execution, and what comes out of it: code, attached files, text, pictures and files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import mimetypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from task.conversation.file_names import file_names
from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.errors import ToolError
from task.output.charts import CHART
from task.tools.mcp.results import MCPResult
from task.tools.toolbox import ARGUMENT_CHARS, clipped

DONE = "done"
UNSAFE = "none"
UNKNOWN = "unknown"


class ProducedFile(BaseModel):
    """A file the code has written or displayed; `path` is relative to the session's `files_path`.

    A server that is about to stop encloses the `content`.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    mime_type: str
    size: int
    path: str
    content: Base64Bytes | None = None

    def order(self) -> int:
        """Pictures first, then charts: DIAL Chat folds later ones."""
        return 0 if self.mime_type.startswith("image/") else 1 if self.mime_type == CHART else 2


class CodeError(BaseModel):
    model_config = ConfigDict(frozen=True)

    ename: str
    traceback: str


class Execution(BaseModel):
    """One call's outcome.

    `missing` names files that the server wants before it runs the code, `restore` those that an earlier session had
    made. `kernel` is the session's id.
    """

    model_config = ConfigDict(frozen=True)

    files_path: str
    missing: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    kernel: str = ""
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    displays: tuple[str, ...] = ()
    error: CodeError | None = None
    files: tuple[ProducedFile, ...] = ()
    notes: tuple[str, ...] = ()
    ending: str = DONE
    sandbox_tier: str = ""

    @property
    def failed(self) -> bool:
        return self.error is not None or self.ending != DONE


def execution_of(result: MCPResult) -> Execution | None:
    """The outcome from our own server, or None if the server is of another kind."""
    try:
        return Execution.model_validate(result.structured)
    except ValidationError:
        return None


class _Refusal(BaseModel):
    refused: str


def refusal_of(result: MCPResult) -> str:
    """Why our own server has run nothing and another one should: `draining` or `unknown`; empty if that is not so."""
    try:
        return _Refusal.model_validate(result.structured).refused if result.is_error else ""
    except ValidationError:
        return ""


def heading(code: str) -> str:
    """The part that is shown before the code has run."""
    return f"## Execution Result\n\n{_fenced(clipped(code, ARGUMENT_CHARS), 'python')}\n\n"


def outcome(execution: Execution, links: Sequence[tuple[str, str]], notes: Iterable[str]) -> str:
    """The part with the results; `links` are names and URLs of the produced files."""
    all_notes = [*execution.notes, *notes]
    if execution.sandbox_tier == UNSAFE:
        all_notes.append("This server runs code without a sandbox.")
    parts = [f"**Note:** {note}" for note in all_notes]
    parts.append(f"**Output:**\n{_fenced(_output(execution))}")
    parts += [text for text in (*execution.displays, execution.result) if _is_table(text)]
    if links:
        parts.append("**Generated Files:**\n" + "\n".join(f"- [{name}]({url})" for name, url in links))
    return "\n\n".join(parts) + "\n"


def _output(execution: Execution) -> str:
    texts = [execution.stdout, *(text for text in execution.displays if not _is_table(text))]
    if execution.stderr:
        texts.append(f"[stderr]\n{execution.stderr}")
    if execution.result and not _is_table(execution.result):
        texts.append(execution.result)
    if execution.error:
        texts.append(execution.error.traceback)
    return "\n".join(text.rstrip("\n") for text in texts if text.strip()) or "(nothing was printed)"


def _is_table(text: str) -> bool:
    return text.startswith("| ") and "\n| ---" in text


def _fenced(text: str, language: str = "") -> str:
    longest = max(map(len, re.findall(r"^[^\S\n]*+(`{3,}+)", text, re.MULTILINE)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


MAX_FILES = 50
MAX_BYTES = 50 * 2**20


@dataclass(frozen=True, slots=True)
class Input:
    """One file for the working directory, at `url` or with its `content`; a new `version` means new content."""

    name: str
    url: str
    version: str
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The available files, and sentences about the others."""

    files: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        return {file.name: file.version for file in self.files}

    def named(self, names: Iterable[str]) -> list[Input]:
        wanted = set(names)
        return [file for file in self.files if file.name in wanted]


async def inputs_of(
    attachments: Sequence[Attachment], files: DialFiles, api_key: str, max_bytes: int = MAX_BYTES
) -> Inputs:
    """The conversation's files, each looked up with the caller's own key, which proves the right to read it.

    Files whose content is in the message may have up to `max_bytes` each.
    """
    named = _named([item for item in attachments if _is_file(item.url) or _is_inline(item)])
    found = await asyncio.gather(
        *(
            _input(name, item.url, files, api_key) if item.url else _inline(name, item, max_bytes)
            for name, item in named[-MAX_FILES:]
        )
    )
    return Inputs(
        tuple(item for item in found if isinstance(item, Input)),
        tuple(item for item in found if isinstance(item, str)),
    )


def _is_file(url: str | None) -> bool:
    return url is not None and url.startswith("files/") and not url.endswith("/")


def _is_inline(item: Attachment) -> bool:
    return bool(item.data) and item.url is None and item.reference_url is None  # with a reference it is a citation


def _named(attachments: Sequence[Attachment]) -> list[tuple[str, Attachment]]:
    different = list({item.url or f"data:{item.data}": item for item in attachments}.values())
    names = file_names((item.title or "", item.url or _usual_ending(item)) for item in different)
    return list(zip(names, different, strict=True))


def _usual_ending(item: Attachment) -> str:
    return f"file{mimetypes.guess_extension(item.type or '') or ''}"


async def _input(name: str, url: str, files: DialFiles, api_key: str) -> Input | str:
    try:
        found = await files.metadata(url, api_key)
    except ToolError as error:
        return f"{name} is not in the working directory: {error}"
    return Input(name, url, _version(f"{url}\n{found.etag}".encode()))


async def _inline(name: str, item: Attachment, max_bytes: int) -> Input | str:
    data = item.data or ""
    if len(data) > max_bytes * 4 // 3 + 4:  # the letters of base64
        return f"{name} is not in the working directory: it is larger than {max_bytes:,} bytes."
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        if not (item.type or "text/").startswith("text/"):
            return f"{name} is not in the working directory: the message contains it in no readable form."
        content = data.encode(errors="replace")  # some clients send text as it is
    return Input(name, "", _version(content), content)


def _version(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
