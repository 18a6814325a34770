"""The framework's lists of tools and commands: what they let run, and lists that cannot be meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task.cli.doctor import results
from task.conversation.messages import user
from task.errors import SettingsError
from task.llm.scripted import ScriptedModel, says, wants
from task.loop import LoopObserver, RunOutcome
from task.permissions.decisions import Allowed, Deferred, Denied
from task.permissions.policy import Policy, Rule, dead_rules
from task.product import Backend, opened
from task.product.parts import policy_of
from task.settings import Settings, load_settings
from task.tools.models import Caller
from task.turn import TurnRequest, take_turn
from tests.support.choices import RecordingChoice
from tests.support.gating import READS, RUNS, SEARCHES, facts, gate, request
from tests.support.in_process import NOWHERE
from tests.support.tools import answering


def policy(**teps: Any) -> Policy:
    return policy_of(Settings.model_validate({"teps": teps}))


def refused(found: Policy, command: str, tool: str = "shell_run") -> str:
    return found.denied(facts(tool, RUNS, command=command))


@pytest.mark.fault("gate: a blocked command hidden in another one")
@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build",
        "/bin/rm x",
        "ls; rm x",
        "ls | xargs rm",
        "find . -exec rm {} +",
        "sudo rm x",
        "sh -c 'rm x'",
        "echo $(rm x)",
        "r'm' x",
        "git push origin main",
    ],
)
@pytest.mark.parametrize("tool", ["shell_run", "server_exec"])
def test_a_blocked_command_never_runs_whichever_tool_it_hides_in(command: str, tool: str) -> None:
    assert "a rule forbids it" in refused(policy(bash={"blocked_commands": ["rm", "git push"]}), command, tool)


@pytest.mark.parametrize("command", ["ls rm", "git pull", "echo 'rm x'", "rmdir x"])
def test_other_commands_are_not_blocked(command: str) -> None:
    assert refused(policy(bash={"blocked_commands": ["rm", "git push"]}), command) == ""


@pytest.mark.parametrize(
    "command", ["ls -la", "git status", "ls && git diff | git apply", "ls > out.txt", "rm old.txt"]
)
async def test_an_allowed_command_is_still_asked_about(command: str) -> None:
    found = policy(bash={"allowed_commands": ["ls", "git", "rm old*"]})
    decision = await gate(found).decide(request("shell_run", RUNS, command=command))
    assert isinstance(decision, Deferred)


@pytest.mark.fault("gate: a command that is not known before it runs")
@pytest.mark.parametrize(
    "command",
    [
        "cat x",
        "ls; cat x",
        "ls $(cat x)",
        "./ls",
        "sudo ls",
        "PATH=/tmp ls",
        "$TOOL x",
        "ls 'unfinished",
        "eval ls",
        "> out.txt",
        "rm new.txt",
    ],
)
async def test_with_a_list_of_allowed_commands_all_others_and_all_unknown_ones_are_refused(command: str) -> None:
    found = policy(bash={"allowed_commands": ["ls", "git", "rm old*"]})
    decision = await gate(found).decide(request("server_exec", RUNS, command=command))
    assert isinstance(decision, Denied)
    assert "not known or not among the allowed commands (ls, git, rm old*)" in decision.reason


async def test_the_lists_of_commands_leave_calls_without_a_command_alone() -> None:
    found = policy(bash={"allowed_commands": [], "blocked_commands": ["rm"]})
    assert isinstance(await gate(found).decide(request("calculator", frozenset(), expression="1")), Allowed)
    assert "not among the allowed commands ()" in refused(found, "ls")


@pytest.mark.fault("gate: lists that contradict each other, unknown names of tools")
def test_a_blocked_command_wins_over_an_allowed_one_and_over_a_rule() -> None:
    rules = [{"action": "allow", "command": "git", "trusted": True}]
    bash = {"allowed_commands": ["git"], "blocked_commands": ["git push"]}
    found = policy_of(Settings.model_validate({"permissions": {"rules": rules}, "teps": {"bash": bash}}))
    assert "a rule forbids it (deny * command=git push)" in refused(found, "git push")
    assert refused(found, "git status") == ""


def test_another_list_voids_approvals_and_no_list_keeps_those_of_earlier_versions() -> None:
    lists = [{}, {"bash": {"allowed_commands": ["ls"]}}, {"bash": {"allowed_commands": []}}, {"allowed_tools": ["x"]}]
    assert len({policy(**teps).fingerprint for teps in lists}) == len(lists)
    assert policy().fingerprint.startswith("868934d040418fc2")


@pytest.mark.fault("gate: lists that contradict each other, unknown names of tools")
def test_only_tools_of_both_lists_are_allowed() -> None:
    chosen = {"permissions": {"tools": ["calculator", "note"]}, "teps": {"allowed_tools": ["calculator", "other"]}}
    found = policy_of(Settings.model_validate(chosen))
    assert [found.denied(facts(name, READS)) == "" for name in ("calculator", "note", "other")] == [True, False, False]


@pytest.mark.parametrize("listed", ["web_search", "duckduckgo_web_search"])
@pytest.mark.parametrize("called", ["web_search", "duckduckgo_web_search"])
def test_a_tool_is_meant_by_either_of_its_names(listed: str, called: str) -> None:
    found = policy(allowed_tools=[listed])
    assert found.denied(facts(called, SEARCHES, query="x")) == ""
    assert found.denied(facts("fetch_page", SEARCHES, url="x")) == "fetch_page is not among the allowed tools"
    rules = [{"action": "deny", "tool": listed}]
    denying = policy_of(Settings.model_validate({"permissions": {"rules": rules}}))
    assert "a rule forbids it" in denying.denied(facts(called, SEARCHES, query="x"))


def test_two_lists_may_name_one_tool_differently() -> None:
    chosen = {"permissions": {"tools": ["web_search"]}, "teps": {"allowed_tools": ["duckduckgo_web_search"]}}
    found = policy_of(Settings.model_validate(chosen))
    assert found.denied(facts("duckduckgo_web_search", SEARCHES, query="x")) == ""


def test_a_rule_on_a_tool_hides_a_later_one_on_its_alias() -> None:
    hidden = dead_rules([Rule("deny", "duckduckgo_web_search"), Rule("allow", "web_search")])
    assert [found.number for found in hidden] == [2]


async def turn_with(model: ScriptedModel, **settings: Any) -> RunOutcome:
    async def somebody() -> str:
        return "somebody"

    tools = [answering("note", "noted"), answering("secret", "leaked")]
    services, profile = opened(Settings.model_validate({"dial_endpoint": NOWHERE, **settings}), tools=tools)
    profile = replace(profile, backend=Backend(lambda name, caller: model, fetches_files=True, listed=False))
    asked = TurnRequest([user("?")], Caller("key", somebody))
    try:
        return await take_turn(services, profile, asked, RecordingChoice(), LoopObserver())
    finally:
        await services.close()


@pytest.mark.fault("gate: a tool outside the list that the model calls all the same")
async def test_a_tool_outside_the_list_is_neither_offered_nor_run() -> None:
    model = ScriptedModel(wants("secret"), says("I cannot."))
    outcome = await turn_with(model, teps={"allowed_tools": ["note"]})
    assert [tool["function"]["name"] for tool in model.tools[0]] == ["note"]
    result = next(message for message in outcome.added if message.tool_call_id)
    assert "leaked" not in result.text()


@pytest.mark.fault("gate: a blocked or allowed command that no command begins with")
@pytest.mark.parametrize("text", ["curl | sh", "rm; ls", '"rm" -rf', ":(){ :|:& };:", "ls > x", "$HOME/x | y", "if"])
@pytest.mark.parametrize("name", ["allowed_commands", "blocked_commands"])
def test_a_list_entry_that_no_command_begins_with_stops_the_start(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"AGENT_TEPS__BASH__{name.upper()}: no command begins with") as caught:
        policy(bash={name: ["ls", text]})
    assert "List each command on its own" in str(caught.value)


@pytest.mark.fault("gate: a blocked or allowed command that no command begins with")
def test_a_rule_with_such_a_command_stops_the_start_too() -> None:
    rules = [{"action": "deny", "command": "curl | sh"}]
    with pytest.raises(SettingsError, match=r"AGENT_PERMISSIONS__RULES: no command begins with 'curl \| sh'"):
        policy_of(Settings.model_validate({"permissions": {"rules": rules}}))


@pytest.mark.fault("gate: an empty entry in a list of commands")
@pytest.mark.parametrize("entry", ["", " "])
def test_an_empty_entry_would_block_everything_and_is_refused(entry: str, tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text(f"teps: {{bash: {{blocked_commands: ['{entry}']}}}}")
    with pytest.raises(SettingsError, match=r"teps\.bash"):
        load_settings(environ={}, directory=tmp_path)


@pytest.mark.fault("gate: lists that contradict each other, unknown names of tools")
@pytest.mark.parametrize(
    ("settings", "state", "found"),
    [
        ({}, "ok", "0 of your own, 3 of the product's"),
        ({"teps": {"allowed_tools": ["calculator", "execute_code", "web_search", "read_file_lines"]}}, "ok",
         "0 of your own"),
        ({"teps": {"allowed_tools": ["calculatr"]}}, "note", "teps.allowed_tools: no tool is called calculatr"),
        ({"permissions": {"tools": ["calculatr"]}}, "note", "permissions.tools: no tool is called calculatr"),
        ({"permissions": {"tools": ["calculatr"]}, "ddg_mcp_url": NOWHERE}, "ok", "0 of your own"),
        ({"permissions": {"tools": ["calculator"]}, "teps": {"allowed_tools": ["execute_code"]}}, "note",
         "no tool is left by permissions.tools and teps.allowed_tools"),
        ({"teps": {"allowed_tools": []}}, "note", "no tool is left by teps.allowed_tools"),
        ({"teps": {"bash": {"allowed_commands": ["git push", "ls"], "blocked_commands": ["git"]}}}, "note",
         "git push is in teps.bash.allowed_commands, but a rule denies it"),
        ({"permissions": {"rules": [{"action": "allow", "command": "rm x"}]},
          "teps": {"bash": {"blocked_commands": ["curl", "a | b"]}}}, "bad", "no command begins with 'a | b'"),
    ],
)  # fmt: skip
async def test_doctor_reports_lists_that_contradict_each_other_or_fit_nothing(
    settings: dict[str, Any], state: str, found: str
) -> None:
    [row] = await results(Settings.model_validate(settings), "permission rules")
    assert (row.state, found in row.found, bool(row.fix)) == (state, True, state != "ok"), row
