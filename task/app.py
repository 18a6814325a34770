"""The DIAL door: GeneralPurposeAgentApplication."""

from __future__ import annotations

import hmac
import logging
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from aidial_sdk import HTTPException
from aidial_sdk.chat_completion import ChatCompletion, Request, Response
from aidial_sdk.deployment.configuration import ConfigurationRequest
from aidial_sdk.deployment.rate import RateRequest
from aidial_sdk.exceptions import InvalidRequestError

from task.agent import GeneralPurposeAgent
from task.conversation.messages import user
from task.conversation.state import StateSeal
from task.core_client.models import Caller, calling, nobody
from task.dial.request import CallerLimit, DialRequest, configuration_schema, identified
from task.errors import (
    InvalidRequest,
    NotFound,
    ProviderError,
    StoreUnavailable,
    ToolError,
    TooManyRuns,
    reference_of,
    with_reference,
)
from task.llm.failures import reported
from task.product import Profile, Services, opened
from task.product.applications import STRICTER, applied, fits
from task.product.opening import seal_of
from task.runs.traces import TraceStart, recorded
from task.settings import Settings, load_settings
from task.store.trace_records import COMMENT_CHARS
from task.tools.base import BaseTool

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics

logger = logging.getLogger(__name__)

RESPONSE = "chatcmpl-"
OWNER = ""  # no key has it: traces of DIAL requests are an operator's to read


class GeneralPurposeAgentApplication(ChatCompletion):
    """Answers DIAL chat completions. Source: API reference, GeneralPurposeAgentApplication.

    `tools` is empty until the first request has made them.
    """

    def __init__(self, *, settings: Settings | None = None, metrics: PrometheusMetrics | None = None) -> None:
        self.settings = settings or load_settings()
        self.tools: list[BaseTool] = []
        self._metrics = metrics

    @cached_property
    def opened(self) -> tuple[Services, Profile]:
        """What the process shares and its agent, opened inside the event loop."""
        return opened(self.settings, metrics=self._metrics, seal=self.seal)

    @cached_property
    def seal(self) -> StateSeal:
        """The seal of the hidden state."""
        return seal_of(self.settings)

    @cached_property
    def _limit(self) -> CallerLimit:
        return CallerLimit(self.settings.http.runs_per_caller, self.opened[0].redis)

    async def chat_completion(self, request: Request, response: Response) -> None:
        """Parse the request, then answer it into a single choice; every failure reaches the caller as a sentence."""
        services, profile = self.opened
        try:
            parsed = DialRequest.parse(request)
            seal = self.seal
            if parsed.application or parsed.properties is not None:
                profile, parsed, seal = await self._of_application(parsed)
            pressed = (parsed.configuration.starter, *(item.form_value for item in parsed.incoming))
            if not profile.starters and any(value is not None for value in pressed):
                parsed = await parsed.with_sample(services.files)
            await profile.context_prompt(parsed.configuration.persona or "")
        except (InvalidRequest, ToolError) as error:
            if request.stream and self.settings.errors_in_stream:
                response.create_single_choice().open()
            raise _failure(error) from error
        if not self.tools:
            self.tools = await self._create_tools()
        deployment = parsed.configuration.model or profile.model
        warnings = profile.without_effect(deployment, parsed.options)
        # Of our own making, because a rating names it: knowing the id is enough to rate the answer.
        response.set_response_id(response_id := f"{RESPONSE}{uuid4()}")
        asked, content = (user(parsed.incoming[-1].text()),), self.settings.trace_content
        start = TraceStart(OWNER, "dial", deployment, parsed.options, asked, len(parsed.incoming) - 1, content=content)
        start = replace(start, warnings=warnings, response_id=response_id)
        with response.create_single_choice() as choice:
            try:
                async with recorded(services.store, start) as observer:
                    agent = GeneralPurposeAgent(
                        services.endpoint,
                        profile.prompt,
                        self.tools,
                        opened=(services, profile),
                        seal=seal,
                        observer=observer,
                        limit=self._limit,
                    )
                    await agent.answer(deployment, choice, parsed, response)
            except HTTPException:
                raise
            except Exception as error:
                raise _failure(error, deployment) from error

    async def _of_application(self, request: DialRequest) -> tuple[Profile, DialRequest, StateSeal]:
        chosen, asked = request.configuration, (request.api_key, request.application, request.properties)
        profile = await applied(*self.opened, *asked, chosen.model or "")
        # What is kept of a conversation in one application is not found from another, also in the same chat.
        place = profile.application.encode()
        here = sha256(place + b"\n" + (request.conversation_id or uuid4().hex).encode()).hexdigest()[:32]
        mode = {"permission_mode": max(profile.mode, chosen.permission_mode, key=STRICTER)}
        request = replace(request, conversation_id=here, configuration=chosen.model_copy(update=mode))
        if (model := chosen.model or profile.model).startswith("applications/"):  # which may be made of the agent, too
            caller = calling(
                Caller(request.api_key, nobody, headers=request.headers, application=profile.application), model
            )
            request = replace(request, headers=caller.headers)
        return profile, request, StateSeal(hmac.digest(self.seal.secret, place, "sha256"))

    async def rate_response(self, request: RateRequest) -> None:
        """Keep the rating with the trace of the answer; one of an answer that left no trace is only logged."""
        name, rating = request.response_id or "", "up" if request.rate else "down"
        logger.info("answer %s was rated %s", name, rating)
        store = await self.opened[0].store.get_if_available()
        if store is None or not name.startswith(RESPONSE):
            return
        comment = (request.model_extra or {}).get("comment")
        kept = comment[:COMMENT_CHARS] if isinstance(comment, str) and self.settings.trace_content else None
        try:
            await store.traces.rate(OWNER, name, rating, kept)
        except (NotFound, StoreUnavailable) as error:
            logger.warning("the rating of %s is not kept: %s", name, error)

    async def configuration(self, request: ConfigurationRequest) -> dict[str, Any]:
        """What the user may choose for a conversation, as DIAL's JSON schema, with conversation starters."""
        caller = identified(request)
        key = caller.core_key if caller is not None else request.api_key
        services, profile = self.opened
        models = await profile.listed_models(key) if profile.backend.listed else []
        if application := request.dial_application_id:
            try:
                given = request.unreliable_dial_application_properties
                profile = await applied(services, profile, key, application, given)
            except InvalidRequest as error:
                raise _failure(error) from error
            models = [name for name in models if fits(services.applications.bounds.models, name)]
        context = profile.context
        personas = list(await context.personas()) if context is not None else []
        return configuration_schema(models, personas, profile)

    async def _create_tools(self) -> list[BaseTool]:
        return list(self.opened[1].tools)

    async def _get_mcp_tools(self, url: str) -> list[BaseTool]:
        """The tools of the MCP server at `url`. Source: API reference, GeneralPurposeAgentApplication.

        Kept for the documented name: requests get the tools of all servers of the settings through the product's hub.

        Raises:
            ToolError: the server cannot be asked.
        """
        return await self.opened[0].mcp.tools_at(url)


def _failure(error: Exception, deployment: str = "") -> HTTPException:
    if isinstance(error, ProviderError):
        reference, shown = reported(error, deployment)
        text, code = f"{deployment}: {error} (reference {reference})", error.code or str(error.status_code or 500)
        # Core takes 429, 502, 503 and 504 for its own affair and throws the body away: the status is always 500.
        return HTTPException(text, 500, code=code, display_message=shown)
    reference = reference_of(error)
    if isinstance(error, InvalidRequest | ToolError):
        logger.info("a request was refused (reference %s, %s)", reference, type(error).__name__)
        shown = with_reference(str(error), reference)
        if isinstance(error, TooManyRuns):
            return HTTPException(shown, 500, code="rate_limit_exceeded", display_message=shown)
        return InvalidRequestError(str(error), display_message=shown)
    logger.error("a request failed unexpectedly (reference %s)", reference, exc_info=error)
    shown = with_reference("Something went wrong on our side. Try again.", reference)
    return HTTPException(f"Unexpected failure (reference {reference})", 500, display_message=shown)
