"""One turn: pictures for models that see and for models that do not."""

from __future__ import annotations

from time import time
from typing import Any

import aiohttp
import pytest

from task.conversation.inputs import Incoming, user_message
from task.conversation.messages import Attachment, Role
from task.llm.scripted import ScriptedModel, says
from task.loop import SilentObserver
from task.permissions.gate import PriorDecisions
from task.permissions.grants import Grants
from task.product import Backend, Product
from task.settings import Settings
from task.tools.models import Caller
from task.turn import UNSEEN, TurnRequest, take_turn
from tests.support.choices import RecordingChoice
from tests.support.in_process import NOWHERE

PICTURE = Attachment("image/png", "cat.png", url="files/b/cat.png")


async def _somebody() -> str:
    return "somebody"


async def content_for(picture: Attachment, *, sees: bool) -> Any:
    """What a model is sent of a question with that attachment."""
    model = ScriptedModel(says("A cat."))
    async with aiohttp.ClientSession() as session:
        product = Product(Settings.model_validate({"dial_endpoint": NOWHERE}))
        product.session = session
        product.backend = Backend(lambda name, caller: model, fetches_files=True, listed=not sees)
        message = user_message(Incoming(Role.USER, "What is this?", (picture,)))
        request = TurnRequest(
            [message], Caller("key", _somebody), "model", PriorDecisions(Grants(time), "", ""), tools=()
        )
        outcome = await take_turn(product, request, RecordingChoice(), SilentObserver())
    assert outcome.status == "finished"
    return model.requests[0][-1].content


async def test_pictures_are_parts_for_a_model_that_sees() -> None:
    parts = await content_for(PICTURE, sees=True)
    assert parts[0]["text"].startswith("What is this?")
    assert parts[-1] == {"type": "image_url", "image_url": {"url": "files/b/cat.png"}}


async def test_other_models_get_a_sentence_about_pictures() -> None:
    content = await content_for(PICTURE, sees=False)
    assert isinstance(content, str)
    assert content.endswith(UNSEEN)
    assert "cannot see pictures" in content


@pytest.mark.parametrize("kind", ["image/svg+xml", "image/tiff"])
async def test_kinds_of_pictures_that_no_provider_takes_stay_files(kind: str) -> None:
    content = await content_for(Attachment(kind, "x", url="files/b/x"), sees=True)
    assert content == f"What is this?\n\nAttached files:\n- x ({kind}): files/b/x"
