"""The tools that list, search, read and change the caller's files in DIAL, and take a change back.

Texts are paged, edited and searched as those of a workspace are.
"""

import asyncio
import json
import mimetypes
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from secrets import token_hex
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from task.closing import together
from task.conversation.messages import Message, Role
from task.core_client.files import DialFiles, FileInfo, shortened
from task.core_client.user_files import UserFiles
from task.errors import ToolError
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import ToolCallParams
from task.tools.workspace import tools as fs
from task.tools.workspace.files import GLOB_CHARS, NOT_TEXT, shown_path

MAX_BYTES = 10 * 2**20  # of a file that is read or replaced
LISTED, SCANNED = 1_000, 20_000  # names that are shown, and files that are looked at for them
SEARCHED_FILES, SEARCHED_BYTES, PARALLEL = 500, 20 * 2**20, 8
_Tool = type[fs.WorkspaceTool]
_Arguments = dict[str, Any]
_Work = Callable[[UserFiles, ToolCallParams, str, _Arguments], Awaitable[str | Message]]


class Memo(BaseModel):
    """What a call leaves in the conversation for later ones: the version of the file at `url` that it read or made.

    `undo` is how its change is taken back from `kept`, once; `undone` is the `id` of the call that this one took back.
    """

    url: str
    etag: str | None
    id: str = Field(default_factory=partial(token_hex, 4))
    undo: Literal["", "remove", "restore", "move"] = ""
    kept: str = ""
    undone: str = ""


class DialFilesTool(BaseTool):
    """One of the tools; `work` gets the user's files, what the tool received, the path, and the other arguments."""

    def __init__(self, files: DialFiles, spec: ToolSpec, work: _Work) -> None:
        self._files, self.spec, self._work = files, spec, work

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        given = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        rest = {name: given[name] for name in self.parameters["properties"] if name in given and name != "path"}
        user = await UserFiles.of(self._files, tool_call_params.api_key)
        return await self._work(user, tool_call_params, given["path"], rest)


async def listed(user: UserFiles, _: ToolCallParams, path: str, rest: _Arguments) -> str:
    """A folder's names, or all files below it that fit a glob."""
    files, more = await _fitting(user, path, rest["glob"], recursive=bool(rest["glob"]))
    lines = [shown_path(user.path(file.url)) for file in files[:LISTED]]
    note = ["[there are more; list a folder below, or use a narrower glob]"] * (more or len(files) > LISTED)
    return "\n".join([*lines, *note]) or "[no files]"


async def search(user: UserFiles, _: ToolCallParams, path: str, rest: _Arguments) -> str:
    """The matching lines of text files, within bounds of files, bytes and time."""
    files, more = await _fitting(user, path, rest.pop("glob"), recursive=True)
    contents, most = dict[str, bytes](), SEARCHED_BYTES // PARALLEL

    async def load(file: FileInfo) -> None:
        with suppress(ToolError):  # too large, deleted since it was listed, or closed to the caller
            contents[user.path(file.url)] = (await user.files.download(file.url, user.key, most)).content

    for start in range(0, min(len(files), SEARCHED_FILES), PARALLEL):
        await together(load(file) for file in files[start : start + PARALLEL] if (file.size or 0) <= most)
        most = (SEARCHED_BYTES - sum(map(len, contents.values()))) // PARALLEL
    found, _written = await _run(fs.FsSearchTool, dict(sorted(contents.items())), path, rest)
    if len(contents) < len(files) or more:
        left_out = f"{len(files) - len(contents):,} files{' or more' if more else ''}"
        found += f"\n[not searched: {left_out}, which are too large, too many or unreadable]"
    return found


async def read(user: UserFiles, _: ToolCallParams, path: str, rest: _Arguments) -> Message:
    """A text, or lines of it; the version is remembered."""
    url = user.url(path)
    file = await user.files.download(url, user.key, MAX_BYTES)
    shown, _written = await _run(fs.FsReadTool, {path: file.content}, path, rest)
    return _result(shown, Memo(url=url, etag=file.etag))


async def change(tool: _Tool, user: UserFiles, params: ToolCallParams, path: str, rest: _Arguments) -> Message:
    """Write or edit a file: a new one, or the version that the conversation knows, which is kept."""
    url, kind, kept = user.url(path, changed=True), mimetypes.guess_type(path)[0] or "text/plain", ""
    known = await _known(user, params, url, whole=tool is fs.FsWriteTool)
    old = await user.files.download(url, user.key, MAX_BYTES) if known is not None else None
    done, content = await _run(tool, {path: old.content} if old else {}, path, rest)
    if old is not None:
        kept, kind = await user.place_to_keep(), old.content_type or kind
        await user.write(kept, old.content, kind, None)
    etag = await user.write(url, content, kind, known and known.etag)
    return _result(done, Memo(url=url, etag=etag, undo="restore" if kept else "remove", kept=kept))


async def move(user: UserFiles, params: ToolCallParams, path: str, rest: _Arguments) -> Message:
    """Move a file to where there is none; one that is deleted, to those that are kept."""
    url, new_path = user.url(path, changed=True), rest.get("new_path")
    known = await _known(user, params, url)
    kept = user.url(new_path, changed=True) if new_path else await user.place_to_keep()
    await user.move(url, kept)
    if known and known.etag and (moved := await user.find(kept)) is not None and moved.etag != known.etag:
        await user.move(kept, url)
        raise ToolError(f"{shortened(path)} was changed in this moment. Nothing was done: read it again, then decide.")
    done = f"moved {path} to {new_path}" if new_path else f"deleted {path}; files_undo brings it back"
    return _result(done, Memo(url=url, etag=known and known.etag, undo="move", kept=kept))


async def undo(user: UserFiles, params: ToolCallParams, path: str, _: _Arguments) -> Message:
    """Take back the newest change of the conversation, or of a file, that was not taken back yet."""
    memos, wanted = list(_memos(params)), user.url(path, changed=True) if path else ""
    gone = {memo.undone for memo in memos}
    changes = (memo for memo in memos if memo.undo and memo.etag and memo.id not in gone)
    change = next((memo for memo in changes if wanted in ("", memo.url, memo.kept)), None)
    if change is None:
        raise ToolError("No change of this conversation is left that could be taken back.")
    etag, places = change.etag, (change.url, change.kept or change.url)
    url, kept = (user.files.check(place, user.key) for place in places)
    if change.undo == "remove":
        await user.delete(url, etag)
    elif change.undo == "restore":
        old = await user.files.download(kept, user.key, MAX_BYTES)
        etag = await user.write(url, old.content, old.content_type or "text/plain", etag)
    else:
        found = await user.find(kept)
        if found is None or found.etag != etag:
            raise ToolError(f"{shortened(user.path(kept))} was changed since, so it stays as it is.")
        await user.move(kept, url)
    state = "is gone again" if change.undo == "remove" else "is as it was before"
    return _result(f"undone: {shown_path(user.path(url))} {state}", Memo(url=url, etag=etag, undone=change.id))


async def _fitting(user: UserFiles, path: str, glob: str, *, recursive: bool) -> tuple[list[FileInfo], bool]:
    folder, most = user.url(path, folder=True), SCANNED if recursive else LISTED
    files, more = await user.listing(folder, most, recursive=recursive)
    if glob:
        fitting = (file for file in files if fnmatchcase(user.path(file.url), glob) or fnmatchcase(file.name, glob))
        files = await asyncio.to_thread(list, fitting)  # of many names it would hold the event loop
    return files, more


async def _known(user: UserFiles, params: ToolCallParams, url: str, *, whole: bool = False) -> FileInfo | None:
    """The file in the version that the conversation knows; None where a `whole` file is written that is not there."""
    found, name = await user.find(url), shortened(user.path(url))
    seen = next((memo.etag for memo in _memos(params) if url in (memo.url, memo.kept)), None)
    if found is None and not whole:
        raise ToolError(f"There is no file {name}. List the folder to see what is there.")
    if found is not None and (seen or whole) and seen != found.etag:
        raise ToolError(
            f"{name} {'was changed since you read it' if seen else 'is there already'}. Read it, then write."
        )
    return found


def _memos(params: ToolCallParams) -> Iterator[Memo]:
    """What the calls of the conversation have left, the newest first."""
    for message in reversed(params.earlier):
        if message.memo and (message.name or "").startswith("files_"):
            with suppress(ValidationError):  # of another version
                yield Memo.model_validate_json(message.memo)


async def _run(tool: _Tool, contents: dict[str, bytes], path: str, rest: _Arguments) -> tuple[str, bytes]:
    """What the operation of a workspace's tool gives, and writes, where these are the files."""
    written = list[bytes]()
    read, write = contents.__getitem__, lambda _, content: written.append(content)
    here = SimpleNamespace(read=read, saved=read, write=write, files=lambda _: iter(contents))
    result = await asyncio.to_thread(partial(tool.operation, here, path, **rest))
    if not result.ok:
        other = "; file_content_extraction_tool reads documents, by their URL" if NOT_TEXT in result.detail else ""
        raise ToolError(f"{result.detail}{other}")
    return result.detail, b"".join(written)


def _result(content: str, memo: Memo) -> Message:
    return Message(Role.TOOL, content, memo=memo.model_dump_json())


def _like(tool: _Tool, more: str = "", **added: Any) -> ToolSpec:
    """The tool of a workspace, for DIAL's files."""
    spec, place = tool.spec, "below the user's own folder, or its URL"
    shapes = json.loads(json.dumps(spec.parameters).replace("in the workspace", place))
    description, _, _ = spec.description.partition(" Folders of dependencies")
    description = description.replace("the workspace", "the user in DIAL").replace("fs_", "files_") + more
    parameters = {**shapes, "properties": {**shapes["properties"], **added}}
    return replace(spec, name=spec.name.replace("fs_", "files_"), description=description, parameters=parameters)


def _also(name: str, description: str, *required: str, **shapes: Any) -> ToolSpec:
    parameters = object_schema(*required, **shapes)
    return replace(fs.FsWriteTool.spec, name=name, description=description, parameters=parameters)


_PATH = _like(fs.FsReadTool).parameters["properties"]["path"]
_GLOB = text("Only files whose name or path fits, such as *.md, in all folders below", default="", maxLength=GLOB_CHARS)
_UNDO = "Take back a change that a files_ tool made in this conversation, unless the file was changed since."
_TOOLS: tuple[tuple[ToolSpec, _Work], ...] = (
    (_like(fs.FsListTool, " With a glob, find files in all folders below.", glob=_GLOB), listed),
    (_like(fs.FsSearchTool, glob=_GLOB), search),
    (_like(fs.FsReadTool), read),
    (_like(fs.FsWriteTool, " A file that is there already has to be read first."), partial(change, fs.FsWriteTool)),
    (_like(fs.FsEditTool), partial(change, fs.FsEditTool)),
    (_also("files_move", "Move or rename a file in DIAL.", "path", "new_path", path=_PATH, new_path=_PATH), move),
    (_also("files_delete", "Delete a file in DIAL.", "path", path=_PATH), move),
    (_also("files_undo", _UNDO, path=text("The file; empty: what was changed last", default="")), undo),
)


def dial_file_tools(files: DialFiles) -> list[BaseTool]:
    """The tools for the files of whoever calls, in their stable order."""
    return [DialFilesTool(files, spec, work) for spec, work in _TOOLS]
