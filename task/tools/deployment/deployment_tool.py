"""Any DIAL deployment as a tool: called with the caller's key, its text for the model, its files for the person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, CustomContent, Message, Role
from task.conversation.sinks import StageSink
from task.core_client.files import DialFiles, UnpooledFiles
from task.errors import ProviderError, ToolError
from task.llm.accumulator import Accumulator
from task.llm.base import Delta, ModelOptions, TextDelta, Usage
from task.llm.chat_request import BASIC
from task.llm.dial import DialChatModel
from task.llm.failures import CONTEXT_LENGTH, TIMEOUT, spent_limit
from task.llm.transport import Retries, new_session
from task.permissions.taint import Origin
from task.tools.base import BaseTool
from task.tools.deployment.files import MAX_BYTES, passed_files, stored, without_content
from task.tools.models import ToolCallParams
from task.tools.toolbox import request_arguments

if TYPE_CHECKING:
    import aiohttp

FILES = "file_urls"
MAX_FILES = 10
_RETRIES = Retries(attempts=2)  # each try may cost as much as a picture
_REFUSED = (
    "The deployment {} refused this by its content rules. Ask for something else in other words, or tell the user."
)
_REFUSALS = frozenset({"content_filter", "content_policy_violation", "moderation_blocked", "responsible_ai_policy"})
_QUOTED_CHARS = 300


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A deployment and how it is offered to the model.

    `prompt` names the parameter that becomes the message. `arguments` are JSON Schemas of further parameters; with the
    fixed `configuration` they are sent as `custom_fields.configuration`. `attachments` are the MIME types (`image/*`)
    of the conversation's files that the model may pass along; `seconds` limits one call.
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
    """What deployment tools share in one process; without `session` or `files` a tool opens its own.

    `max_bytes` is the largest file accepted from a deployment's answer.
    """

    session: aiohttp.ClientSession | None = None
    files: DialFiles | None = None
    max_bytes: int = MAX_BYTES


@dataclass(frozen=True, slots=True)
class DeploymentAnswer:
    """A deployment's text, and its files as URLs."""

    text: str
    attachments: tuple[Attachment, ...] = ()


class DeploymentTool(BaseTool):
    """Calls a deployment of the Core at `endpoint`; its text is streamed into the stage."""

    def __init__(self, endpoint: str, spec: DeploymentSpec, *, access: DeploymentAccess | None = None) -> None:
        self._access = access or DeploymentAccess()
        self._endpoint = endpoint
        self._spec = spec
        self._files = self._access.files or UnpooledFiles(endpoint)

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
            accepted = f"URLs of files attached to the conversation that it needs ({', '.join(self._spec.attachments)})"
            urls = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_FILES, "description": accepted}
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
        """A model writes the results; they are not copied from outside."""
        return Origin.MADE

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        tool_call_params.stage.append_content(f"{request_arguments(arguments)}## Response:\n\n")
        answer = await self._ask(arguments, tool_call_params, tool_call_params.stage)
        if not answer.text and not answer.attachments:
            raise ToolError(f"The deployment {self._spec.deployment} answered with nothing. Try another way.")
        return result(answer.text, answer.attachments)

    async def _ask(
        self, arguments: Mapping[str, Any], params: ToolCallParams, stage: StageSink | None = None
    ) -> DeploymentAnswer:
        answer = Accumulator()
        try:
            async with self._asked(self._message(arguments, params), self._options(arguments), params) as deltas:
                async for delta in deltas:
                    answer.add(delta)
                    if stage is not None and isinstance(delta, TextDelta):
                        stage.append_content(delta.text)
                    elif isinstance(delta, Usage) and params.caller is not None:
                        params.caller.spend(delta, self._spec.deployment)
        except ProviderError as error:
            raise ToolError(_explanation(error, self._spec.deployment)) from error
        if answer.finish_reason == "content_filter":
            raise ToolError(_REFUSED.format(self._spec.deployment))
        custom = answer.message().custom_content
        text, inline = without_content(answer.text.strip())
        received = (*(custom.attachments if custom else ()), *inline)
        max_bytes = self._access.max_bytes
        return DeploymentAnswer(text, await stored(received, self._endpoint, self._files, params.api_key, max_bytes))

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
        if self._access.session is not None:
            yield self._access.session
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
    """The tool's message: the text, and the URLs of the files for later turns."""
    text = "\n\n".join(filter(None, (text, attachment_note([item for item in attachments if item.url]))))
    return Message(Role.TOOL, text, custom_content=CustomContent(attachments) if attachments else None)


def _explanation(error: ProviderError, deployment: str) -> str:
    if (limit := spent_limit(error, deployment)) is not None:
        return f"Tell the user: {limit}"
    quoted = " ".join((error.display_message or error.text).split())[:_QUOTED_CHARS]
    sentence = _sentence(error, deployment)
    return f"{sentence} It said: {quoted}" if quoted and (error.status_code or 500) < 500 else sentence


def _sentence(error: ProviderError, deployment: str) -> str:
    if error.code in _REFUSALS:
        return _REFUSED.format(deployment)
    if error.code == TIMEOUT or error.status_code in (408, 504):
        return f"The deployment {deployment} took too long. Try something simpler, or tell the user."
    if error.code == CONTEXT_LENGTH:
        return f"The request is too long for the deployment {deployment}. Send a shorter one."
    match error.status_code:
        case 404:
            return f"There is no deployment {deployment} on this DIAL Core. Tell the user that it is not available."
        case 401 | 403:
            return f"The deployment {deployment}, or a file passed to it, is not open to this user. Tell the user."
        case 400 | 413 | 415 | 422:
            return f"The deployment {deployment} did not accept the request. Correct it, or tell the user."
        case _:
            return f"The deployment {deployment} did not answer properly. Try again later, or tell the user."
