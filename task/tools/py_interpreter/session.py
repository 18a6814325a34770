"""Which session of which interpreter server a conversation has, as its own tool messages remember it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, ValidationError

from task.conversation.messages import Message
from task.tools.mcp.connection import CONVERSATION, PRINCIPAL
from task.tools.py_interpreter.execution import Input

AFFINITY = "X-Session-Affinity"
MAX_RESTORED = 50
MAX_RESTORED_BYTES = 256 * 2**20


class MadeFile(BaseModel):
    """A file that code has made: its `path` in the working directory, and its copy in DIAL; `size` in bytes."""

    model_config = ConfigDict(frozen=True)

    path: str
    url: str
    size: int


class SessionMemo(BaseModel):
    """What a call leaves for the next ones: the session's id, the route that led to its server, and its new files."""

    model_config = ConfigDict(frozen=True)

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
                found.append(Input(file.path, file.url, sha256(file.url.encode()).hexdigest()[:16]))
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


def affinity(session: Mapping[str, str], route: int) -> dict[str, str]:
    """The header by which a balancer chooses the server; each `route` of a conversation may lead to another one."""
    named = f"{session.get(PRINCIPAL, '')}\n{session.get(CONVERSATION, '')}"
    value = sha256(named.encode()).hexdigest()[:32]
    return {AFFINITY: f"{value}-{route}" if route else value}
