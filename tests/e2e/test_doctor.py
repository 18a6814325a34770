"""`dial-agent doctor` before, during and after: every row has a mend."""

import json
import socket
from pathlib import Path
from typing import Any

from task.commands.ports import free_port
from tests.support.up import Finished, dial_agent


def rows(finished: Finished) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(finished.out)}


def quiet_ports() -> dict[str, str]:
    return {"AGENT_PORT": str(free_port("127.0.0.1")), "AGENT_CORE_PORT": str(free_port("127.0.0.1"))}


async def test_before_the_first_start_nothing_is_wrong_and_the_notes_say_how_to_start(tmp_path: Path) -> None:
    found = await dial_agent(tmp_path, "doctor", "--json", **quiet_ports())
    states = {name: row["state"] for name, row in rows(found).items()}
    assert found.code == 0
    assert states == {
        "settings": "ok", "python": "ok", "data folder": "ok", "state secret": "ok", "tools": "ok",
        "agent": "note", "core": "note", "model": "note",
    }  # fmt: skip
    assert "make run" in rows(found)["core"]["mend"]


async def test_what_is_wrong_is_marked_and_mended_and_the_exit_code_is_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = {
            "AGENT_PORT": str(taken.getsockname()[1]),
            "DIAL_ENDPOINT": "http://127.0.0.1:9",
            "AGENT_DATA_DIR": "/proc/nowhere",
            "AGENT_TOOL_PATHS": "nowhere.py",
            "AGENT_STATE_SECRET": "short",
            "DIAL_API_KEY": "k",
        }
        found = await dial_agent(tmp_path, "doctor", "--json", **wrong)
    table = rows(found)
    assert found.code == 1
    assert {name for name, row in table.items() if row["state"] == "bad"} == {"data folder", "tools", "agent", "core"}
    assert table["state secret"]["state"] == "note"
    assert "is in use by" in table["agent"]["found"]
    assert all(row["mend"] for row in table.values() if row["state"] != "ok")


async def test_a_wrong_setting_is_a_row_too(tmp_path: Path) -> None:
    found = await dial_agent(tmp_path, "doctor", AGENT_PORT="many")
    assert found.code == 1
    assert "✗" in found.out
    assert "AGENT_PORT" in found.out
