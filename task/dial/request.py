"""Read a DIAL request: what was asked, how and for whom; and limit how many of one caller's are answered at once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from inspect import iscoroutinefunction
from itertools import count
from mimetypes import guess_type
from typing import TYPE_CHECKING, Any, Self, get_type_hints
from uuid import uuid4

import orjson
from aidial_sdk.chat_completion import CustomContent as DialCustomContent
from aidial_sdk.chat_completion import Message as DialMessage
from aidial_sdk.chat_completion import Request
from aidial_sdk.chat_completion import Role as DialRole
from aidial_sdk.deployment.from_request_mixin import FromRequestDeploymentMixin
from aidial_sdk.exceptions import InvalidRequestError
from fastapi import Request as HttpRequest
from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from task.approvals.forms import button, buttons, number_of
from task.conversation.inputs import CALLER, MOST_MESSAGES, Incoming, forwarded
from task.conversation.messages import INSTRUCTIONS, Attachment, FunctionCall, Role, ToolCall, frozen_data
from task.conversation.sources import TAGS
from task.core_client.files import DialFiles
from task.core_client.user_files import UserFiles
from task.errors import InvalidRequest, TooManyRuns
from task.llm.base import REQUEST_FIELDS, ModelOptions
from task.llm.demo import SAMPLES
from task.permissions.decisions import PermissionMode
from task.runs.request import RunCaller
from task.shared.redis_store import RedisStore

if TYPE_CHECKING:
    from task.product.profile import Profile

MODES = (
    "default: the rules say what may run and what you are asked about. ask: you are asked before everything that "
    "writes, executes or contacts a server. read_only: no tool may write or execute anything."
)
NESTED = "A header of the request is JSON that is nested too deeply."
_TEMPERATURE = "0 is the most predictable, 2 the most varied."
_FROM_HEADERS = frozenset({"api_key", "jwt", *FromRequestDeploymentMixin.model_fields})  # of the SDK's requests
_ASKING = (Role.USER, *INSTRUCTIONS)  # a system message alone is a question too, as for OpenAI
_OPTIONS = {*REQUEST_FIELDS, "tool_choice"}
_NO_OPTIONS = ModelOptions()
_PLAIN = {"role", "content"}
_ASSISTANT = Role.ASSISTANT  # an enum member is slow to look up
_ROLES = {role: Role.TOOL if role is DialRole.FUNCTION else Role(role.value) for role in DialRole}


class AgentConfiguration(BaseModel):
    """What the user chose for the conversation; arrives as `custom_fields.configuration`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(default=None, min_length=1, description="The model that answers.")
    temperature: float | None = Field(default=None, ge=0, le=2, description=_TEMPERATURE)
    permission_mode: PermissionMode = Field(default=PermissionMode.DEFAULT, description=MODES)
    persona: str | None = Field(default=None, max_length=200, description="Who answers, a persona of the context.")
    starter: int | None = Field(default=None, description="The conversation starter that was pressed.")


STARTER = "starter"
STARTERS = (("What can you do?", "Hi, what can you do?"), *((sample.title, sample.question) for sample in SAMPLES))


def configuration_schema(models: Sequence[str], personas: Sequence[str], profile: "Profile") -> dict[str, Any]:
    """The configuration as DIAL Chat shows it: a JSON schema with what the profile has by default, its stricter
    permission modes, and its conversation starters as buttons, without any those of the product."""

    def one_of(description: str, values: Sequence[str], default: str) -> dict[str, Any]:
        given = {"enum": list(values), "default": default}
        return {"type": "string", "description": description, **{name: part for name, part in given.items() if part}}

    pressed = [button(number, title, text) for number, (title, text) in enumerate(profile.starters or STARTERS, 1)]
    persona = profile.context.persona if profile.context else ""
    modes = [mode.value for mode in PermissionMode]
    who = one_of("Who answers.", personas, persona if persona in personas else "")
    properties = {
        "model": one_of("The model that answers.", models, profile.model),
        "temperature": {"type": "number", "minimum": 0, "maximum": 2, "description": _TEMPERATURE},
        "permission_mode": one_of(MODES, modes[modes.index(profile.mode) :], profile.mode.value),
        **({"persona": who} if personas else {}),
        STARTER: buttons(pressed),
    }
    return {"type": "object", "properties": properties}


class DialRoute(APIRoute):
    """Hands the SDK requests whose body is a JSON object; it has no answer of its own to others.

    A bearer token is the key of callers without Core, as the specification shows. An endpoint that takes the request
    alone, depends on nothing and returns a response is called without what FastAPI does for others.
    """

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        hints = get_type_hints(self.endpoint)
        takes_request_only = [*hints.values()] == [HttpRequest, Response] and not self.dependencies
        is_plain = takes_request_only and iscoroutinefunction(self.endpoint)
        handle = self.endpoint if is_plain else super().get_route_handler()

        async def handle_object(request: HttpRequest) -> Response:
            scope, headers = request.scope, dict(request.scope["headers"])
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            if b"api-key" not in headers and scheme.lower() == b"bearer" and token:
                scope = {**scope, "headers": [*scope["headers"], (b"api-key", token.strip())]}
            try:
                return await handle(_JsonRequest(scope, request.receive))
            except RecursionError as error:  # of the SDK's reader of a header with JSON
                raise InvalidRequestError(NESTED, display_message=NESTED) from error

        return handle_object


class _JsonRequest(HttpRequest):
    async def json(self) -> dict[str, Any]:
        try:
            body = orjson.loads(await self.body())
        except orjson.JSONDecodeError as error:
            text = f"The request body isn't valid JSON: {error}."
            raise InvalidRequestError(text, display_message=text) from error
        if not isinstance(body, dict):
            text = "The request body must be a JSON object."
            raise InvalidRequestError(text, display_message=text)
        return {name: value for name, value in body.items() if name not in _FROM_HEADERS}


def identified(request: FromRequestDeploymentMixin) -> RunCaller | None:
    """The caller, where the guard has identified it because DIAL Core does not."""
    return request.original_request.scope.get(CALLER)


@frozen_data
class DialRequest:
    """A DIAL request, parsed and checked once.

    `options` are the model's, `headers` are those that travel on; `conversation_id` is the client's own, or empty.
    `owner` is the caller where the guard has identified it; the bucket of `api_key` is, where DIAL Core does.
    `application` is the id of the one that a user made of the agent, or empty; `properties` came with the request.
    `skills` are addresses of those that the user picked for the newest message.
    """

    incoming: Sequence[Incoming]
    configuration: AgentConfiguration
    options: ModelOptions
    api_key: str
    conversation_id: str
    headers: Mapping[str, str]
    owner: str = ""
    application: str = ""
    properties: object = None
    skills: tuple[str, ...] = ()

    @classmethod
    def parse(cls, request: Request) -> Self:
        """The request's messages, configuration and options.

        Raises:
            InvalidRequest: there are no messages, the last one is an answer, what stands beside them is malformed,
                or the configuration does not fit.
        """
        incoming = incoming_of(request.messages, request.model_extra)
        configuration, custom = AgentConfiguration(), request.custom_fields
        if custom is not None and custom.configuration:
            try:
                configuration = AgentConfiguration.model_validate(custom.configuration)
            except ValidationError as error:
                faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
                known = ", ".join(AgentConfiguration.model_fields)
                raise InvalidRequest(f"The configuration does not fit: {faults}. Known are: {known}.") from error
        options = _NO_OPTIONS
        if not request.model_fields_set.isdisjoint(_OPTIONS):
            fields = request.model_dump(mode="json", include=_OPTIONS, exclude_none=True)
            # The caller's own functions are not called here, and so not chosen either.
            choice = None if request.tools or request.functions else fields.get("tool_choice")
            options = ModelOptions.requested(fields)
            options = options if choice in (None, "auto") else replace(options, tool_choice=choice)
        if configuration.temperature is not None:
            options = replace(options, temperature=configuration.temperature)
        conversation_id, headers = request.conversation_id or "", forwarded(request.headers)
        if conversation_id:
            headers["X-CONVERSATION-ID"] = conversation_id
        caller = identified(request)
        key, owner = (caller.core_key, caller.owner) if caller is not None else (request.api_key, "")
        application, given = request.dial_application_id or "", request.unreliable_dial_application_properties
        if given is None and custom is not None and not application:  # of Core 0.25; a newer one passes a user's own on
            given = (custom.model_extra or {}).get("application_properties")
            if isinstance(given, dict):  # where it shares the files of a list, there is a null for each
                given = {name: value for name, value in given.items() if not (name.isdigit() and value is None)}
        skills = _picked(last.model_extra or {}) if (last := request.messages[-1].custom_content) is not None else ()
        return cls(incoming, configuration, options, key, conversation_id, headers, owner, application, given, skills)

    async def with_sample(self, files: DialFiles) -> Self:
        """The request with the file of the pressed one of STARTERS, which the chat does not keep, in its first message.

        Raises:
            ToolError: it cannot be stored for the caller.
        """
        asked = next((item for item in self.incoming if item.role is Role.USER), self.incoming[0])
        number = self.configuration.starter or number_of(asked.form_value, STARTER)
        if (sample := dict(enumerate(SAMPLES, len(STARTERS) - len(SAMPLES) + 1)).get(number)) is None:
            return self
        own = await UserFiles.of(files, self.api_key)
        kind, url = guess_type(sample.name)[0] or "", f"{own.home}samples/{sample.name}"
        if await own.find(url) is None:
            await own.write(url, await asyncio.to_thread(sample.path.read_bytes), kind, None)
        given = replace(asked, attachments=(*asked.attachments, Attachment(kind, sample.name, url=url)))
        return replace(self, incoming=[given if item is asked else item for item in self.incoming])


def incoming_of(messages: Sequence[DialMessage], extra: Mapping[str, Any] | None = None) -> list[Incoming]:
    """The messages as the agent's; attachments that stand beside them, in `extra`, belong to the last one.

    Raises:
        InvalidRequest: there are no messages, the last one is an answer, or what stands beside them is malformed.
    """
    if not messages:
        raise InvalidRequest("The request has no messages; send at least one message of the user.")
    if len(messages) > MOST_MESSAGES:
        raise InvalidRequest(f"The request has more than {MOST_MESSAGES:,} messages; leave the oldest out.")
    if (role := messages[-1].role.value) not in _ASKING:
        raise InvalidRequest(f"The last message is the {role}'s; it must be the user's.")
    incoming = list(map(_incoming, messages, count()))
    if custom := (extra or {}).get("custom_content"):
        try:
            content = DialCustomContent.model_validate(custom)
        except ValidationError as error:
            raise InvalidRequest("The custom_content beside the messages is malformed.") from error
        attachments = (*incoming[-1].attachments, *map(Attachment.of, content.attachments or ()))
        incoming[-1] = replace(incoming[-1], attachments=attachments)
    return incoming


def _picked(custom: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        return tuple(str(item["url"]) for item in custom.get("skills") or ())
    except (TypeError, KeyError) as error:
        raise InvalidRequest("The message's skills are malformed: each has a `url`, skills/{bucket}/{path}.") from error


def _incoming(message: DialMessage, place: int) -> Incoming:
    role, content, custom = _ROLES[message.role], message.content, message.custom_content
    if role is _ASSISTANT and isinstance(content, str) and "<cit " in content:
        content = TAGS.sub("", content)
    if isinstance(content, str) and message.__pydantic_fields_set__ == _PLAIN:  # nearly all of a long history
        return Incoming(role, content, unsourced=role is _ASSISTANT, place=place)
    if isinstance(content, list):
        content = [part.model_dump(exclude_none=True) for part in content]
    scrub_pii = (message.model_extra or {}).get("scrub_pii") is True
    incoming = Incoming(role, content, scrub_pii=scrub_pii, place=place)
    if custom is not None:
        files = tuple(map(Attachment.of, custom.attachments or ()))
        incoming = replace(incoming, attachments=files, state=custom.state, form_value=custom.form_value)
    if message.tool_calls:  # not ours: we keep calls in the state
        made = [(call.id, call.function) for call in message.tool_calls]
        calls = tuple(ToolCall(id, FunctionCall(function.name, function.arguments)) for id, function in made)
        return replace(incoming, role=Role.ASSISTANT, tool_calls=calls, name=message.name, unsourced=True)
    if message.tool_call_id is not None:
        return replace(incoming, role=Role.TOOL, tool_call_id=message.tool_call_id, name=message.name)
    return incoming


class CallerLimit:
    """How many requests of one caller a process answers at once, or all that share the Redis while it can be used.

    A process by itself only asks who its callers are once it answers so many in all: that takes a request to DIAL Core.
    """

    def __init__(self, most: int, redis: RedisStore | None = None) -> None:
        self._most, self._redis = most, redis
        self._running: dict[str, Callable[[], Awaitable[str]]] = {}

    @asynccontextmanager
    async def admitted(self, principal: Callable[[], Awaitable[str]]) -> AsyncGenerator[None]:
        """Count the request inside the block.

        Raises:
            TooManyRuns: so many of the caller's are in progress.
        """
        key, redis, together = uuid4().hex, self._redis, None
        async with AsyncExitStack() as stack:
            if redis is not None:
                place = f"answering:{sha256((await principal()).encode()).hexdigest()[:32]}"
                stack.push_async_callback(redis.release, place, key)
                together = await redis.hold(place, key, self._most)
            if together is None and len(self._running) >= self._most:
                own, *others = await asyncio.gather(principal(), *(ask() for ask in self._running.values()))
                together = 0 if others.count(own) >= self._most else None
            if together == 0:
                raise TooManyRuns(f"{self._most} of your requests are being answered. Wait until one has ended.")
            self._running[key] = principal
            try:
                yield
            finally:
                del self._running[key]
