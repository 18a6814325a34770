"""Callers that leave in the middle of a request: what they have decided stays decided."""

from __future__ import annotations

import asyncio
from pathlib import Path

from task.llm.scripted import Reply, says, wants
from tests.support.http_api import http_api, said
from tests.support.upstream import Received

NOTES = str(Path(__file__).parent.parent / "contract" / "matrix" / "notes.py")


def answer(request: Received) -> Reply:
    return says("Done.") if request.messages[-1]["role"] == "tool" else wants("write_note", text="milk")


async def test_a_run_continues_although_the_approver_has_left_at_once(tmp_path: Path) -> None:
    async with http_api(then=answer, tmp_path=tmp_path, tool_paths=[NOTES]) as api, asyncio.timeout(40):
        for seconds in (0.002, 0.004, 0.006, 0.008, 0.01):
            session_id = (await api.post("/chat", {"messages": [said("note it")]})).json["session_id"]
            [asked] = (await api.get(f"/approvals?session_id={session_id}")).json["approvals"]
            path, decision = f"/approvals/{asked['approval_id']}", {"decision": "approve"}
            leaving = asyncio.create_task(api.post(path, decision))
            await asyncio.wait({leaving}, timeout=seconds)
            leaving.cancel()
            await asyncio.wait({leaving})
            await api.post(path, decision)  # the first one may have left before it was heard
            runs: list[dict[str, str]] = []
            while [run["status"] for run in runs] != ["finished", "suspended"]:
                await asyncio.sleep(0.02)
                runs = (await api.get(f"/runs?session_id={session_id}")).json["runs"]
