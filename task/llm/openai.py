"""Chat models behind an OpenAI-compatible endpoint, and recordings as text."""

import base64
import io
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

from task.conversation.messages import Attachment, Message, Role
from task.errors import ProviderError
from task.llm.base import Accumulator, ChatModel, Delta, ModelOptions, ToolSchema
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import ProviderProfile, RequestBodies, profile_for
from task.llm.failures import CONNECTION_FAILED, http_failure
from task.llm.text_calls import with_text_calls
from task.llm.transport import RETRIES, Retries, answer_bytes, listed

_TRANSCRIBE = "Write down word for word what is said in the attached recording. Answer with these words only."
TRANSCRIPTION_TIMEOUT = aiohttp.ClientTimeout(total=120)


@dataclass(frozen=True, slots=True)
class OpenAIChatModel:
    """`model` at `base_url`, the part before `/chat/completions`; a query such as `?api-version=…` is kept.

    Without `profile` the address and the model's name determine it.
    """

    session: aiohttp.ClientSession
    base_url: str
    api_key: str
    name: str
    profile: ProviderProfile | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    retries: Retries = RETRIES
    bodies: RequestBodies = field(default_factory=RequestBodies, compare=False, repr=False)

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        profile = self.profile or profile_for(self.name, self.base_url)
        body = self.bodies.body(self.name, messages, tools, options, profile)
        url = completions_url(self.base_url, profile.api_version)
        headers = {**self.headers, **_authorization(self.api_key, profile)}
        deltas = chat_deltas(answer_bytes(self.session, url, body, headers, self.retries), (self.api_key,))
        return with_text_calls(deltas, messages, tools, options) if profile.text_calls else deltas


async def listed_models(session: aiohttp.ClientSession, base_url: str, api_key: str) -> list[str]:
    """The ids that the endpoint lists; none where it does not list them in time."""
    headers = _authorization(api_key, profile_for("", base_url))
    found = await listed(session, _url(base_url, "models"), headers, "data")
    return [str(item["id"]) for item in found or () if "id" in item]


@dataclass(frozen=True, slots=True)
class Recording:
    content: bytes
    type: str

    @property
    def filename(self) -> str:
        return f"recording.{self.type.rpartition('/')[2]}"  # servers recognise the format by the name


async def transcription(
    session: aiohttp.ClientSession, base_url: str, api_key: str, deployment: str, recording: Recording
) -> str:
    """The words of a recording, by the endpoint's `/audio/transcriptions`.

    Raises:
        ProviderError: it refuses the recording, or does not answer.
    """
    form = aiohttp.FormData({"model": deployment, "response_format": "json"})
    form.add_field("file", io.BytesIO(recording.content), filename=recording.filename, content_type=recording.type)
    headers = _authorization(api_key, profile_for("", base_url))
    url = _url(base_url, "audio/transcriptions")
    try:
        async with session.post(url, data=form, headers=headers, timeout=TRANSCRIPTION_TIMEOUT) as response:
            body = await response.read()
            if response.status != 200:
                raise http_failure(response.status, body, response.headers, (api_key,))
            return str(orjson.loads(body)["text"]).strip()
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise ProviderError("no transcription came back", code=CONNECTION_FAILED) from error


async def transcribed_by(model: ChatModel, recording: Recording) -> str:
    """The words of the recording. DIAL Core passes on chat completions, but not `/audio/transcriptions`.

    Raises:
        ProviderError: the model does not answer.
    """
    data = base64.b64encode(recording.content).decode()
    sound = Attachment(recording.type, recording.filename, data=data)
    question, answer = Message(Role.USER, _TRANSCRIBE, attachments=(sound,)), Accumulator()
    async for delta in model.stream([question], (), ModelOptions()):
        answer.add(delta)
    return answer.text.strip()


def completions_url(base_url: str, api_version: str | None = None) -> str:
    """The endpoint's address; `api_version` becomes a query parameter unless the address contains one."""
    address, _, query = base_url.partition("?")
    if api_version and "api-version=" not in query and "/openai/v1" not in address:
        query = f"{query}&api-version={api_version}".lstrip("&")
    return _url(f"{address}?{query}", "chat/completions")


def _url(base_url: str, path: str) -> str:
    address, _, query = base_url.partition("?")
    return f"{address.rstrip('/')}/{path}" + (f"?{query}" if query else "")


def _authorization(api_key: str, profile: ProviderProfile) -> dict[str, str]:
    if not api_key:
        return {}
    return {profile.key_header: f"Bearer {api_key}" if profile.key_header == "Authorization" else api_key}
