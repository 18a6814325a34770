"""What goes into an execution, what comes out of it, and what the conversation remembers of its session."""

import asyncio
import base64
import binascii
import mimetypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pydantic import Base64Bytes, BaseModel, ValidationError

from task.conversation.inputs import file_names
from task.conversation.messages import Attachment, Message
from task.core_client.files import DialFiles
from task.documents.model import code as code_block
from task.errors import ToolError
from task.output.charts import CHART
from task.output.sinks import ARGUMENT_CHARS, clipped
from task.skills.skill import Skill, skills_read
from task.tools.mcp.results import MCPResult

DONE = "done"
UNSAFE = "none"
UNKNOWN = "unknown"
MAX_RESTORED = 50
MAX_RESTORED_BYTES = 256 * 2**20
MAX_FILES = 50
MAX_BYTES = 50 * 2**20


class ProducedFile(BaseModel, frozen=True):
    """A file the code has written or displayed; `path` is relative to the session's `files_path`.

    A server that is about to stop encloses the `content`.
    """

    name: str
    mime_type: str
    size: int
    path: str
    content: Base64Bytes | None = None

    def order(self) -> int:
        """Pictures first, then charts: DIAL Chat folds later ones."""
        return 0 if self.mime_type.startswith("image/") else 1 if self.mime_type == CHART else 2


class CodeError(BaseModel, frozen=True):
    traceback: str


class Execution(BaseModel, frozen=True):
    """One call's outcome.

    `missing` names files that the server wants before it runs the code, `restore` those that an earlier session had
    made. `kernel` is the session's id.
    """

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


def refusal_of(result: MCPResult) -> str:
    """Why our own server has run nothing and another one should: `draining` or `unknown`; empty if that is not so."""
    answer = result.structured
    refused = answer.get("refused") if result.is_error and isinstance(answer, dict) else ""
    return refused if isinstance(refused, str) else ""


def heading(code: str) -> str:
    """The part that is shown before the code has run."""
    return f"## Execution Result\n\n{code_block(clipped(code, ARGUMENT_CHARS), 'python').text}\n\n"


def outcome(execution: Execution, links: Sequence[tuple[str, str]], notes: Iterable[str]) -> str:
    """The part with the results; `links` are names and URLs of the produced files."""
    all_notes = [*execution.notes, *notes]
    if execution.sandbox_tier == UNSAFE:
        all_notes.append("This server runs code without a sandbox.")
    parts = [f"**Note:** {note}" for note in all_notes]
    tables = [text for text in (*execution.displays, execution.result) if text.startswith("| ") and "\n| ---" in text]
    texts = [execution.stdout, *(text for text in execution.displays if text not in tables)]
    if execution.stderr:
        texts.append(f"[stderr]\n{execution.stderr}")
    if execution.result not in tables:
        texts.append(execution.result)
    if execution.error:
        texts.append(execution.error.traceback)
    printed = "\n".join(text.rstrip("\n") for text in texts if text.strip()) or "(nothing was printed)"
    parts += [f"**Output:**\n{code_block(printed).text}", *tables]
    if links:
        parts.append("**Generated Files:**\n" + "\n".join(f"- [{name}]({url})" for name, url in links))
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class Input:
    """One file for the working directory, at `url` or with its `content`; a new `version` means new content."""

    name: str
    url: str
    version: str
    content: bytes | None = None


async def inputs_of(
    attachments: Sequence[Attachment], files: DialFiles, api_key: str, max_bytes: int = MAX_BYTES
) -> tuple[list[Input], list[str]]:
    """The conversation's files, and sentences about those that are not available.

    Each is looked up with the caller's own key, which proves the right to read it; one whose content is in the message
    may have up to `max_bytes`.
    """
    different: dict[str, Attachment] = {}
    for item in attachments:
        is_file = item.url is not None and item.url.startswith("files/") and not item.url.endswith("/")
        # Content with a reference is a citation.
        is_inline = bool(item.data) and item.url is None and item.reference_url is None
        if is_file or is_inline:
            different[item.url or f"data:{item.data}"] = item
    titles = (
        (item.title or "", item.url or f"file{mimetypes.guess_extension(item.type or '') or ''}")
        for item in different.values()
    )
    named = list(zip(file_names(titles), different.values(), strict=True))[-MAX_FILES:]

    async def looked_up(name: str, item: Attachment) -> Input | str:
        try:
            if item.url is not None:
                found = await files.metadata(item.url, api_key)
                return Input(name, item.url, _version(f"{item.url}\n{found.etag}".encode()))
            data = item.data or ""
            if len(data) > max_bytes * 4 // 3 + 4:  # the letters of base64
                raise ToolError(f"it is larger than {max_bytes:,} bytes.")
            try:
                content = base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError):
                if not (item.type or "text/").startswith("text/"):
                    raise ToolError("the message contains it in no readable form.") from None
                content = data.encode(errors="replace")  # some clients send text without encoding it
            return Input(name, "", _version(content), content)
        except ToolError as error:
            return f"{name} is not in the working directory: {error}"

    found = await asyncio.gather(*(looked_up(name, item) for name, item in named))
    return [item for item in found if isinstance(item, Input)], [item for item in found if isinstance(item, str)]


def skill_inputs(skills: Sequence[Skill], earlier: Sequence[Message]) -> list[Input]:
    """The files of those skills that the conversation has read, below `skills/NAME/`; those of a skill that is gone
    are not among them, but may still be in the working directory."""
    read = {skill.name for skill in skills_read(earlier)} if skills else ()
    files = ((skill.name, path, skill.content[path]) for skill in skills if skill.name in read for path in skill.files)
    return [Input(f"skills/{name}/{path}", "", _version(content), content) for name, path, content in files]


def _version(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


class MadeFile(BaseModel, frozen=True):
    """A file that code has made: its `path` in the working directory, and its copy in DIAL; `size` in bytes."""

    path: str
    url: str
    size: int


class SessionMemo(BaseModel, frozen=True):
    """What a call leaves for the next ones: the session's id, the route that led to its server, and its new files."""

    kernel: str = ""
    route: int = 0
    files: tuple[MadeFile, ...] = ()

    @property
    def server(self) -> str:
        """The name of the session's server."""
        return self.kernel.partition(".")[0]

    def restorable(self) -> list[Input]:
        """The newest of the files, within bounds."""
        found, room = list[Input](), MAX_RESTORED_BYTES
        for file in reversed(self.files[-MAX_RESTORED:]):
            if file.size <= room:
                room -= file.size
                found.append(Input(file.path, file.url, _version(file.url.encode())))
        return found


def remembered(earlier: Sequence[Message], tool: str) -> SessionMemo:
    """The newest session of the conversation, with all files that its code has made, oldest first."""
    latest, files = SessionMemo(), dict[str, MadeFile]()
    for message in earlier:
        if message.memo and message.name == tool:
            try:
                memo = SessionMemo.model_validate_json(message.memo)
            except ValidationError:  # of another version
                continue
            latest = memo
            for file in memo.files:
                files.pop(file.path, None)
                files[file.path] = file
    return latest.model_copy(update={"files": tuple(files.values())})
