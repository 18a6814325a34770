"""The same conversation looks the same whichever provider the console's configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.contract.matrix.backends import BACKENDS, CONTEXT, MODEL
from tests.support.api_client import NOTES
from tests.support.console import console
from tests.support.console_journey import normalised

SCRIPT = (
    says("**Hello**, what is it?"),
    wants("calculator", expression="25*47"),
    says("- 25 × 47 = 1175"),
    says("I will note it.") & wants("write_note", text="1175"),
    says("Noted."),
)
# Provider -> the peer that stands for it, and where the configuration says it is.
PROVIDERS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "openai": ("openai", lambda peer: f"{peer.url}/v1"),
    "gemini": ("openai", lambda peer: f"{peer.url}/v1"),
    "anthropic": ("openai", lambda peer: f"{peer.url}/v1"),
    "dial": ("dial", lambda peer: peer.url),
    "ollama": ("ollama", lambda peer: peer.url),
    "dapr": ("dapr", lambda peer: peer.address),
}


@pytest.mark.system
@pytest.mark.timeout(240)
async def test_the_transcript_of_a_conversation_is_that_of_every_provider(tmp_path: Path) -> None:
    transcripts = {provider: await transcript(provider, tmp_path / provider) for provider in PROVIDERS}
    assert "25 × 47 = 1175" in transcripts["openai"]
    assert transcripts == dict.fromkeys(PROVIDERS, transcripts["openai"])


async def transcript(provider: str, folder: Path) -> str:
    """What the terminal shows of the conversation."""
    name, address = PROVIDERS[provider]
    backend = BACKENDS[name]
    async with backend.peer() as peer:
        await backend.reset(peer)
        await peer.script(*SCRIPT)
        section = {"model": MODEL, "base_url": address(peer), "api_key": "sk-test"}
        if name == "ollama":
            section["num_ctx"] = str(CONTEXT)  # as it is loaded, because loading is shown
        config = {"llm": {"provider": provider, provider: section}, "tool_paths": [NOTES]}
        isolated = {"OLLAMA_LOCAL": peer.url} if name == "ollama" else {}  # the tests' environment names none
        async with console(folder, config=config, **isolated) as person:
            await person.say("Hi")
            await person.say("What is 25*47?")
            asked = await person.say("Note it.")
            assert asked.waits == ["write_note"], person.window.text()
            await person.decide(("approve", ""))
            await person.window.wait_for("Noted.")
            await person.type("/quit", until="Goodbye")
            assert await person.window.ended() == 0
            shown = person.window.text()
        assert len(await backend.requests(peer)) == len(SCRIPT)
    return normalised(shown[shown.index("> Hi") : shown.rindex("> /quit")], folder)
