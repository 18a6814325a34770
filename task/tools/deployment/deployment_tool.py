"""Any DIAL deployment as a tool: called with the caller's key, its text for the model, its files for the user."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes

import orjson

from task.conversation.inputs import attachment_note
from task.conversation.messages import Attachment, Message, Role, frozen_data, user
from task.core_client.files import DialFiles
from task.core_client.models import calling
from task.errors import ProviderError, ToolError
from task.llm.base import DialDelta, FileDelta, Finish, ModelOptions, TextDelta, Usage
from task.llm.chat_request import BASIC
from task.llm.dial import DialChatModel
from task.llm.failures import explained
from task.llm.transport import Retries
from task.output.sinks import request_arguments
from task.permissions.taint import Origin
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.deployment.relay import CARD_CHARS, Relay, cited, link
from task.tools.models import Effect, ToolCallParams

if TYPE_CHECKING:
    import aiohttp

FILES, PROMPT, THREAD = "file_urls", "prompt", "thread"
OWN_ARGUMENTS = frozenset({FILES, PROMPT, THREAD})
MAX_FILES = 10
MAX_BYTES = 50 * 2**20
MAX_SAID = 1_000_000  # characters of an answer
MAX_STATE = 32_000  # bytes of a deployment's state, in the hidden state of the conversation
_RETRIES = Retries(attempts=2)  # each try may cost as much as a picture
_FILE_URL = re.compile(r"files/[^/\s?#]+/[^\s?#]+")
_DATA_IN_TEXT = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")
_MEDIA = ("image/", "audio/", "video/")
_THREAD = "A word for an exchange that later calls with this word continue, and it remembers; leave out for none"
_REFUSED = (
    "The deployment {} refused this by its content rules. Ask for something else in other words, or tell the user."
)
_CONTENT_CODES = ("content_filter", "content_policy_violation", "moderation_blocked", "responsible_ai_policy")


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A deployment and how it is offered to the model.

    `prompt` names the parameter that becomes the message. `arguments` are JSON Schemas of further parameters; with the
    fixed `configuration` they are sent as `custom_fields.configuration`; those that are `required` must be given.
    `attachments` are the MIME types (`image/*`) of the conversation's files that the model may pass along; `seconds`
    limits one call. `by_name`: all that is known of it comes from Core, so it may do anything, and a call can continue
    an earlier one.
    """

    name: str
    description: str
    deployment: str
    prompt: str = PROMPT
    prompt_description: str = "What is asked of it, complete in itself: it does not see the conversation"
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attachments: tuple[str, ...] = ()
    seconds: float = 120
    required: tuple[str, ...] = ()
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class DeploymentAccess:
    """What deployment tools share in one process; without `session` or `files` a tool opens its own.

    `max_bytes` is the largest file accepted from a deployment's answer.
    """

    session: aiohttp.ClientSession | None = None
    files: DialFiles | None = None
    max_bytes: int = MAX_BYTES


@frozen_data
class Answered(Message):
    """A deployment's own answer, with the state that it gave to it."""

    state: Any = None

    def as_dict(self) -> dict[str, Any]:
        content = {"custom_content": {"state": self.state}} if self.state else {}
        return {**Message.as_dict(self), **content}


def answered(said: str, attachments: Sequence[Attachment]) -> Message:
    """The tool's message: the deployment's text, and the URLs of its files for later turns."""
    note = attachment_note([item for item in attachments if item.url])
    return Message(Role.TOOL, "\n\n".join(filter(None, (said, note))), attachments=tuple(attachments))


class DeploymentTool(BaseTool):
    """Calls a deployment of the Core at `endpoint`; its text is streamed into the stage."""

    def __init__(
        self,
        endpoint: str,
        deployment: DeploymentSpec,
        *,
        access: DeploymentAccess | None = None,
        show_in_stage: bool = False,
    ) -> None:
        self._access = access or DeploymentAccess()
        self._endpoint = endpoint
        self._called, self.by_name = deployment, deployment.by_name
        self.offered_by = "DIAL" if deployment.by_name else ""
        self._files = self._access.files or DialFiles(endpoint)
        properties: dict[str, Any] = {
            deployment.prompt: text(deployment.prompt_description),
            **{name: dict(shape) for name, shape in deployment.arguments.items()},
            **({THREAD: text(_THREAD, maxLength=100)} if deployment.by_name else {}),
        }
        if deployment.attachments:
            accepted = f"URLs of files attached to the conversation that it needs ({', '.join(deployment.attachments)})"
            urls = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_FILES, "description": accepted}
            properties[FILES] = urls
        self.spec = ToolSpec(
            deployment.name,
            deployment.description,
            object_schema(deployment.prompt, *deployment.required, **properties),
            frozenset(Effect) - {Effect.EXECUTE} if deployment.by_name else frozenset({Effect.READ}),
            origin=Origin.MADE,  # a model writes the results; they are not copied from outside
            show_in_stage=show_in_stage,
            timeout=deployment.seconds,
        )

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        tool_call_params.stage.append_content(f"{request_arguments(arguments)}## Response:\n\n")
        thread = arguments.get(THREAD) if self._called.by_name else None
        before = self._before(thread, tool_call_params.earlier) if thread is not None else ()
        with Relay(tool_call_params.stage) as relay:
            said, attachments = await self._ask(arguments, tool_call_params, relay, before)
        if not said and not attachments:
            raise ToolError(f"The deployment {self._called.deployment} answered with nothing. Try another way.")
        said, citations = cited(said, relay.annotations, tool_call_params.sources)
        message = answered(said, [*attachments, *citations])
        if thread is None:
            return message
        memo = {"deployment": self._called.deployment, "thread": thread}
        # Without the state of its question, no call of the model can answer it in the user's place.
        with suppress(orjson.JSONEncodeError):  # nested too deeply
            if not relay.asks and len(orjson.dumps(relay.state)) <= MAX_STATE:
                memo["state"] = relay.state
        return replace(message, memo=orjson.dumps(memo).decode())

    async def _ask(
        self, arguments: Mapping[str, Any], params: ToolCallParams, relay: Relay, before: Sequence[Message] = ()
    ) -> tuple[str, list[Attachment]]:
        """The deployment's text, and its files as URLs, all stored in DIAL. `before` are earlier messages to it."""
        deployment = self._called.deployment
        message, options = self._request(arguments, params)
        session, caller = self._access.session, calling(params.known_caller, deployment)
        texts, files, left, reason = list[str](), list[Attachment](), MAX_SAID, ""
        model = DialChatModel(
            session, self._endpoint, deployment, caller.api_key, caller.headers, profile=BASIC, retries=_RETRIES
        )
        try:
            async with aclosing(model.stream([*before, message], (), options)) as deltas:
                async for delta in deltas:
                    match delta:
                        case TextDelta(text=piece):
                            relay.stage.append_content(piece)
                            texts.append(piece)
                            left -= len(piece)
                        case FileDelta(item) if len(files) < MAX_FILES:
                            files.append(item)
                        case DialDelta():
                            relay.add(delta)
                        case Usage():
                            caller.spend(delta, deployment)
                        case Finish():
                            reason = delta.reason
                        case _:
                            pass
                    if left <= 0:  # it may go on for ever
                        break
        except ProviderError as error:
            why = _REFUSED.format(deployment) if error.code in _CONTENT_CODES else explained(error, deployment)
            said = " ".join((error.display_message or error.text).split())
            raise ToolError(f"{why} It said: {said}" if said and (error.status_code or 500) < 500 else why) from error
        if reason == "content_filter":
            raise ToolError(_REFUSED.format(deployment))
        said = "".join(texts).strip()
        files += [Attachment(kind, "File", data=data) for kind, data in _DATA_IN_TEXT.findall(said)]
        stored = [await self._stored(item, params.api_key) for item in files[:MAX_FILES]]
        return _DATA_IN_TEXT.sub("attached", said), stored

    def _before(self, thread: str, earlier: Sequence[Message]) -> list[Message]:
        # What was asked and answered in the thread: the deployment's state goes back with each of its answers.
        asked = {call.id: call.arguments() for item in earlier for call in item.tool_calls if call.name == self.name}
        messages = list[Message]()
        for item in earlier:
            memo = orjson.loads(item.memo) if item.memo and item.tool_call_id in asked else {}
            if (memo.get("deployment"), memo.get("thread")) == (self._called.deployment, thread):
                prompt = str(asked[str(item.tool_call_id)].get(self._called.prompt, ""))
                messages += [user(prompt), Answered(Role.ASSISTANT, item.text(), state=memo.get("state"))]
        return messages

    def _request(self, arguments: Mapping[str, Any], params: ToolCallParams) -> tuple[Message, ModelOptions]:
        prompt = str(arguments[self._called.prompt]).strip()
        if not prompt:
            raise ToolError(f"The {self._called.prompt} is empty; say what {self.name} is to do.")
        files: list[Attachment] = []
        for url in dict.fromkeys(arguments.get(FILES, ())):
            # Core checks that the caller may read it, and this that no other owner of a shared key is meant.
            relative = self._files.check(url, params.api_key)
            name, accepted = unquote(PurePosixPath(relative).name), self._called.attachments
            kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
            if not any(fnmatch(kind, pattern) for pattern in accepted):
                raise ToolError(f"{name!r} ({kind}) cannot be passed on: only {', '.join(accepted)} can.")
            files.append(Attachment(kind, name, url=relative))
        chosen = {name: arguments[name] for name in self._called.arguments if name in arguments}
        configuration = {**self._called.configuration, **chosen}
        options = ModelOptions(extra={"custom_fields": {"configuration": configuration}} if configuration else {})
        return Message(Role.USER, prompt, attachments=tuple(files)), options

    async def _stored(self, item: Attachment, api_key: str) -> Attachment:
        # Content becomes a file of the caller's; URLs and short texts are kept.
        max_bytes = self._access.max_bytes
        if item.url is not None and not item.url.startswith("data:"):
            relative = item.url.removeprefix(f"{self._endpoint.rstrip('/')}/v1/")
            kind = item.type or mimetypes.guess_type(relative)[0]
            if _FILE_URL.fullmatch(relative):
                relative = await self._files.adopt(relative, api_key, max_bytes)
            elif self._called.by_name:  # a picture of another host would be fetched as soon as the answer is shown
                return link(item)
            return replace(item, url=relative, type=kind)
        if item.url is None and (item.type or "text/").startswith("text/") and len(item.data or "") <= CARD_CHARS:
            return item
        kind, data, encoded = item.type or "application/octet-stream", item.data or "", True
        if item.url is not None:
            head, _, data = item.url.removeprefix("data:").partition(",")
            kind, encoded = head.split(";", 1)[0] or kind, head.endswith(";base64")
        if len(data) > max_bytes * 4 // 3 + 4:
            raise ToolError(f"The deployment answered with a file of more than {max_bytes:,} bytes. Ask for less.")
        content = unquote_to_bytes(data)
        if encoded:
            try:
                content = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError):  # text, such as the JSON of a chart
                if kind.startswith(_MEDIA):
                    sentence = "The deployment answered with a damaged file. Try again, or tell the user."
                    raise ToolError(sentence) from None
        stem = re.sub(r"[^\w-]+", "_", item.title or "").strip("_")[:60] or "file"
        name = f"{stem}{mimetypes.guess_extension(kind) or ''}"
        return replace(item, type=kind, data=None, url=await self._files.upload(name, content, kind, api_key))
