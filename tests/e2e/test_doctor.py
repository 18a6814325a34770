"""`dial-agent doctor`: what is found before the first start, and a fix for every row that is not ok."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from task.commands.checks import Check, machine_checks, service_checks
from task.settings import load_settings
from tests.support.core import local_core
from tests.support.isolation import NO_OLLAMA
from tests.support.ports import free_port
from tests.support.up import dial_agent
from tests.support.upstream import openai_upstream


async def rows(home: Path, environ: Mapping[str, str]) -> dict[str, Check]:
    ports = {"AGENT_PORT": str(free_port()), "AGENT_CORE_PORT": str(free_port())}
    variables = {"HOME": str(home), "OLLAMA_LOCAL": NO_OLLAMA, **ports, **environ}
    settings = load_settings(environ=variables, directory=home)
    async with aiohttp.ClientSession() as session:
        return {row.name: row for row in (*machine_checks(settings), *await service_checks(settings, session))}


async def test_before_the_first_start_nothing_is_wrong_and_the_notes_explain_how_to_start(tmp_path: Path) -> None:
    found = await rows(tmp_path, {})
    assert {name: row.state for name, row in found.items()} == {
        "python": "ok", "data folder": "ok", "state secret": "ok", "tools": "ok",
        "agent": "note", "core": "note", "model": "note",
    }  # fmt: skip
    assert "make run" in found["core"].fix
    assert "file_content_extraction_tool" in found["tools"].found


async def test_every_problem_is_marked_and_has_a_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = {
            "AGENT_PORT": str(taken.getsockname()[1]),
            "AGENT_DATA_DIR": "/proc/nowhere",
            "AGENT_TOOL_PATHS": "nowhere.py",
            "AGENT_STATE_SECRET": "short",
            "DIAL_ENDPOINT": "http://127.0.0.1:9",
            "DIAL_API_KEY": "k",
        }
        found = await rows(tmp_path, wrong)
    assert {name for name, row in found.items() if row.state == "bad"} == {"data folder", "tools", "agent", "core"}
    assert found["state secret"].state == "note"
    assert "is in use by" in found["agent"].found
    assert all(row.fix for row in found.values() if row.state != "ok")


async def test_a_real_core_without_the_agent_or_with_another_key_is_reported(tmp_path: Path) -> None:
    async with local_core({"keys": {}}, tmp_path) as core:
        lacking = await rows(tmp_path, {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": core.api_key})
        refused = await rows(tmp_path, {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": "guess"})
    assert "does not list general-purpose-agent, gpt-4o" in lacking["deployments"].found
    assert refused["core key"].state == "bad"


async def test_an_upstream_that_lists_no_models_is_reported(tmp_path: Path) -> None:
    async with openai_upstream() as upstream:
        found = await rows(tmp_path, {"OPENAI_BASE_URL": f"{upstream.url}/elsewhere", "OPENAI_API_KEY": "k"})
    assert found["model"].state == "bad"


async def test_a_wrong_setting_is_a_row_and_the_exit_code_1(tmp_path: Path) -> None:
    shown = await dial_agent(tmp_path, "doctor", "--json", AGENT_PORT="many")
    assert shown.code == 1
    assert [(row["name"], row["state"]) for row in json.loads(shown.out)] == [("settings", "bad")]
    table = await dial_agent(tmp_path, "doctor", AGENT_PORT="many")
    assert "✗" in table.out
