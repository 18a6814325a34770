"""The chat part of the `aidial-client` smoke list, with a real aidial-sdk application behind Core."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.asgi import served_asgi
from tests.support.core import local_core
from tests.support.core_peers import config, dialling

os.environ.setdefault("PYDANTIC_V2", "True")

from aidial_sdk import DIALApp
from aidial_sdk.chat_completion import ChatCompletion, Request, Response
from aidial_sdk.exceptions import InvalidRequestError

MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]

pytestmark = pytest.mark.local_core


class Echo(ChatCompletion):
    """Repeats the last message in two pieces, with a stage; `fail` makes it refuse."""

    async def chat_completion(self, request: Request, response: Response) -> None:
        text = request.messages[-1].text()
        if text == "fail":
            raise InvalidRequestError("developer's words", display_message="Say something else")
        with response.create_single_choice() as choice:
            with choice.create_stage("Listening") as stage:
                stage.append_content(request.headers["X-Foo"])
            choice.append_content("You said: ")
            choice.append_content(text)


@asynccontextmanager
async def echo() -> AsyncGenerator[str]:
    """The endpoint of a running SDK application."""
    app = DIALApp()
    app.add_chat_completion("echo", Echo())
    async with served_asgi(app, lifespan="off") as url:
        yield f"{url}/openai/deployments/echo/chat/completions"


async def test_13_18_aidial_client_chats_streaming_and_not(tmp_path: Path) -> None:
    async with (
        echo() as endpoint,
        local_core(config({"echo": endpoint}), tmp_path) as core,
        dialling(core) as dial,
    ):
        create = dial.chat.completions.create
        headers = {"X-Foo": "forwarded"}
        block = await create(deployment_name="echo", messages=MESSAGES, stream=False, extra_headers=headers)
        assert block.choices[0].message.content == "You said: Hello"
        pieces: list[str] = []
        stages: list[str] = []
        async for chunk in await create(deployment_name="echo", messages=MESSAGES, stream=True, extra_headers=headers):
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                custom = choice.delta.custom_content
                stages += [stage.content or "" for stage in (custom.stages or [])] if custom else []
        assert "".join(pieces) == "You said: Hello"
        assert "".join(stages) == "forwarded"


async def test_13_18_the_client_sees_the_texts_of_application_and_core_errors(tmp_path: Path) -> None:
    from aidial_client import DialException

    async with (
        echo() as endpoint,
        local_core(config({"echo": endpoint}), tmp_path) as core,
        dialling(core) as dial,
    ):
        create = dial.chat.completions.create
        with pytest.raises(DialException) as own:
            await create(deployment_name="echo", messages=[{"role": "user", "content": "fail"}], stream=False)
        assert (own.value.status_code, own.value.display_message) == (400, "Say something else")
        with pytest.raises(DialException) as cores:
            await create(deployment_name="unheard-of", messages=MESSAGES, stream=False)
        assert (cores.value.status_code, cores.value.message) == (404, "Unknown application: unheard-of")
