"""MCPTool: one tool of an MCP server, as a tool of the agent."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import Sources
from task.core_client.channel import SECONDS
from task.core_client.files import DialFiles
from task.core_client.models import TOOLSET, Result, SignIn, calling, no_access
from task.errors import NotFound, ToolError
from task.output.sinks import StageSink
from task.permissions.icerc import words
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.mcp.connection import CallIdentity, conversation_meta, identity_of
from task.tools.mcp.elicitation import REFUSED, answered, put
from task.tools.mcp.mcp_client import TOOL_SECONDS, MCPClient, Progress
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.mcp.offers import Offer
from task.tools.mcp.results import MAX_FILE_BYTES, MAX_TEXT_CHARS, MCPFailure, MCPFile, MCPResult
from task.tools.models import Caller, Effect, ToolCallParams
from task.tools.toolbox import Paused

if TYPE_CHECKING:
    from task.tools.mcp.hub import Server

READS = frozenset({Effect.READ, Effect.NETWORK})
MAX_FILES = 20
MAX_CHECKS = 20_000
MAX_SOURCES = 50
READ_RESOURCE = "read_mcp_resource"
DESCRIBED = "Reads the resource of an MCP server at uri; without uri it lists what the server has."
MAX_PROGRESS, LONGEST_PROGRESS = 50, 200  # lines of progress in a stage, characters of each
REPORT_SECONDS = 5.0  # in which the client itself reports that its server took too long
SIGN_IN = "sign_in_"  # before the name of a server: the tool that asks the user to sign in to it
TO_SIGN_IN = (
    f"{{0}} needs the user to sign in. When its tools are needed, call {SIGN_IN}{{0}} if you have that tool; else say "
    "that signing in works on the agent's web page and in its console only."
)
Identify = Callable[[Caller | None], Awaitable[CallIdentity]]
Open = Callable[[Caller, Sequence[SignIn]], Awaitable[Mapping[SignIn, Result]]]  # DIAL's dialog for these sign-ins


class MCPTool(BaseTool):
    """A tool of an MCP server. Source: API reference, MCPTool.

    `name` is its name for the model if that differs from the server's; `files` stores the pictures and files of
    results; `identify` says what is sent of the caller. `sign_in` opens DIAL's dialog where the server, Core's
    `toolset`, or a service behind it asks the user to sign in: only servers that are trusted with the user's key have
    it, for the others could ask for anything. `called` is its name in DIAL where it may call others.
    """

    def __init__(
        self,
        client: MCPClient,
        mcp_tool_model: MCPToolModel,
        *,
        name: str | None = None,
        files: DialFiles | None = None,
        toolset: str = "",
        sign_in: Open | None = None,
        called: str = "",
        identify: Identify = identity_of,
        offered_by: str = "",
    ) -> None:
        self.client = client
        self.mcp_tool_model = mcp_tool_model
        # Operators vouch for their servers and toolsets; what a user made may only claim that it changes nothing.
        reads = mcp_tool_model.read_only and "/" not in called
        self.spec = ToolSpec(
            name or mcp_tool_model.name,
            mcp_tool_model.description,
            mcp_tool_model.parameters,
            effects=READS if reads else READS | {Effect.WRITE},
            # A call that the user has to sign in for waits for that, and is then repeated.
            timeout=client.timeout + REPORT_SECONDS + (SECONDS + client.timeout if sign_in else 0.0),
        )
        self._files = files
        self._toolset, self._sign_in = toolset, sign_in
        self._called, self.by_name = called, bool(called)
        self._identify = identify
        self.offered_by = offered_by

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, checked unless values and parts of the schema are so many that only the server may do it."""
        values, parts = json.dumps(arguments).count(","), json.dumps(self.parameters).count("{")
        return super().checked(arguments) if values * parts <= MAX_CHECKS else arguments

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        caller = tool_call_params.caller
        identity = await self._identify(
            calling(caller, self._called) if caller is not None and self._called else caller
        )
        about = self.client.url, self.mcp_tool_model.name, tool_call_params.arguments
        made = sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        if isinstance(answer := answered(tool_call_params, self.client.name, made), Paused):
            return answer
        call = partial(
            self.client.call,
            self.mcp_tool_model.name,
            tool_call_params.arguments or {},
            meta=conversation_meta(caller.conversation_id, await caller.principal()) if caller else {},
            identity=identity,
            on_progress=_progress_in(tool_call_params.stage),
            answer=answer,
        )
        got: Result | None = None  # of the sign-in, after which the call is repeated once
        while True:
            try:
                result = await call()
            except MCPFailure as failure:
                if failure.status != 401 or not self._toolset:
                    raise
                needed = SignIn(TOOLSET, self._toolset)
                result = MCPResult(str(failure), is_error=True, sign_ins=(needed,))
            if not result.sign_ins or self._sign_in is None or caller is None:
                break
            if got is None:
                got = await tool_call_params.sign_ins.result(result.sign_ins, partial(self._sign_in, caller))
                if got == "success":
                    continue
            raise ToolError(no_access(got, self._toolset or self.client.name))
        if result.question is not None and self._called.startswith(("toolsets/", "applications/")):  # no operator's
            raise ToolError(REFUSED.format("its server was made by a user, not by an operator"))
        if result.question is not None:
            return put(tool_call_params.tool_call, self.client.name, {**result.question, "made": made})
        if result.is_error:
            raise ToolError(result.text or f"{self.name} failed without saying why.")
        found, citations = _numbered(result, tool_call_params.sources)
        attachments, notes = await self._kept(result.files, tool_call_params.api_key, identity)
        text = "\n\n".join(filter(None, (found, "\n".join(notes)))) or "The tool gave no result."
        return Message(Role.TOOL, text, attachments=(*attachments, *citations))

    async def _kept(
        self, files: Sequence[MCPFile], api_key: str, identity: CallIdentity
    ) -> tuple[list[Attachment], list[str]]:
        attachments, notes = list[Attachment](), list[str]()
        for file in files[:MAX_FILES]:
            try:
                attachments.append(kept := await self._attachment(file, api_key, identity))
            except ToolError as error:
                notes.append(f"{file.name} ({file.mime_type}) could not be attached: {error}")
            else:
                notes.append(f"Attached for the user: {file.name} ({file.mime_type}) {kept.url or file.uri or ''}")
        if len(files) > MAX_FILES:
            notes.append(f"{len(files) - MAX_FILES} further files of the result were left out.")
        return attachments, notes

    async def _attachment(self, file: MCPFile, api_key: str, identity: CallIdentity) -> Attachment:
        if (file.uri or "").startswith(("http://", "https://")):
            return Attachment("text/markdown", file.name, data=file.name, reference_url=file.uri)
        contents = [file]
        if file.uri is not None:
            read = await self.client.read(file.uri, identity=identity)
            contents = [replace(file, content=item.content) for item in read]
        return await stored(self._files, contents, api_key)


class ReadResourceTool(BaseTool):
    """Reads what the `servers` list, by their names; what is not text is stored and attached.

    What was listed in the conversation is an address that the gate knows; one made from a template the model made up.
    """

    def __init__(self, servers: Mapping[str, tuple[Server, Offer]]) -> None:
        self._servers = servers
        uri = text("As listed, or made from a template")
        parameters = object_schema("server", server={"type": "string", "enum": [*servers]}, uri=uri)
        self.spec = ToolSpec(READ_RESOURCE, DESCRIBED, parameters, READS, timeout=TOOL_SECONDS)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        given = tool_call_params.arguments or {}
        (server, offer), uri = self._servers[given["server"]], given.get("uri", "")
        if not uri:
            return "\n".join(f"- {i.uri}: {i.title}. {i.description}" for i in offer.resources)[:MAX_TEXT_CHARS]
        try:
            offer.check(f"@{given['server']}:{uri}")
        except NotFound as error:
            raise ToolError(f"{error} Call {READ_RESOURCE} without uri for the resources that it lists.") from error
        found = await server.resource(uri, tool_call_params.known_caller, MAX_TEXT_CHARS)
        if found.data is not None:
            return found.data
        return Message(Role.TOOL, f"Attached for the user: {found.title} ({found.type})", attachments=(found,))


def _progress_in(stage: StageSink) -> Progress:
    left = MAX_PROGRESS

    async def progressed(done: float, total: float | None, message: str | None) -> None:
        nonlocal left
        if (left := left - 1) >= 0:
            part = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            stage.append_content(f"{words(f'{part} {message or str()}')[:LONGEST_PROGRESS]}\n\n")

    return progressed


async def stored(files: DialFiles | None, contents: Sequence[MCPFile], api_key: str) -> Attachment:
    """The contents as one file among the caller's own. Raises: ToolError: it is empty, too large, or cannot be kept."""
    content = b"".join(item.content or b"" for item in contents)
    if not content:
        raise ToolError("the server sent no readable content for it")
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    if files is None:
        raise ToolError("there is nowhere to keep files")
    first = contents[0]
    kind = first.mime_type.partition(";")[0].strip()
    kind = kind if re.fullmatch(r"[\w.+-]{1,60}/[\w.+-]{1,60}", kind, re.ASCII) else "application/octet-stream"
    return Attachment(kind, first.name, url=await files.upload(first.name, content, kind, api_key))


def _numbered(result: MCPResult, sources: Sources) -> tuple[str, list[Attachment]]:
    """The result's text with the number of each source behind what it says of the source, and the citations."""
    pieces, citations, start = [], [], 0
    for source in result.sources[:MAX_SOURCES]:
        number, citation = sources.of_others(source.url, source.title, source.summary)
        citations.append(citation)
        pieces.append(f"{result.text[start : source.end]}\n   Cite as [{number}].")
        start = source.end
    return "".join((*pieces, result.text[start:])), citations
