"""Traces for operators: `dial-agent traces` and `dial-agent keys`."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from task.cli.app import app
from task.errors import InvalidRequest, NotFound, ProviderError
from task.llm.base import Usage
from task.llm.scripted import Reply, says, wants
from task.store.records import ApiKey
from tests.support.stores import opened
from tests.support.traced import traced


def dial_agent(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"AGENT_DATA_DIR": str(home), "AGENT_CONFIG": ""})


def done(home: Path, *arguments: str) -> str:
    result = dial_agent(home, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with five traces, oldest first: three sums, one with a terminal's commands, one without texts."""
    folder = tmp_path_factory.mktemp("home")

    async def fill() -> None:
        async with opened(f"sqlite:///{folder / 'store.db'}") as store:
            for number in (25, 25, 26):
                answer = says(f"{number * 47}", usage=Usage(100, 7))
                await traced(store, wants("calculator", expression=f"{number}*47"), answer, experiment=f"e{number}")
            await traced(store, says("red: \x1b[31m\nsecond line"))
            failed = Reply((ProviderError("SECRET refused", status_code=429),))
            await traced(store, failed, content=False, door="dial", owner="")

    asyncio.run(fill())
    return folder


def ids(home: Path, *filters: str) -> list[str]:
    """The traces' ids, oldest first."""
    return re.findall(r"^trace_\w+", done(home, "traces", "list", *filters), re.MULTILINE)[::-1]


def test_traces_are_listed_with_what_distinguishes_them(home: Path) -> None:
    lines = done(home, "traces", "list").splitlines()
    assert lines[0].split() == [
        "TRACE", "STARTED", "STATUS", "DOOR", "MODEL", "TURNS", "CALLS", "TOKENS", "COST", "SECONDS", "EXPERIMENT",
        "QUESTION",
    ]  # fmt: skip
    assert lines[1].split()[2:7] == ["failed", "dial", "gpt-4o", "1", "0"]
    assert lines[5].split()[2:8] == ["finished", "http", "gpt-4o", "4", "1", "107"]
    assert lines[1].endswith("  (14 characters, not kept)")
    assert all(line.endswith("  What is 25*47?") for line in lines[2:])
    assert len(ids(home, "--experiment", "e25")) == 2
    assert len(ids(home, "--status", "failed", "--door", "dial")) == 1


@pytest.mark.fault("store: a terminal's commands in a trace")
def test_a_trace_is_shown_turn_by_turn_and_cannot_control_the_terminal(home: Path) -> None:
    traces = ids(home)
    shown = done(home, "traces", "show", traces[0])
    assert "tokens: 107 (gpt-4o 100 + 7)" in shown
    assert re.search(r'-> calculator {"expression": ?"25\*47"} \(call_\w+\)', shown)
    assert re.search(r"tool calculator \[\d\.\d{3} s\]  1175$", shown, re.MULTILINE)
    for arguments in ((), ("--full",)):
        painted = done(home, "traces", "show", *arguments, traces[3])
        assert "\x1b" not in painted
        assert "second line" in painted
    assert "(14 characters, not kept)" in done(home, "traces", "show", traces[4])


def test_traces_are_exported_as_json_lines(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    done(home, "traces", "export", "--output", str(file))
    exported = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [trace["trace_id"] for trace in exported] == ids(home)[::-1]
    assert exported[-1]["tool_calls"][0]["result"] == "1175"
    assert "SECRET" not in file.read_text(encoding="utf-8")
    assert done(home, "traces", "export", "--experiment", "e26").count("\n") == 1


def test_a_replay_reports_whether_the_result_is_the_same(home: Path) -> None:
    traces = ids(home)
    assert "4 turns replayed, the same as recorded" in done(home, "traces", "replay", traces[0])
    refused = dial_agent(home, "traces", "replay", traces[4])
    assert isinstance(refused.exception, InvalidRequest)


def test_a_comparison_reports_where_two_runs_part(home: Path) -> None:
    one, same, other, *_ = ids(home)
    assert "Both runs are the same" in done(home, "traces", "compare", one, same)
    parted = dial_agent(home, "traces", "compare", one, other)
    assert parted.exit_code == 1
    assert "They differ from turn 2: calls" in parted.stdout
    assert '{"expression":"26*47"}' in parted.stdout
    assert isinstance(dial_agent(home, "traces", "compare", one, "trace_none").exception, NotFound)


def test_a_key_is_shown_once_and_works_until_it_is_revoked(tmp_path: Path) -> None:
    made = dial_agent(tmp_path, "keys", "create", "ann", "--label", "laptop", "--operator")
    secret, key_id = made.stdout.strip(), made.stderr.split()[0]

    async def verified() -> ApiKey | None:
        async with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
            return await store.keys.verify(secret)

    found = asyncio.run(verified())
    assert found is not None
    assert (found.key_id, found.owner, found.operator, found.label) == (key_id, "ann", True, "laptop")
    listed = done(tmp_path, "keys", "list")
    assert re.search(rf"^{key_id}  ann +operator +\S+ +valid +laptop$", listed, re.MULTILINE)
    assert secret not in listed
    assert secret.encode() not in (tmp_path / "store.db").read_bytes()
    done(tmp_path, "keys", "revoke", key_id)
    assert asyncio.run(verified()) is None
    assert "revoked 20" in done(tmp_path, "keys", "list")


@pytest.mark.fault("store: an owner that no path can carry")
@pytest.mark.parametrize("owner", ["", "../x", ".hidden", "a b", "x" * 101, "né/x"])
def test_an_owner_that_does_not_fit_in_a_path_is_refused(tmp_path: Path, owner: str) -> None:
    assert isinstance(dial_agent(tmp_path, "keys", "create", owner).exception, InvalidRequest)


@pytest.mark.fault("store: rated answers that were kept without texts")
def test_rated_answers_are_exported_as_an_evaluation_set(tmp_path: Path) -> None:
    async def fill() -> None:
        async with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
            good = await traced(store, wants("calculator", expression="25*47"), says("1175"))
            bad = await traced(store, wants("calculator", expression="25*46"), says("1150"), model="small")
            unkept = await traced(store, wants("calculator", expression="1+1"), says("3"), content=False)
            await traced(store, says("nobody rated this"))
            await store.traces.rate(good.owner, good.trace_id, "up")
            await store.traces.rate(bad.owner, bad.trace_id, "down", "another product")
            await store.traces.rate(unkept.owner, unkept.trace_id, "down")

    asyncio.run(fill())
    exported = dial_agent(tmp_path, "traces", "export", "--rated", "down")
    unkept, bad = (json.loads(line) for line in exported.stdout.splitlines())
    assert (bad["question"], bad["answer"], bad["comment"]) == ("What is 25*47?", "1150", "another product")
    assert (bad["rating"], bad["model"]) == ("down", "small")
    assert bad["tools"] == [{"name": "calculator", "arguments": {"expression": "25*46"}}]
    assert (unkept["question"], unkept["answer"], unkept["tools"][0]["arguments"]) == (None, None, None)
    assert exported.stderr.splitlines() == [
        "answers rated down: 2", "1 of them without texts: TRACE_CONTENT was off",
    ]  # fmt: skip
    assert "answers rated up: 1" in dial_agent(tmp_path, "traces", "export", "--rated", "up").stderr
    assert len(ids(tmp_path, "--rated", "down", "--model", "small", "--tool", "calculator", "--text", "1150")) == 1
    assert ids(tmp_path, "--text", "1175", "--rated", "down") == []
    assert dial_agent(tmp_path, "traces", "export", "--rated", "sideways").exit_code == 2
