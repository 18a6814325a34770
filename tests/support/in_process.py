"""An agent and people's chats with it in the test's own process: no network, a clock that the test sets."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import fastapi
from aidial_sdk.chat_completion import Choice, Request, Response
from pydantic import SecretStr

from task.agent import GeneralPurposeAgent
from task.approvals.approvals import ApprovalRules, Claims
from task.conversation.inputs import without_time
from task.conversation.messages import Message
from task.conversation.state import StateSeal
from task.core_client.files import DialFiles
from task.llm.base import ChatModel, Delta, ModelOptions, ToolSchema
from task.llm.dial import ModelListings
from task.permissions.policy import DEFAULT_POLICY, Policy
from task.product import Backend, Profile, Services, opened
from task.settings import Settings
from task.tools.base import BaseTool
from tests.support.chat_reader import Version, pressed
from tests.support.choices import RecordingChoice
from tests.support.clock import FakeClock

NOWHERE = "http://127.0.0.1:9"
NOON = 1_800_000_000.0
SETTINGS = Settings.model_validate({"dial_endpoint": NOWHERE, "embedding_model": "/no/embedding"})


class KeysAreBuckets(DialFiles):
    """Files of a Core that does not exist: each key has a bucket of its own."""

    async def principal(self, api_key: str, *, per_request: bool = False) -> str:
        return f"bucket-of-{api_key}"


class OneSize(ModelListings):
    """Listings in which every model takes requests of so many tokens."""

    tokens: int | None = None

    async def request_tokens(self, model: str, api_key: str) -> int | None:
        return self.tokens


@dataclass
class RecordedResponse:
    """Records what the agent sets on the SDK's response."""

    usage: tuple[int, int] | None = None
    discarded: list[int] | None = None
    per_model: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def add_usage_per_model(self, model: str, prompt_tokens: int, completion_tokens: int) -> None:
        assert model not in self.per_model, "a model is reported once"
        self.per_model[model] = (prompt_tokens, completion_tokens)

    def set_discarded_messages(self, discarded_messages: list[int]) -> None:
        assert self.discarded is None, "discarded messages are set once"
        self.discarded = discarded_messages

    def set_usage(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.usage = (prompt_tokens, completion_tokens)


@dataclass(frozen=True, slots=True)
class Timeless:
    """The model, which reads the newest message without the time: what tests expect is the same at any time."""

    model: ChatModel

    @property
    def name(self) -> str:
        return self.model.name

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        read = [
            replace(item, content=without_time(item.content)) if isinstance(item.content, str) else item
            for item in messages
        ]
        return self.model.stream(read, tools, options)


@dataclass
class Agents:
    """A model and tools behind agents; every request gets an agent of its own, as in the product."""

    model: ChatModel
    tools: Sequence[BaseTool]
    opened: tuple[Services, Profile]
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))
    policy: Policy = DEFAULT_POLICY
    secret: bytes = b"of this installation"
    claims: Claims = field(default_factory=Claims)
    tokens: int | None = None

    def agent(self) -> GeneralPurposeAgent:
        listings = OneSize(self.opened[0].session, NOWHERE)
        listings.tokens = self.tokens
        services, profile = self.opened
        services = replace(services, files=KeysAreBuckets(NOWHERE, session=services.session), listings=listings)
        profile = replace(
            profile,
            backend=Backend(lambda name, caller: Timeless(self.model), fetches_files=True, listed=True, facts=listings),
            rules=ApprovalRules(self.policy, self.claims, clock=self.clock.now),
        )
        seal = StateSeal(self.secret)
        return GeneralPurposeAgent(NOWHERE, "Be helpful.", list(self.tools), opened=(services, profile), seal=seal)


@asynccontextmanager
async def agents(model: ChatModel, *tools: BaseTool, **options: Any) -> AsyncGenerator[Agents]:
    services, profile = opened(SETTINGS)
    try:
        yield Agents(model, tools, (services, profile), **options)
    finally:
        await services.close()


@dataclass
class Chat:
    """One person's chat; `messages` is what it keeps: texts, and the states of answers."""

    agents: Agents
    key: str = "ann"
    conversation_id: str = "chat-1"
    configuration: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    async def say(self, text: str, form_value: Any = None) -> RecordingChoice:
        """Send a message and keep the answer."""
        self._add(text, form_value)
        return await self.answer()

    async def press(self, button: str, asked: RecordingChoice, version: Version = "1.x") -> RecordingChoice:
        """Press the one button under the answer whose title begins so, in this version of DIAL Chat."""
        return await self.say(*pressed(button, asked.form_schema, version))

    async def answer(self) -> RecordingChoice:
        """Request an answer to the last message, and keep it."""
        choice = RecordingChoice()
        await self._handled(choice)
        self._keep(choice)
        return choice

    async def leave(self, text: str, when: Callable[[int], bool]) -> RecordingChoice:
        """Send a message and go away at the first step of the event loop for which `when` is true, or at the end."""
        self._add(text, None)
        choice, steps = RecordingChoice(), 0
        answering = asyncio.ensure_future(self._handled(choice))
        while not answering.done() and not when(steps):
            steps += 1
            await asyncio.sleep(0)
        answering.cancel()
        await asyncio.wait({answering})
        if not answering.cancelled():
            await answering
        self._keep(choice)
        return choice

    def edit(self, position: int, text: str) -> None:
        """Edit a message of the user; the chat drops everything after it."""
        del self.messages[position:]
        self._add(text, None)

    def _add(self, text: str, form_value: Any) -> None:
        custom = {"custom_content": {"form_value": form_value}} if form_value is not None else {}
        self.messages.append({"role": "user", "content": text, **custom})

    def _keep(self, choice: RecordingChoice) -> None:
        custom = {"custom_content": {"state": choice.state}} if choice.state is not None else {}
        self.messages.append({"role": "assistant", "content": choice.content, **custom})

    async def _handled(self, choice: RecordingChoice) -> None:
        request = Request(
            messages=cast("Any", self.messages),
            headers={},
            api_key_secret=SecretStr(self.key),
            deployment_id="agent",
            conversation_id=self.conversation_id,
            original_request=fastapi.Request({"type": "http"}),
            custom_fields=cast("Any", {"configuration": self.configuration}) if self.configuration else None,
        )
        response = RecordedResponse()
        await self.agents.agent().handle_request("model", cast("Choice", choice), request, cast("Response", response))
        choice.usage = response.usage
