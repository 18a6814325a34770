"""The documented command lines: a session, a calculator question, its trace."""

from __future__ import annotations

import asyncio
import json
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from task.llm.base import DEMO_NAME
from task.llm.scripted import says, wants
from task.local.core.models import scripted_demo
from task.settings import Settings
from tests.support.agent import running_agent
from tests.support.core import API_KEY, local_core
from tests.support.http_api import http_api

PAGE = Path(__file__).parent.parent.parent / "docs" / "http-api.md"
DEMO = Path(str(files("task.local.core") / "demo.yaml"))
JSON = ("-H", "Content-Type: application/json")


async def curl(*arguments: str) -> Any:
    """What curl prints; the same request through another client where there is no curl is `test_api_chat.py`."""
    program = await asyncio.create_subprocess_exec("curl", "-sS", *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(program.communicate(), 20)
    assert program.returncode == 0
    return json.loads(output)


@pytest.mark.system
async def test_a_session_a_calculation_and_its_trace_with_curl(tmp_path: Path) -> None:
    async with http_api(wants("calculator", expression="25*47"), says("1175"), tmp_path=tmp_path) as api:
        session = await curl("-X", "POST", f"{api.url}/session/start", *JSON, "-d", "{}")
        question = {"messages": [{"role": "user", "content": "What is 25*47?"}], "session_id": session["session_id"]}
        answer = await curl("-X", "POST", f"{api.url}/chat", *JSON, "-d", json.dumps(question))
        kept = await curl(f"{api.url}/session/{session['session_id']}")
        trace = await curl(f"{api.url}/traces/{answer['trace']['trace_id']}")
        traces = await curl(f"{api.url}/traces")
    assert answer["response"] == "1175"
    assert answer["session_id"] == session["session_id"]
    assert kept["traces"] == [trace["trace_id"]]
    assert trace["tool_calls"][0]["result"] == "1175"
    assert traces["count"] == 1


def first_example() -> tuple[str, Any]:
    """The path and the body of the first command line of the page."""
    block = PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    program, url, *rest = shlex.split(block)
    assert program == "curl"
    return urlsplit(url).path, json.loads(rest[rest.index("-d") + 1])


async def test_the_first_documented_command_shows_something_where_no_model_is_connected(tmp_path: Path) -> None:
    path, body = first_example()
    async with local_core({}, tmp_path, model=scripted_demo(DEMO)) as core:
        settings = Settings.model_validate(
            {"dial_endpoint": core.url, "dial_api_key": API_KEY, "deployment_name": DEMO_NAME, "data_dir": tmp_path}
        )
        async with (
            running_agent(settings) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session,
            session.post(f"{url}{path}", json=body) as response,
        ):
            answer = await response.json()
    assert [call["name"] for call in answer["trace"]["tool_calls"]] == ["file_content_extraction_tool"]
    assert "| February | 47 |" in answer["choices"][0]["message"]["content"]
