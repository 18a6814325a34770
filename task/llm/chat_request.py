"""Build chat completion requests in OpenAI's shape, adapted to each provider's differences."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import is_
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from task.conversation.messages import Message, Role
from task.llm.base import REQUEST_FIELDS, ModelOptions, ToolSchema


@dataclass(frozen=True, slots=True)
class ProviderProfile:
    """How requests to one kind of provider differ from OpenAI's basic form.

    `refused`: fields of `ModelOptions` (or of its `extra`) that are not sent. `empty_content`: how missing text beside
    tool calls is sent. `replays_reasoning`: whether `reasoning_content` is sent with a message that has calls.
    `call_extra`: fields added to every call of the history. `key_header`: `Authorization` (as bearer), or a header
    that has the key alone. `api_version`: sent unless the address contains one. `text_calls`: whether calls in its
    models' text are recognised.
    """

    name: str
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    refused: frozenset[str] = frozenset({"scrub_pii"})  # Dapr's
    system_role: Role = Role.SYSTEM
    empty_content: Literal["absent", "text"] = "absent"
    replays_reasoning: Literal["never", "present", "always"] = "never"
    call_extra: Mapping[str, Any] | None = None
    streams_usage: bool = True
    key_header: str = "Authorization"
    api_version: str | None = None
    text_calls: bool = False

    def dropped(self, options: ModelOptions) -> tuple[str, ...]:
        """The given options that this provider does not take, for the trace."""
        # Every client may mark a message for Dapr, whichever backend answers it: nothing is reported for that.
        names = self.refused - {"scrub_pii"}
        given = {name for name in names if getattr(options, name, options.extra.get(name)) is not None}
        if options.tool_choice in ("auto", "none"):  # the tools that are offered say as much
            given.discard("tool_choice")
        return tuple(sorted(given))


_SAMPLING = frozenset({"temperature", "top_p"})
_ONLY_WITH_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})
_OF_HOSTED_MODELS = frozenset(
    {"logit_bias", "user", "verbosity", "service_tier", "prompt_cache_key", "prompt_cache_options", "safety_identifier"}
)
_NOT_OPENAIS = frozenset({"top_k", "scrub_pii"})  # strict servers answer with a 400

GENERIC = ProviderProfile("generic")
OPENAI = ProviderProfile("openai", max_tokens_field="max_completion_tokens", refused=_NOT_OPENAIS)
REASONING = ProviderProfile(
    "reasoning",
    max_tokens_field="max_completion_tokens",
    refused=_SAMPLING | _NOT_OPENAIS | {"stop", "presence_penalty", "frequency_penalty", "logit_bias"},
    system_role=Role.DEVELOPER,
)
AZURE = ProviderProfile("azure", key_header="api-key", api_version="2024-10-21", refused=_NOT_OPENAIS)
GEMINI = ProviderProfile(
    "gemini",
    refused=_NOT_OPENAIS | {"seed", "frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls"},
    # Gemini 3 refuses calls without its signature; this is the documented placeholder for calls whose signature was not
    # kept: https://ai.google.dev/gemini-api/docs/thought-signatures
    call_extra=MappingProxyType(
        {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
    ),
)
# Anthropic accepts these and ignores them: https://platform.claude.com/docs/en/api/openai-sdk
ANTHROPIC = ProviderProfile(
    "anthropic",
    refused=_NOT_OPENAIS | {"seed", "reasoning_effort", "presence_penalty", "frequency_penalty", "logit_bias"},
)
# https://api-docs.deepseek.com/guides/thinking_mode: a call without its reasoning, even if empty, is a 400.
DEEPSEEK = ProviderProfile("deepseek", empty_content="text", replays_reasoning="always")
THINKING = ProviderProfile("thinking", replays_reasoning="present")
BASIC = ProviderProfile("basic", empty_content="text", streams_usage=False)

# Servers of open models: those parse the calls of some models only, and of none completely.
OLLAMA = ProviderProfile("ollama", refused=_ONLY_WITH_TOOLS | _OF_HOSTED_MODELS | {"scrub_pii"}, text_calls=True)
DAPR = ProviderProfile(
    "dapr", refused=REQUEST_FIELDS.union(_NOT_OPENAIS) - {"temperature", "max_tokens", "response_format", "scrub_pii"}
)
LM_STUDIO, LLAMA_CPP, VLLM = (ProviderProfile(name, text_calls=True) for name in ("lm-studio", "llama.cpp", "vllm"))

_FORMS = (GENERIC, OPENAI, REASONING, AZURE, GEMINI, ANTHROPIC, DEEPSEEK, THINKING, BASIC)
PROFILES: Mapping[str, ProviderProfile] = MappingProxyType(
    {profile.name: profile for profile in (*_FORMS, OLLAMA, LM_STUDIO, LLAMA_CPP, VLLM)}
)

_REASONING_MODEL = re.compile(r"(^|[/.])(o[1-9]|gpt-5)(?!.*chat)($|[-.\d])")
_THINKING_MODEL = re.compile(r"deepseek|kimi|glm-|minimax", re.IGNORECASE)
_HOSTS = (
    ("api.openai.com", OPENAI),
    (".openai.azure.com", AZURE),
    (".cognitiveservices.azure.com", AZURE),
    ("generativelanguage.googleapis.com", GEMINI),
    ("api.anthropic.com", ANTHROPIC),
    ("api.deepseek.com", DEEPSEEK),
    ("api.moonshot.ai", DEEPSEEK),
    ("api.moonshot.cn", DEEPSEEK),
)
_HOSTED_MODEL = re.compile(r"(^|[/.])(chatgpt|gpt-[345]|o[1-9](-mini|-pro|-preview)?(?=$|-\d)|claude|gemini)")
_PORTS = {"11434": OLLAMA, "1234": LM_STUDIO, "8080": LLAMA_CPP, "8000": VLLM}


@lru_cache(maxsize=1_000)
def profile_for(model: str, base_url: str | None = None) -> ProviderProfile:
    """The profile for a model's name at an address; None is DIAL, where only the name is known.

    The host decides how a request is sent (for servers of open models their usual port, where gateways to hosted models
    listen too), a reasoning model's name which parameters it may contain.
    """
    address = urlsplit(base_url or "")
    host = address.hostname or ""
    profile = next((profile for ending, profile in _HOSTS if host == ending or host.endswith(ending)), GENERIC)
    if profile is GENERIC and address.path.rstrip("/") == "/v1" and not _HOSTED_MODEL.search(model.lower()):
        profile = _PORTS.get(address.netloc.rpartition(":")[2], GENERIC)
    if profile.text_calls:
        replays = THINKING.replays_reasoning if _THINKING_MODEL.search(model) else "never"
        return replace(profile, replays_reasoning=replays)
    if _REASONING_MODEL.search(model.lower()):
        name = REASONING.name if profile in (GENERIC, OPENAI) else f"{profile.name}-{REASONING.name}"
        return replace(REASONING, name=name, key_header=profile.key_header, api_version=profile.api_version)
    if profile is GENERIC and _THINKING_MODEL.search(model):
        return THINKING
    return profile


_OPTIONS = ("temperature", "top_p", "stop", "seed", "reasoning_effort")
_SYSTEM = Role.SYSTEM  # an enum member is slow to look up
_PLAIN_ROLES = {role: str(role) for role in (Role.USER, Role.ASSISTANT)}


class _JsonList:
    """A list as JSON. The next one usually begins with the same objects, which are not encoded again."""

    _items: Sequence[Any] = ()
    _json = b""

    def encoded(self, items: Sequence[Any], plain: Callable[[Any], Any]) -> bytes:
        known, json = len(self._items), self._json
        if known > len(items) or not all(map(is_, self._items, items)):
            known, json = 0, b""
        if added := [plain(item) for item in items[known:]]:
            json = b",".join(filter(None, (json, orjson.dumps(added)[1:-1])))
        self._items, self._json = tuple(items), json
        return json


class RequestBodies:
    """Builds the requests of one run, each of which repeats the tools and the messages of the one before."""

    _asked: tuple[object, ...] = ()  # what stands around the messages was made for

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        options: ModelOptions,
        profile: ProviderProfile,
    ) -> bytes:
        """The request as JSON, without nulls: DIAL Core 0.25 answers them with an empty 400."""
        asked = profile, model, tools, options
        if not self._asked or profile is not self._asked[0]:
            self._messages = _JsonList()
        if not self._asked or not all(map(is_, asked, self._asked)):
            self._asked, self._after = asked, orjson.dumps(_beside(tools, options, profile))[1:]
            self._before = orjson.dumps({"model": model})[:-1]
        encoded = self._messages.encoded(messages, partial(_wire_message, profile=profile))
        return b'%b,"messages":[%b],%b' % (self._before, encoded, self._after)


def _beside(tools: Sequence[ToolSchema], options: ModelOptions, profile: ProviderProfile) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": True}
    if profile.streams_usage:
        body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    given = {name: getattr(options, name) for name in _OPTIONS}
    given |= {profile.max_tokens_field: options.max_tokens, "tool_choice": options.tool_choice}
    given |= options.extra
    withheld = profile.refused if tools else profile.refused.union(_ONLY_WITH_TOOLS)
    return body | {name: value for name, value in given.items() if value is not None and name not in withheld}


def _wire_message(message: Message, profile: ProviderProfile) -> dict[str, Any]:
    plain = type(message) is Message and not (message.tool_calls or message.attachments or message.name)
    if plain and message.role in _PLAIN_ROLES:  # nearly all of a long history
        return {"role": _PLAIN_ROLES[message.role], "content": message.content or ""}
    wire = message.as_dict()
    if message.tool_calls:
        if profile.empty_content == "text" and message.content is None:
            wire["content"] = ""
        reasoning = message.reasoning_content
        if profile.replays_reasoning == "always" or (profile.replays_reasoning == "present" and reasoning):
            wire["reasoning_content"] = reasoning or ""
        if profile.call_extra:
            wire["tool_calls"] = [{**call.as_dict(), **profile.call_extra} for call in message.tool_calls]
    elif message.role is _SYSTEM:
        wire["role"] = profile.system_role.value
    elif message.attachments and message.role is Role.USER:
        # Only requests to a DIAL deployment have files beside the text.
        wire["custom_content"] = {"attachments": [item.as_dict() for item in message.attachments]}
    return wire
