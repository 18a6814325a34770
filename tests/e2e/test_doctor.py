"""`dial-agent doctor`: what is found before the first start, and a fix for every row that is not ok."""

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from task.cli.checks import Check, State
from task.cli.doctor import next_step, results
from task.settings import load_settings
from task.store.tables import HEAD
from tests.support.core import RunningCore, local_core
from tests.support.core_peers import answers, peer
from tests.support.isolation import NO_OLLAMA
from tests.support.next_version import version_after
from tests.support.ollama import ollama_peer
from tests.support.ports import free_port
from tests.support.stores import opened, sqlite_url
from tests.support.up import dial_agent
from tests.support.upstream import openai_upstream

BEFORE = {
    "data folder": "ok", "state secret": "ok", "tools": "ok", "search in documents": "ok",
    "agent": "note", "core": "note", "model": "note",
}  # fmt: skip


async def rows(home: Path, environ: Mapping[str, str] | None = None) -> dict[str, Check]:
    """The rows about this machine, Core and model, by name, with free ports and no Ollama unless variables say so."""
    ports = {"AGENT_PORT": str(free_port()), "AGENT_CORE_PORT": str(free_port())}
    variables = {"HOME": str(home), "OLLAMA_LOCAL": NO_OLLAMA, **ports, **(environ or {})}
    settings = load_settings(environ=variables, directory=home)
    return {row.name: row for row in await results(settings, *BEFORE, "ollama")}


async def test_before_the_first_start_nothing_is_wrong_and_the_notes_explain_how_to_start(tmp_path: Path) -> None:
    found = await rows(tmp_path)
    assert {name: row.state for name, row in found.items()} == BEFORE
    assert "dial-agent up" in found["core"].fix
    assert "file_content_extraction_tool" in found["tools"].found


async def test_a_running_ollama_is_described_and_must_have_the_agents_model(tmp_path: Path) -> None:
    async with ollama_peer() as peer:
        before = (await rows(tmp_path, {"OLLAMA_LOCAL": peer.url}))["ollama"]
        await peer.load(9216)
        after = (await rows(tmp_path, {"OLLAMA_LOCAL": peer.url}))["ollama"]
        for asked, state in (("test-model", "ok"), ("Test-Model:Latest", "ok"), ("missing:8b", "bad")):
            environ = {"OLLAMA_LOCAL": peer.url, "AGENT_BACKEND": "ollama", "DEPLOYMENT_NAME": asked}
            row = (await rows(tmp_path, environ))["ollama"]
            assert (row.state, "`ollama pull missing:8b`" in row.fix) == (state, state == "bad")
    assert before.state == after.state == "ok"
    for part in ("version 0.24.0", "test-model:latest: completion, tools;", "(not loaded)"):
        assert part in before.found
    assert "(9,216 tokens in force)" in after.found


@pytest.mark.fault("model: a DIAL_ENDPOINT where nothing answers")
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


@pytest.mark.fault("model: a DIAL Core that does not know the agent")
async def test_a_real_core_without_the_agent_or_with_another_key_is_reported(tmp_path: Path) -> None:
    async with local_core({"keys": {}}, tmp_path) as core:
        lacking = (await rows(tmp_path, at(core)))["deployments"]
        refused = await rows(tmp_path, {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": "guess"})
    assert "does not list general-purpose-agent, gpt-4o" in lacking.found
    assert "core-config --fragment" in lacking.fix
    assert "DEPLOYMENT_NAME" in lacking.fix
    assert refused["core key"].state == "bad"


def at(core: RunningCore) -> dict[str, str]:
    return {"DIAL_ENDPOINT": core.url, "DIAL_API_KEY": core.api_key}


@pytest.mark.fault("image: there is no image deployment")
async def test_a_core_that_lists_no_image_deployment_is_a_row_with_its_fix(tmp_path: Path) -> None:
    painter = {"type": "chat", "endpoint": "http://127.0.0.1:9/chat/completions"}
    async with local_core({"keys": {}, "models": {"painter": painter}}, tmp_path) as core:
        row = (await rows(tmp_path, at(core)))["pictures"]
        for listed in ("painter", "off"):
            assert "pictures" not in await rows(tmp_path, {**at(core), "AGENT_DEPLOYMENTS__IMAGE": listed})
    assert (row.state, row.found) == ("note", "Core does not list dall-e-3, so image_generation_tool is not offered")
    assert "AGENT_DEPLOYMENTS__IMAGE" in row.fix


@pytest.mark.fault("model: an OPENAI_BASE_URL without /v1, a refused key, or nothing there, before the first question")
async def test_an_upstream_that_cannot_be_used_has_its_own_fix(tmp_path: Path) -> None:
    async with openai_upstream(api_key="right") as upstream:
        for address, key, words, fix in (
            (upstream.endpoint, "right", "it lists no models there", f"Set OPENAI_BASE_URL={upstream.url}."),
            (upstream.url, "wrong", "it refuses the key", "Set OPENAI_API_KEY to one that it knows."),
            ("http://127.0.0.1:9/v1", "right", "nothing answers there", "Start it, or correct OPENAI_BASE_URL."),
            (
                f"{upstream.url}/x",
                "right",
                "it lists no models (HTTP 404)",
                "Correct OPENAI_BASE_URL: most end in /v1.",
            ),
        ):
            row = (await rows(tmp_path, {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": key}))["model"]
            assert (row.state, row.fix) == ("bad", fix)
            assert words in row.found


@pytest.mark.fault("model: a DIAL Core that has another address for the agent")
@pytest.mark.parametrize("place", ["its own", "another", "another that Core cannot try"])
async def test_a_core_with_another_address_of_the_agent_is_reported(place: str, tmp_path: Path) -> None:
    async with peer(answers(200, {})) as agent:
        address = agent.url if place == "its own" else "http://127.0.0.1:9"
        features = {} if "cannot" in place else {"features": {"configurationEndpoint": f"{address}/configuration"}}
        applications = {"general-purpose-agent": {"endpoint": f"{address}/chat/completions", **features}}
        async with local_core({"keys": {}, "applications": applications}, tmp_path) as core:
            found = await rows(tmp_path, {**at(core), "AGENT_PORT": agent.url.rpartition(":")[2]})
    assert found["agent"].state == "ok"
    if features:
        row = found["core to agent"]
        right = place == "its own"
        assert (row.state, "core-config --fragment --agent" in row.fix) == ("ok" if right else "bad", not right)
    else:
        assert "core to agent" not in found


async def test_a_wrong_setting_is_a_row_and_the_exit_code_1(tmp_path: Path) -> None:
    shown = await dial_agent(tmp_path, "doctor", "--json", AGENT_PORT="many")
    assert shown.code == 1
    assert [(row["name"], row["state"]) for row in json.loads(shown.out)] == [("settings", "bad")]
    table = await dial_agent(tmp_path, "doctor", AGENT_PORT="many")
    assert "✗" in table.out
    assert table.out.splitlines()[-1] == "Next: Correct the setting that is named (settings)."


def step(*notes: str, bad: str = "") -> str:
    found: dict[str, State] = {"state secret": "note", **dict.fromkeys(notes, "note"), **({bad: "bad"} if bad else {})}
    fixes = {"agent": "Start it.", "model": "Pull one, or set a key.", "redis": "", "tools": "Correct it, or unset it."}
    return next_step([Check(name, state, f"{name} is wrong.", fixes.get(name, "")) for name, state in found.items()])


@pytest.mark.parametrize(
    ("notes", "bad", "first"),
    [
        ((), "", "Ask something on the web page"),
        (("agent", "model"), "", "Start it (agent)."),
        (("model",), "", "Pull one (model)."),
        (("agent",), "tools", "Correct it (tools)."),
        ((), "redis", "redis is wrong (redis)."),
    ],
)
def test_the_last_line_is_the_one_next_step(notes: tuple[str, ...], bad: str, first: str) -> None:
    assert step(*notes, bad=bad).startswith(first)


@pytest.mark.fault("configuration: a setting without effect in a door")
async def test_settings_for_the_console_only_are_a_note_that_names_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text("ui: {prompt_symbol: '$ '}\nteps: {secure_mode: true}")
    shown = await dial_agent(tmp_path, "doctor", "--json", "-c", "dial-agent.yaml", AGENT_HISTORY__SUMMARY_TOKENS="900")
    row = json.loads(shown.out)[0]
    assert (row["name"], row["state"]) == ("settings", "note")
    assert row["fix"] == "Do not rely on them in the other doors."
    for idle in ("ui.prompt_symbol in dial-agent.yaml", "teps.secure_mode in dial-agent.yaml",
                 "AGENT_HISTORY__SUMMARY_TOKENS in the environment"):  # fmt: skip
        assert idle in row["found"]


@pytest.mark.system
async def test_every_verdict_is_printed_and_the_exit_code_says_that_nothing_got_out(tmp_path: Path) -> None:
    shown = await dial_agent(tmp_path, "doctor", "--sandbox")
    assert shown.code == 0, shown.out
    assert re.search(r"\n\w+, .*: 0 of 10 got out", shown.out)
    assert "read_by_link" in shown.out
    report = json.loads((await dial_agent(tmp_path, "doctor", "--sandbox", "--json")).out)
    assert {verdict["state"] for trial in report["trials"] for verdict in trial["verdicts"]} == {"held"}


AWAY = "postgresql://ann:hush-hush@127.0.0.1:9/agents?sslmode=disable"


async def row(home: Path, url: str = "") -> Check:
    environ: Mapping[str, str] = {"HOME": str(home), **({"AGENT_STORE__URL": url} if url else {})}
    [found] = await results(load_settings(environ=environ, directory=home), "store")
    return found


async def set_version(url: str, version: str) -> None:
    async with opened(url) as store:
        await store.database.write(
            lambda connection: connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'")
        )


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        ("0001", "bad", "made before the first release"),
        (HEAD, "ok", "0 sessions"),
        ("9999", "bad", "newer version (9999)"),
        (version_after(1), "ok", "one version newer"),
    ],
)
async def test_the_version_of_its_tables_is_reported(tmp_path: Path, version: str, state: str, text: str) -> None:
    await set_version(sqlite_url(tmp_path), version)
    found = await row(tmp_path, sqlite_url(tmp_path))
    assert (found.state, bool(found.fix)) == (state, state != "ok")
    assert text in found.found


@pytest.mark.parametrize(
    "url", [AWAY, "postgresql://ann:hush-hush@h/d?x=hush-hush", "postgresql://ann:hush-hush@h:hush-hush/d"]
)
async def test_an_unreachable_store_is_reported_without_its_password(tmp_path: Path, url: str) -> None:
    found = await row(tmp_path, url)
    assert (found.state, "AGENT_STORE__URL" in found.fix) == ("bad", True)
    assert "hush-hush" not in f"{found.found} {found.fix}"
