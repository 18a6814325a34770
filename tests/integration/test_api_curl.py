"""The documented command lines: a session, a calculator question, its trace."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.http_api import http_api

JSON = ("-H", "Content-Type: application/json")


async def curl(*arguments: str) -> Any:
    """What curl prints; the same request through another client where there is no curl is `test_api_chat.py`."""
    program = await asyncio.create_subprocess_exec("curl", "-sS", *arguments, stdout=asyncio.subprocess.PIPE)
    told, _ = await asyncio.wait_for(program.communicate(), 20)
    assert program.returncode == 0
    return json.loads(told)


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
