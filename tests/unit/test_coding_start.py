"""How `dial-agent run` begins: what it refuses, and which models plan and code."""

from pathlib import Path
from typing import Any

import pytest

from task.cli.run import RunArguments, coding_models, run
from task.errors import InvalidRequest, SettingsError
from task.settings import load_settings
from tests.support.isolation import NO_OLLAMA
from tests.support.ollama import ollama_peer
from tests.support.ollama_peer import MODEL


@pytest.mark.fault(
    "coding: a task, a command or a workspace that is no text, an empty command, and a task beside `--resume`"
)
@pytest.mark.fault("coding: a home as a workspace")
@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (RunArguments(" "), "Write a task in quotes after `run`"),
        (RunArguments("Fix \udcff it."), "The task is not UTF-8 text"),
        (RunArguments("Fix it.", setup=""), "--setup is empty"),
        (RunArguments("Fix it.", verify=" "), "--verify is empty"),
        (RunArguments("Fix it.", setup="make \udcff"), "--setup is not UTF-8 text"),
        (RunArguments("Fix it.", verify="make \udcff"), "--verify is not UTF-8 text"),
        (RunArguments("Fix it.", workspace=Path("/\udcff")), "--workspace is not UTF-8 text"),
        (RunArguments("Fix it.", workspace=Path("~")), "--workspace: .*; --unsafe-workspace permits a wide one"),
        (RunArguments("Fix it.", resume="code_12345678"), "one of the two"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_in_one_sentence(
    given: RunArguments, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    with pytest.raises(InvalidRequest, match=refusal):
        run(settings, given)


async def chosen(folder: Path, **environ: str) -> tuple[str, str]:
    """How the planner and the coder are called with these variables."""
    settings = load_settings(environ={"HOME": str(folder), "OLLAMA_LOCAL": NO_OLLAMA, **environ}, directory=folder)
    planner, coder = await coding_models(settings, "local")
    await planner.services.close()
    await coder.services.close()
    return planner.label, coder.label


@pytest.mark.parametrize(
    ("environ", "labels"),
    [
        (
            {"PLANNER_MODEL": "openai:gpt-4o", "CODER_MODEL": "openai:gpt-4o-mini", "OPENAI_API_KEY": "sk"},
            ("gpt-4o (OpenAI API at api.openai.com)", "gpt-4o-mini (OpenAI API at api.openai.com)"),
        ),
        (
            {"OLLAMA_API_KEY": "key", "CODER_MODEL": "llama3.1:8b"},
            ("gpt-oss:20b (Ollama at ollama.com)", "llama3.1:8b (Ollama at 127.0.0.1:9)"),
        ),
        (
            {"TURBO_HOST": "http://127.0.0.1:9", "CODER_MODEL": "ollama:llama3.1:8b"},
            ("gpt-oss:20b (Ollama at 127.0.0.1:9)", "llama3.1:8b (Ollama at 127.0.0.1:9)"),
        ),
        (
            {"OPENAI_API_KEY": "sk", "DEPLOYMENT_NAME": "gpt-5"},
            ("gpt-5 (OpenAI API at api.openai.com)", "gpt-5 (OpenAI API at api.openai.com)"),
        ),
        (
            {"DIAL_ENDPOINT": "http://core:8080", "DIAL_API_KEY": "key", "DEPLOYMENT_NAME": "gpt-4o"},
            ("gpt-4o (DIAL Core at core:8080)", "gpt-4o (DIAL Core at core:8080)"),
        ),
    ],
)
async def test_named_models_are_used_and_the_local_products_where_none_is_named(
    environ: dict[str, str], labels: tuple[str, str], tmp_path: Path
) -> None:
    assert await chosen(tmp_path, **{"OLLAMA_LOCAL": "http://127.0.0.1:9", **environ}) == labels


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "No model is connected that could plan and write code"),
        ({"CODER_MODEL": "llama3.1", "PLANNER_MODEL": "gpt-oss:20b"}, "OLLAMA_API_KEY is not set"),
        ({"DIAL_ENDPOINT": "http://core:8080"}, "DIAL_API_KEY is not set"),
    ],
)
async def test_a_missing_model_or_key_is_named_with_the_fix(
    environ: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words):
        await chosen(tmp_path, **environ)


async def test_a_running_ollama_comes_first_with_the_documented_coder_or_the_one_it_has(tmp_path: Path) -> None:
    async with ollama_peer() as peer:
        place = peer.url.removeprefix("http://")
        have: dict[str, dict[str, Any] | None] = {"test-model:latest": None, "other:latest": MODEL}
        await peer.script(models=have)
        environ = {"OLLAMA_LOCAL": peer.url, "OPENAI_API_KEY": "sk"}
        for expected in ("other:latest", "qwen2.5-coder:latest"):
            label = f"{expected} (Ollama at {place})"
            assert await chosen(tmp_path, **environ) == (label, label)
            await peer.script(models={"qwen2.5-coder:latest": MODEL})
