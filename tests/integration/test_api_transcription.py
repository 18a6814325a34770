"""Speech becomes text by the operator's deployment: OpenAI's endpoint, or a chat model behind DIAL Core."""

from __future__ import annotations

from email.message import Message
from email.parser import BytesParser
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from task.api import page
from task.errors import SettingsError
from task.product import check
from task.settings import Settings
from tests.support.core_peers import DONE, answers, chunk, peer, streams
from tests.support.http_api import Api, Reply, http_api
from tests.support.product import product

SOUND = b"\x1aE\xdf\xa3" + bytes(range(256)) * 5000  # with the zeros and brackets that JSON's guard would refuse


async def sent(api: Api, content: bytes = SOUND, kind: str = "audio/webm") -> Reply:
    form = aiohttp.FormData()
    form.add_field("file", BytesIO(content), filename="recording", content_type=kind)
    return await api.call("POST", "/transcription", data=form)


def parts(headers: Any, body: bytes) -> dict[str, Message]:
    """The fields of a form, read by another parser than the sender's."""
    whole = BytesParser().parsebytes(f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body)
    return {str(part.get_param("name", header="content-disposition")): part for part in whole.get_payload()}  # type: ignore[union-attr]


async def test_openais_endpoint_gets_the_recording_and_its_text_comes_back(tmp_path: Path) -> None:
    on: dict[str, Any] = {"http": {"transcription": "whisper-1"}}
    async with (
        peer(answers(body={"text": " Good morning. "})) as server,
        http_api(tmp_path=tmp_path, openai_base_url=f"{server.url}/v1", **on) as api,
    ):
        reply, start, facts = await sent(api), await api.get("/"), await api.get("/page")
    assert (reply.status, reply.json) == (200, {"text": "Good morning."})
    assert "microphone=(self)" in start.headers["Permissions-Policy"]
    assert facts.json["transcription"] is True
    assert server.last.url == "/v1/audio/transcriptions"
    assert server.last.headers["Authorization"] == "Bearer sk-test"
    form = parts(server.last.headers, server.last.body)
    assert form["model"].get_payload(decode=True) == b"whisper-1"
    assert form["file"].get_payload(decode=True) == SOUND
    assert (form["file"].get_content_type(), form["file"].get_filename()) == ("audio/webm", "recording.webm")


@pytest.mark.fault("web page: voice input where no deployment is named, or with a backend that has none")
async def test_without_a_deployment_there_is_no_voice_input(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        reply, start, facts = await sent(api), await api.get("/"), await api.get("/page")
    assert (reply.status, facts.json["transcription"]) == (404, False)
    assert "AGENT_HTTP__TRANSCRIPTION" in reply.error["message"]
    assert "microphone=()" in start.headers["Permissions-Policy"]


@pytest.mark.fault(
    "web page: a recording that is empty, of another kind or too long, or that the transcribing server refuses"
    " or answers wrongly"
)
async def test_what_is_no_recording_and_what_the_server_answers_wrongly_are_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RECORDING_BYTES", 2 * 10**6)

    async def wrong(request: web.Request) -> web.StreamResponse:
        text = (await request.read()).decode(errors="replace")
        return web.json_response({"error": {"message": "bad format"}}, status=400) if "ogg" in text else web.Response()

    async with peer(wrong) as server:
        settings: dict[str, Any] = {"openai_base_url": server.url, "http": {"transcription": "whisper-1"}}
        async with http_api(tmp_path=tmp_path, **settings) as api:
            refused = [
                await sent(api, b""),
                await sent(api, b"hello", "text/plain"),
                await sent(api, bytes(2 * 10**6 + 1)),
                await sent(api, kind="audio/ogg"),
                await sent(api),
            ]
            unsent = await api.post("/transcription", {"file": "text"})
    assert [reply.status for reply in refused] == [400, 400, 413, 400, 502]
    assert all(reply.error["message"] for reply in refused)
    assert unsent.status == 415


async def test_behind_dial_core_a_chat_model_hears_the_recording_as_an_attachment(tmp_path: Path) -> None:
    heard = streams(chunk({"role": "assistant", "content": "Good "}), chunk({"content": "morning."}, "stop"), DONE)
    async with peer(heard) as listener:
        models = {"listener": {"type": "chat", "endpoint": f"{listener.url}/chat/completions"}}
        more: dict[str, Any] = {"dial_api_key": "key-one", "http": {"transcription": "listener"}}
        async with product(tmp_path=tmp_path, models=models, **more) as running, aiohttp.ClientSession() as session:
            reply = await sent(Api(running.agent_url, running.upstream, session), SOUND[:2000])
    assert reply.json == {"text": "Good morning."}
    [attachment] = listener.last.json["messages"][-1]["custom_content"]["attachments"]
    assert (attachment["type"], attachment["title"]) == ("audio/webm", "recording.webm")


@pytest.mark.fault("web page: voice input where no deployment is named, or with a backend that has none")
def test_a_backend_without_transcription_is_refused_at_the_start(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"backend": "ollama", "data_dir": tmp_path, "http": {"transcription": "whisper"}}
    )  # fmt: skip
    with pytest.raises(SettingsError, match="ollama has no transcription"):
        check(settings)
