"""Any DIAL deployment as a tool: asked with the caller's key, its text for the model, its files for the person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, CustomContent, Message, Role
from task.conversation.sinks import StageSink
from task.errors import ProviderError, ToolError
from task.llm.accumulator import Accumulator
from task.llm.base import Delta, ModelOptions, TextDelta, Usage
from task.llm.chat_request import BASIC
from task.llm.dial import DialChatModel
from task.llm.transport import Retries, new_session
from task.permissions.effects import Origin
from task.tools.base import BaseTool
from task.tools.deployment.explained import REFUSED, explained
from task.tools.deployment.files import MAX_BYTES, FileUploads, OwnUploads, passed_files, stored, without_content
from task.tools.models import ToolCallParams
from task.tools.stage_text import RESPONSE_CHARS, clipped, request_arguments

if TYPE_CHECKING:
    import aiohttp

FILES = "file_urls"
MAX_FILES = 10
_RETRIES = Retries(attempts=2)  # each try may cost as much as a picture


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A deployment and how it is offered to the model.

    `prompt` names the parameter that becomes the message. `arguments` are JSON Schemas of further parameters; with the
    fixed `configuration` they reach the deployment as `custom_fields.configuration`. `attachments` are the MIME types
    (`image/*`) of the conversation's files that the model may pass along; `seconds` is what one call may take.
    """

    name: str
    description: str
    deployment: str
    prompt: str = "prompt"
    prompt_description: str = "What is asked of it, complete in itself: it does not see the conversation"
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attachments: tuple[str, ...] = ()
    seconds: float = 120


@dataclass(frozen=True, slots=True)
class DeploymentAccess:
    """What deployment tools share in one process; without `session` or `files` each call opens its own.

    `max_bytes` is the largest file that is taken from a deployment's answer.
    """

    session: aiohttp.ClientSession | None = None
    files: FileUploads | None = None
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class DeploymentAnswer:
    """What a deployment gave: its text, and its files as URLs; no file's content is left in them."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class DeploymentTool(BaseTool):
    """Asks a deployment of the Core at `endpoint`; its text appears in the stage as it comes."""

    def __init__(self, endpoint: str, spec: DeploymentSpec, *, access: DeploymentAccess | None = None) -> None:
        access = access or DeploymentAccess()
        self._endpoint = endpoint
        self._spec = spec
        self._session = access.session
        self._files: FileUploads = access.files or OwnUploads(endpoint)
        self._max_bytes = access.max_bytes

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def description(self) -> str:
        return self._spec.description

    @property
    def parameters(self) -> dict[str, Any]:
        prompt = {"type": "string", "description": self._spec.prompt_description}
        properties: dict[str, Any] = {self._spec.prompt: prompt}
        properties |= {name: dict(shape) for name, shape in self._spec.arguments.items()}
        if self._spec.attachments:
            told = f"URLs of files attached to the conversation that it needs ({', '.join(self._spec.attachments)})"
            urls = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_FILES, "description": told}
            properties[FILES] = urls
        return {"type": "object", "properties": properties, "required": [self._spec.prompt]}

    @property
    def show_in_stage(self) -> bool:
        return False

    @property
    def timeout(self) -> float | None:
        return self._spec.seconds

    @property
    def origin(self) -> Origin:
        """A model writes the results; what they say is not copied from outside."""
        return Origin.MADE

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        tool_call_params.stage.append_content(f"{request_arguments(arguments)}## Response:\n\n")
        answer = await self._ask(arguments, tool_call_params, _StageWriter(tool_call_params.stage))
        if not answer.text and not answer.attachments:
            raise ToolError(f"The deployment {self._spec.deployment} answered with nothing. Try another way.")
        return result(answer.text, answer.attachments)

    async def _ask(
        self, arguments: Mapping[str, Any], params: ToolCallParams, writer: _StageWriter | None = None
    ) -> DeploymentAnswer:
        """The deployment's answer; its text goes to `writer` piece by piece.

        Raises:
            ToolError: it refused, failed or broke off; the text tells the model what to do.
        """
        answer = Accumulator()
        try:
            async with self._asked(self._message(arguments, params), self._options(arguments), params) as deltas:
                async for delta in deltas:
                    answer.add(delta)
                    if writer is not None and isinstance(delta, TextDelta):
                        writer.write(delta.text)
                    elif isinstance(delta, Usage) and params.caller is not None:
                        params.caller.spend(delta, self._spec.deployment)
        except ProviderError as error:
            raise ToolError(explained(error, self._spec.deployment)) from error
        if answer.finish_reason == "content_filter":
            raise ToolError(REFUSED.format(self._spec.deployment))
        custom = answer.message().custom_content
        text, within = without_content(answer.text.strip())
        given = (*(custom.attachments if custom else ()), *within)
        return DeploymentAnswer(text, await stored(given, self._endpoint, self._files, params.api_key, self._max_bytes))

    @asynccontextmanager
    async def _asked(
        self, message: Message, options: ModelOptions, params: ToolCallParams
    ) -> AsyncGenerator[AsyncGenerator[Delta]]:
        headers = params.caller.headers if params.caller else {}
        async with self._connected() as session:
            model = DialChatModel(
                session, self._endpoint, self._spec.deployment, params.api_key,
                headers=headers, profile=BASIC, retries=_RETRIES,
            )  # fmt: skip
            async with aclosing(model.stream([message], (), options)) as deltas:
                yield deltas

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[aiohttp.ClientSession]:
        if self._session is not None:
            yield self._session
            return
        async with new_session() as own:
            yield own

    def _message(self, arguments: Mapping[str, Any], params: ToolCallParams) -> Message:
        prompt = str(arguments[self._spec.prompt]).strip()
        if not prompt:
            raise ToolError(f"The {self._spec.prompt} is empty; say what {self._spec.name} is to do.")
        files = passed_files(arguments.get(FILES, ()), self._endpoint, self._spec.attachments)
        for file in files:
            self._files.check(file.url or "", params.api_key)
        return Message(Role.USER, prompt, custom_content=CustomContent(files) if files else None)

    def _options(self, arguments: Mapping[str, Any]) -> ModelOptions:
        chosen = {name: arguments[name] for name in self._spec.arguments if name in arguments}
        configuration = {**self._spec.configuration, **chosen}
        return ModelOptions(extra={"custom_fields": {"configuration": configuration}} if configuration else {})


def result(text: str, attachments: tuple[Attachment, ...]) -> Message:
    """The tool's message: the text and where the files are, which a later turn can only know from here."""
    told = "\n\n".join(filter(None, (text, attachment_note([item for item in attachments if item.url]))))
    return Message(Role.TOOL, told, custom_content=CustomContent(attachments) if attachments else None)


class _StageWriter:
    """Writes a text into a stage as it comes, up to what DIAL Chat shows."""

    def __init__(self, stage: StageSink) -> None:
        self._stage = stage
        self._room = RESPONSE_CHARS

    def write(self, text: str) -> None:
        if self._room <= 0:
            return
        self._stage.append_content(clipped(text, self._room))
        self._room -= len(text.encode(errors="replace"))
