"""Tell what a call did: for programs as structured content, for models as text."""

import asyncio
import base64
import mimetypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from mcp_servers.python_interpreter.config import MIB, Limits
from mcp_servers.python_interpreter.execution import Ending, Executed
from mcp_servers.python_interpreter.files import NoSuchFile, Snapshot, read_file
from mcp_servers.python_interpreter.outputs import PLOTLY, Shown, capped, plain
from mcp_servers.python_interpreter.sessions import KernelSession, Ran

DISPLAYS = 10
ENCLOSED_BYTES = 8 * MIB
_WHY = {
    Ending.TIMED_OUT: "The code was stopped after {seconds:.3g} s, the time limit.",
    Ending.FLOODED: "The code was stopped because it wrote more than {output_mib} MiB of output.",
    Ending.DISK_FULL: "The code was stopped because its files take more than {work_mib} MiB, or are too many.",
    Ending.STOPPED: "The call was cancelled.",
    Ending.DIED: "The Python process ended while the code ran: it was killed, ran out of memory, or crashed.",
}
# Not every system's own table knows these.
_OFFICE = "application/vnd.openxmlformats-officedocument"
_TYPES = {
    "csv": "text/csv",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "md": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "webp": "image/webp",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
}
LOST = "All variables, imports and functions of this conversation are lost, because {reason}. {files}"
RESTORED = "Files that were attached or handed over before were put back; others are gone."


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A file that a caller may fetch; `path` is relative to the session, `size` in bytes."""

    path: str
    size: int
    mime_type: str

    @property
    def name(self) -> str:
        return self.path.partition("/")[2]

    def as_dict(self, handle: str) -> dict[str, Any]:
        place = quote(self.path)
        uri = f"kernel://{handle}/{place}"
        return {"name": self.name, "mime_type": self.mime_type, "size": self.size, "uri": uri, "path": place}


async def keep_shown(ran: Ran, limits: Limits) -> list[SessionFile]:
    """Write the call's pictures, charts and cut output next to the session's files, out of its code's reach."""
    items = [*ran.executed.output.shown[: limits.shown_files], *_logs(ran, limits)]
    if not items:  # most often; a thread would take as long as the rest of the report
        return []
    return await asyncio.to_thread(lambda: [_kept(ran.session, item) for item in items])


def structured(ran: Ran, shown: list[SessionFile], tier: str, limits: Limits) -> dict[str, Any]:
    """The call's result for programs."""
    output, texts, cut = ran.executed.output, {}, False
    for name, text in _texts(ran.executed).items():
        texts[name], shortened = capped(text, limits)
        cut = cut or shortened
    displays = [capped(text, limits)[0] for text in output.displays[:DISPLAYS]]
    new = new_files(ran, limits)
    return {
        **texts,
        "displays": displays,
        "error": _error(ran.executed, limits),
        "files": [item.as_dict(ran.session.handle) for item in [*shown, *new]],
        "notes": [*_notes(ran, limits), *_left_out(ran, limits, len(new))],
        "ending": ran.executed.ending.value,
        "timed_out": ran.executed.ending is Ending.TIMED_OUT,
        "state_lost": bool(ran.lost),
        "generation": ran.generation,
        "duration_ms": round(ran.executed.seconds * 1000),
        "truncated": cut or ran.executed.ending is Ending.FLOODED,
        "sandbox_tier": tier,
        "session": ran.session.handle,
        "kernel": ran.session.ids[0],
    }


def enclose_files(content: dict[str, Any], session: KernelSession) -> None:
    """Add to the files of a call their contents in base64, as far as these fit into one answer."""
    room = ENCLOSED_BYTES
    for file in content["files"]:
        area, _, name = unquote(file["path"]).partition("/")
        root = session.folder(area)
        if root is None or file["size"] > room:
            continue
        with suppress(NoSuchFile):
            found = read_file(root, name, room)
            file["content"] = base64.b64encode(found).decode()
            room -= len(found)


def as_text(content: dict[str, Any], kept: bool) -> str:
    """The same for a model."""
    parts = [*content["notes"]]
    parts += [f"{name}:\n{content[name]}" for name in ("stdout", "stderr") if content[name]]
    parts += content["displays"]
    parts += [f"result:\n{content['result']}"] if content["result"] else []
    parts += [content["error"]["traceback"]] if content["error"] else []
    if content["files"]:
        parts.append("files:\n" + "\n".join(f"- {file['name']} ({file['size']:,} bytes)" for file in content["files"]))
    if not kept:
        parts.append("No conversation was named, so the next call starts from scratch.")
    return "\n\n".join(parts) or "The code ran and printed nothing."


def new_files(ran: Ran, limits: Limits) -> list[SessionFile]:
    """The files that the call made or changed, as far as they may be fetched."""
    paths = [path for path in ran.after.since(ran.before) if ran.after.files[path].size <= limits.file_bytes]
    return [work_file(ran.after, path) for path in paths[: limits.new_files]]


def work_file(files: Snapshot, path: str) -> SessionFile:
    return SessionFile(f"files/{path}", files.files[path].size, guessed_type(path))


def guessed_type(path: str) -> str:
    """The MIME type of the name's ending."""
    known = _TYPES.get(path.rpartition(".")[2].lower())
    return known or mimetypes.guess_type(path)[0] or "application/octet-stream"


def _texts(executed: Executed) -> dict[str, str]:
    output = executed.output
    return {"stdout": plain("".join(output.stdout)), "stderr": plain("".join(output.stderr)), "result": output.result}


def _error(executed: Executed, limits: Limits) -> dict[str, str] | None:
    reply = executed.reply
    if reply is None or reply.status == "ok":
        return None
    return {
        "ename": reply.ename[:200],
        "evalue": reply.evalue[:2000],
        "traceback": capped(executed.output.traceback or f"{reply.ename}: {reply.evalue}", limits)[0],
    }


def _notes(ran: Ran, limits: Limits) -> Iterator[str]:
    if ran.executed.ending in _WHY:
        yield _WHY[ran.executed.ending].format(
            seconds=ran.limit, output_mib=limits.output_bytes // MIB, work_mib=limits.work_bytes // MIB
        )
    if ran.lost:
        yield LOST.format(reason=ran.lost, files=_files_now(ran))


def _files_now(ran: Ran) -> str:
    if ran.first:
        return RESTORED if ran.session.inputs or ran.session.restored else "Files are gone too."
    return "Files are kept." if ran.after.files else "Files are gone too."


def _left_out(ran: Ran, limits: Limits, listed: int) -> Iterator[str]:
    new = ran.after.since(ran.before)
    large = [path for path in new if ran.after.files[path].size > limits.file_bytes]
    if large:
        yield f"{large[0]} is larger than {limits.file_bytes // MIB} MiB and cannot be handed over."
    if (more := len(new) - len(large) - listed) > 0:
        yield f"{more:,} more new files stay in the working directory; pack them into one archive to hand them over."
    if (odd := ran.after.nameless - ran.before.nameless) > 0:
        yield f"{odd:,} new files have a name that is not UTF-8 and cannot be handed over; rename them."
    if not ran.after.complete:
        yield "The working directory contains too many files to check all of them."


def _logs(ran: Ran, limits: Limits) -> Iterator[Shown]:
    if ran.executed.ending is Ending.FLOODED:
        return
    for name, text in _texts(ran.executed).items():
        if len(text) > limits.text_head + limits.text_tail:
            yield Shown(name, "txt", "text/plain", text.encode(errors="replace"))


def _kept(session: KernelSession, item: Shown) -> SessionFile:
    session.shown += 1
    suffix = f"plotly.{item.suffix}" if item.mime_type == PLOTLY else item.suffix
    name = f"{item.stem}_{session.shown}.{suffix}".replace("plotly_", "chart_")
    (session.place.shown / name).write_bytes(item.content)
    return SessionFile(f"shown/{name}", len(item.content), item.mime_type)
