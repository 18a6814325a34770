"""The component `conversation.openai`: what it sends to its endpoint, and what it makes of the answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from dapr.proto import api_v1
from google.protobuf.json_format import MessageToDict

Prompt = Sequence[Mapping[str, Any]]


class Failed(Exception):
    """The provider's failure, in the component's words."""


def chat_body(request: api_v1.ConversationRequestAlpha2, prompt: Prompt, model: str) -> dict[str, Any]:
    """The body of the request; without a temperature the component sends 0."""
    sent = ("role", "content", "tool_calls", "tool_call_id")
    body: dict[str, Any] = {
        "model": model,
        "messages": [{key: message[key] for key in sent if key in message} for message in prompt],
        "temperature": request.temperature,
    }
    if request.tools:
        body["tools"] = [{"type": "function", **MessageToDict(tool)} for tool in request.tools]
        body["tool_choice"] = request.tool_choice or "auto"
    elif request.tool_choice:
        body["tool_choice"] = request.tool_choice
    return body


async def choices_from(endpoint: Mapping[str, str], body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of the answer that comes from `url` with its `key`, as the peer's script has them.

    Raises:
        Failed: the provider refuses, or is not there.
    """
    headers = {"Authorization": f"Bearer {endpoint['key']}", "User-Agent": "dapr/1.18.3 langchaingo/v0.1.15"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{endpoint['url']}/chat/completions", json=body) as response,
        ):
            answer = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError):
        raise Failed("network error: failed to reach API server") from None
    if response.status != 200:
        raise Failed(f"API returned unexpected status code: {response.status}: {answer['error']['message']}")
    return [_choice(choice) for choice in answer["choices"]]


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
    return {"text": message["content"] or "", "calls": calls, "reason": choice["finish_reason"]}
