"""The documented calls `get_plan`, `execute`, `_tool_schema` and `_dispatch_tool`, and a coder that calls badly."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task.coding.executor import _dispatch_tool, _tool_schema, execute, execute_async
from task.coding.planner import get_plan, get_plan_async
from task.coding.settings import Settings, load_settings
from task.errors import ProviderError, SettingsError
from task.llm.scripted import says, wants
from task.permissions.shell import ADVICE
from tests.support.coding import CODER, PLANNER, plan
from tests.support.ollama import OllamaPeer, answer, ollama_peer, raw, refusal
from tests.support.ollama_peer import MODEL

CALL = (
    b'{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"fs_read","arguments":"%b"}}]},'
    b'"done":false}\n'
)
MODELS: dict[str, dict[str, Any] | None] = {f"{name}:latest": MODEL for name in (PLANNER, CODER)}


def settings(peer: OllamaPeer, **changes: Any) -> Settings:
    given = Settings(peer.url, peer.url, PLANNER, CODER, "", 25, 30, dry_run=False)
    return replace(given, **changes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with one file in it."""
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_documented_calls_block_and_plan_and_work_in_the_working_directory(folder: Path) -> None:
    script = (plan("Write it.", prompt="Write b."), wants("fs_write", path="b.txt", content="two\n"), says("Written."))
    async with ollama_peer(*script, models=MODELS) as peer:
        made = await asyncio.to_thread(get_plan, "Write b.txt", settings(peer))
        assert (made.plan, made.coder_prompt, made.tests) == (["Write it."], "Write b.", [])
        done = await asyncio.to_thread(execute, made.coder_prompt, settings(peer))
        assert (done.steps, done.last) == (1, "Written.")
        assert (folder / "b.txt").read_text() == "two\n"


@pytest.mark.fault("coding: a synchronous call inside an event loop")
@pytest.mark.parametrize(("call", "twin"), [(get_plan, get_plan_async), (execute, execute_async)])
async def test_inside_an_event_loop_an_error_names_the_asynchronous_twin(call: Any, twin: Any) -> None:
    with pytest.raises(RuntimeError, match=f"await {twin.__name__}"):
        call("Do it.")


@pytest.mark.fault("coding: a wrong key, or a model that is gone, for planner and coder")
async def test_a_provider_that_refuses_is_an_error_with_its_status(folder: Path) -> None:
    async with ollama_peer(refusal(401, "unauthorized"), refusal(404, "gone"), models=MODELS) as peer:
        with pytest.raises(ProviderError) as refused:
            await get_plan_async("Do it.", settings(peer))
        assert refused.value.status_code == 401
        with pytest.raises(ProviderError) as missing:
            await execute_async("Do it.", settings(peer))
        assert missing.value.status_code == 404


async def test_a_planner_whose_provider_refuses_a_format_is_asked_without_one(folder: Path) -> None:
    async with ollama_peer(refusal(400, "no format"), plan("Write it."), models=MODELS) as peer:
        assert (await get_plan_async("Do it.", settings(peer))).plan == ["Write it."]
        assert ["format" in body for body in (await peer.seen()).bodies] == [True, False]


@pytest.mark.fault(
    "coding: an unknown tool, wrong or cut arguments, missing ids, a call in the text, NDJSON cut at any byte,"
    " in a coding run"
)
async def test_every_bad_call_is_answered_and_the_work_goes_on(folder: Path) -> None:
    script = (
        wants("fs_delete", path="a.txt"),
        wants("fs_read", file="a.txt"),
        wants("fs_read", path="../outside.txt"),
        answer(
            {"call": {"name": "fs_read", "arguments": {"path": "a.txt"}}},
            {"call": {"name": "fs_list", "arguments": {"path": "."}}},
            ids=False,
        ),
        answer(raw(CALL % b'{\\"path\\": \\"a.t')),
        answer(raw(CALL % b'{\\"path\\": \\"a.txt\\"}'), bytes_per_write=1),
        says('```json\n{"name": "fs_write", "arguments": {"path": "b.txt", "content": "two"}}\n```'),
        says("Done."),
    )
    async with ollama_peer(*script, models=MODELS) as peer:
        done = await execute_async("Do it.", settings(peer))
        assert (done.steps, done.last) == (7, "Done.")
        messages = (await peer.seen()).bodies[-1]["messages"]
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        assert len(calls) == len(results) == 8
        expected = [
            "There is no tool 'fs_delete'", "do not fit", "path escapes sandbox", "one\n", "a.txt", "not", "one\n",
            "wrote b.txt",
        ]  # fmt: skip
        for result, words in zip(results, expected, strict=True):
            assert words in result
        assert (folder / "b.txt").read_text() == "two"


@pytest.mark.fault("coding: a coder that repeats a failing call")
async def test_a_call_that_keeps_failing_is_pointed_out_and_then_withdrawn(folder: Path) -> None:
    looping = [wants("fs_read", path="missing.txt") for _ in range(6)]
    async with ollama_peer(*looping, says("I gave up."), models=MODELS) as peer:
        done = await execute_async("Do it.", settings(peer))
        assert done.last == "I gave up."
        last = (await peer.seen()).bodies[-1]
        results = [message["content"] for message in last["messages"] if message["role"] == "tool"]
        assert results[0] == "ERROR: read: not found: missing.txt"
        assert "gave the same result 3 times" in results[2]
        assert "withdrawn" in results[4]
        assert "withdrawn" in results[5]
        assert "fs_read" not in {tool["function"]["name"] for tool in last["tools"]}


@pytest.mark.fault("coding: a setup or a call that asks where nobody can answer")
async def test_what_the_coding_rules_leave_to_a_person_is_refused_where_nobody_can_be_asked(folder: Path) -> None:
    loop = "for name in a.txt; do cat $name; done"
    script = (wants("shell_run", cmd="rm -rf a.txt"), wants("shell_run", cmd=loop), says("I could not."))
    async with ollama_peer(*script, models=MODELS) as peer:
        done = await execute_async("Clean up.", settings(peer))
        assert done.last == "I could not."
        asked = (await peer.seen()).bodies[-1]["messages"]
        refused = [message["content"] for message in asked if message["role"] == "tool"]
        assert all("the user did not approve it" in result for result in refused)
        assert f"it is not a plain line (for in place of a program). {ADVICE}" in refused[1]
        assert ADVICE in asked[0]["content"], "the coder knows it beforehand"
        assert (folder / "a.txt").exists()


def test_the_tools_are_the_documented_ones_and_a_dispatched_call_gives_text_whatever_happens(folder: Path) -> None:
    shapes = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in _tool_schema()}
    assert shapes.keys() >= {"fs_read", "fs_list"}
    assert (shapes["fs_write"], shapes["shell_run"], shapes["python_run"]) == (["path", "content"], ["cmd"], ["mode"])
    assert _dispatch_tool("fs_read", {"path": "a.txt"}) == "one\n"
    assert _dispatch_tool("fs_read", {"path": "b.txt"}) == "ERROR: read: not found: b.txt"
    assert _dispatch_tool("fs_read", {"path": "../x"}).startswith("ERROR: ")
    assert _dispatch_tool("no_tool", {}) == "ERROR: unknown tool no_tool"
    assert "do not fit" in _dispatch_tool("fs_write", {"path": "a.txt"})
    assert _dispatch_tool("python_run", {"mode": "story"}).startswith(("ERROR", "Error"))


def test_the_documented_variables_and_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURBO_HOST", "OLLAMA_LOCAL", "OLLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    defaults = Settings(
        "https://ollama.com", "http://127.0.0.1:11434", "gpt-oss:20b", "qwen2.5-coder", "", 25, 120, dry_run=False
    )
    assert load_settings() == defaults
    (folder / ".env").write_text("MAX_STEPS=7\nDRY_RUN=1\nCODER_MODEL=from-file\n")
    monkeypatch.setenv("CODER_MODEL", "from-environment")
    assert load_settings() == replace(defaults, coder_model="from-environment", max_steps=7, dry_run=True)
    monkeypatch.setenv("MAX_STEPS", "many")
    with pytest.raises(SettingsError, match="MAX_STEPS in the environment"):
        load_settings()
