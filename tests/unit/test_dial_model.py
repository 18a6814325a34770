"""A DIAL deployment is called with the key and headers of one request, and its attachments become deltas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from task.conversation.messages import Attachment, user
from task.errors import ProviderError
from task.llm.base import AttachmentDelta, Finish, ModelOptions, TextDelta
from task.llm.dial import DialChatModel
from task.llm.scripted import says
from task.llm.transport import new_session
from tests.support.upstream import Answer, openai_upstream, plain_error


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


async def test_the_deployment_is_called_at_its_address_with_key_and_headers(session: aiohttp.ClientSession) -> None:
    headers = {"X-CONVERSATION-ID": "conversations%2Fb%2Fx", "traceparent": "00-1-2-01"}
    async with openai_upstream(says("1175"), api_key="per-request-key") as peer:
        model = DialChatModel(session, f"{peer.endpoint}/", "gpt-4o", "per-request-key", headers, "2024-02-01")
        assert model.name == "gpt-4o"
        answer = [delta async for delta in model.stream([user("25*47?")], [], ModelOptions())]
    assert answer[0] == TextDelta("1175")
    (request,) = peer.requests
    assert (request.path, request.query) == (
        "/openai/deployments/gpt-4o/chat/completions", {"api-version": "2024-02-01"}
    )  # fmt: skip
    assert request.headers["api-key"] == "per-request-key"
    assert request.headers["x-conversation-id"] == "conversations%2Fb%2Fx"
    assert request.headers["traceparent"] == "00-1-2-01"
    assert request.body["model"] == "gpt-4o"


async def test_a_deployment_in_a_bucket_keeps_its_slashes_and_escapes_the_rest(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(says("ok")) as peer:
        model = DialChatModel(session, peer.endpoint, "applications/b1/my agent?", "k")
        assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]
    assert peer.requests[0].path == "/openai/deployments/applications/b1/my agent?/chat/completions"
    assert peer.requests[0].query == {}


async def test_attachments_of_the_answer_become_deltas(session: aiohttp.ClientSession) -> None:
    item = {"index": 0, "type": "image/png", "title": "A cat", "url": "files/b/cat.png", "data": None, "foreign": 1}
    delta = {"content": "Here", "custom_content": {"attachments": [item], "stages": [{"index": 0, "name": "x"}]}}
    chunk = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    async with openai_upstream(Answer((f"data: {chunk}\n\ndata: [DONE]\n\n".encode(),))) as peer:
        model = DialChatModel(session, peer.endpoint, "dall-e-3", "k")
        answer = [delta async for delta in model.stream([user("a cat")], [], ModelOptions())]
    attachment = Attachment(type="image/png", title="A cat", url="files/b/cat.png")
    assert answer == [TextDelta("Here"), AttachmentDelta(attachment), Finish("stop")]


async def test_the_plain_text_of_an_error_from_core_is_kept_for_the_log(session: aiohttp.ClientSession) -> None:
    async with openai_upstream(plain_error(404, "Unknown application: gpt-9 for key secret-key")) as peer:
        model = DialChatModel(session, peer.endpoint, "gpt-9", "secret-key")
        with pytest.raises(ProviderError, match="does not know the model") as caught:
            assert [delta async for delta in model.stream([user("hi")], [], ModelOptions())]
    assert (caught.value.status_code, caught.value.text) == (404, "Unknown application: gpt-9 for key ***")
