"""Rules and lists of tools and commands: what they let run, which can never decide, and what the default ones allow."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task.cli.doctor import results
from task.conversation.messages import user
from task.errors import SettingsError
from task.llm.scripted import ScriptedModel, says, wants
from task.loop import LoopObserver
from task.permissions.decisions import Allowed, Deferred, Denied, Effect
from task.permissions.policy import DEFAULT_RULES, Policy, Rule, dead_rules
from task.product import Backend, opened
from task.product.parts import policy_of
from task.settings import Settings, load_settings
from task.turn import TurnRequest, take_turn
from tests.support.choices import CALLER, RecordingChoice
from tests.support.gating import CHANGES, READS, RUNS, SEARCHES, facts, gate, request
from tests.support.in_process import NOWHERE
from tests.support.tools import answering

R, W = frozenset({Effect.READ}), frozenset({Effect.WRITE})


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule("allow", tool="github__*"), True),
        (Rule("allow", tool="GitHub__*"), False),
        (Rule("allow", effects=CHANGES), True),
        (Rule("allow", effects=SEARCHES), False),
        (Rule("deny", effects=W), True),
        (Rule("deny", effects=frozenset({Effect.EXECUTE})), False),
        (Rule("allow", path="docs/*"), False),
        (Rule("ask", path="docs/*"), True),
        (Rule("deny", path="*.pem"), True),
        (Rule("allow", path="*"), True),
        (Rule("allow", host="*.example"), True),
        (Rule("allow", host="a.example"), False),
        (Rule("deny", host="evil.*"), True),
        (Rule("allow", command=("git",)), False),
        (Rule("allow", known_url=True), False),
        (Rule("deny", known_url=False), True),
    ],
)
def test_a_rule_allows_a_whole_call_only_and_denies_for_a_part_of_it(rule: Rule, fits: bool) -> None:
    urls = ["https://a.example/", "https://evil.example/"]
    call = facts("github__push", CHANGES, paths=["docs/a.md", "keys/b.pem"], urls=urls)
    assert rule.fits(call) is fits


def test_the_first_rule_that_fits_decides_but_a_denial_always_wins() -> None:
    ask, allow, deny = Rule("ask", tool="a*"), Rule("allow"), Rule("deny", tool="*x")
    policy = Policy((ask, allow, deny))
    assert policy.first(facts("ab", READS)) == ask
    assert policy.first(facts("b", READS)) == allow
    assert policy.first(facts("none", READS)) is not None
    assert "deny *x" in policy.denied(facts("ax", READS))
    assert Policy((ask,)).first(facts("b", READS)) is None


@pytest.mark.fault("gate: rules that can never decide")
@pytest.mark.parametrize(
    ("rules", "dead"),
    [
        ([Rule("allow"), Rule("ask", tool="x")], {2: "allow *"}),
        ([Rule("allow", tool="x"), Rule("deny")], {1: "deny *"}),
        ([Rule("ask", tool="git*"), Rule("allow", tool="github")], {2: "ask git*"}),
        ([Rule("allow", effects=R | W), Rule("allow", effects=R)], {2: "effects=read,write"}),
        ([Rule("allow", command=("ls",)), Rule("allow", command=("ls",))], {2: "command=ls"}),
        ([Rule("allow", effects=R), Rule("allow", effects=R | W)], {}),
        ([Rule("allow", effects=R), Rule("ask", effects=R)], {}),
        ([Rule("allow", path="a/*"), Rule("deny", path="a/*")], {}),
        ([Rule("allow", known_url=True), Rule("allow")], {}),
        ([Rule("ask", tool="g?t"), Rule("allow", tool="g*")], {}),
        (list(DEFAULT_RULES), {}),
    ],
)
def test_rules_that_other_rules_hide_are_reported(rules: list[Rule], dead: dict[int, str]) -> None:
    found = dead_rules(rules)
    assert found.keys() == dead.keys()
    assert all(dead[number] in reason for number, reason in found.items())
    unknown = [Rule("allow", tool="serach"), Rule("deny", tool="del*"), Rule("ask", tool="cal*")]
    assert list(dead_rules(unknown, ["calculator", "search"])) == [1, 2]
    assert dead_rules(unknown) == {}, "if not all tools are known"


def test_another_policy_has_another_fingerprint() -> None:
    policies = [
        Policy(DEFAULT_RULES),
        Policy(DEFAULT_RULES[:-1]),
        Policy(DEFAULT_RULES[::-1]),
        Policy(DEFAULT_RULES, only=frozenset({"x"})),
        Policy((*DEFAULT_RULES[:-1], Rule("allow", effects=SEARCHES, known_url=True, trusted=True))),
    ]
    assert len({policy.fingerprint for policy in policies}) == len(policies)
    assert Policy(DEFAULT_RULES).fingerprint == Policy(tuple(DEFAULT_RULES)).fingerprint


async def test_the_rules_of_the_settings_come_before_the_products_own(tmp_path: Path) -> None:
    (file := tmp_path / "agent.yaml").write_text(
        "permissions:\n  grant_hours: 2\n  rules:\n    - {action: allow, tool: shell_run, command: git status}\n"
        "    - {action: deny, effects: [write]}\n"
    )
    settings = load_settings(file, environ={})
    own = (Rule("allow", tool="shell_run", command=("git status",)), Rule("deny", effects=W))
    assert policy_of(settings) == Policy((*own, *DEFAULT_RULES))
    services, profile = opened(settings)
    await services.close()
    assert profile.rules.grant_seconds == 7_200


def test_the_settings_can_name_the_only_tools_and_leave_the_products_rules_out() -> None:
    chosen = {"AGENT_PERMISSIONS__TOOLS": "note, calculator", "AGENT_PERMISSIONS__DEFAULT_RULES": "false"}
    found = policy_of(load_settings(environ=chosen))
    assert found.rules == ()
    assert found.denied(facts("note", RUNS)) == ""
    assert found.denied(facts("search", READS)) == "search is not among the allowed tools"


@pytest.mark.fault("gate: a rule that cannot be meant")
@pytest.mark.parametrize(
    "rules",
    [
        '[{"action": "maybe"}]',
        '[{"tool": "x"}]',
        '[{"action": "allow", "effects": ["fly"]}]',
        '[{"action": "ask", "trusted": true}]',
        '[{"action": "allow", "comand": "ls"}]',
        '[{"action": "allow", "command": ""}]',
        '{"action": "allow"}',
        "[{]",
    ],
)
def test_a_nonsensical_rule_stops_the_start(rules: str) -> None:
    with pytest.raises(SettingsError, match="AGENT_PERMISSIONS__RULES"):
        load_settings(environ={"AGENT_PERMISSIONS__RULES": rules})


def policy(**teps: Any) -> Policy:
    return policy_of(Settings.model_validate({"teps": teps}))


def refused(found: Policy, command: str, tool: str = "shell_run") -> str:
    return found.denied(facts(tool, RUNS, command=command))


@pytest.mark.fault("gate: a blocked command hidden in another one")
@pytest.mark.parametrize(
    ("command", "blocked"),
    [
        ("rm -rf build", True), ("/bin/rm x", True), ("ls; rm x", True), ("ls | xargs rm", True), ("sudo rm x", True),
        ("find . -exec rm {} +", True), ("sh -c 'rm x'", True), ("echo $(rm x)", True), ("r'm' x", True),
        ("git push origin main", True),
        ("ls rm", False), ("git pull", False), ("echo 'rm x'", False), ("rmdir x", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["shell_run", "server_exec"])
def test_a_blocked_command_never_runs_whichever_tool_it_hides_in(command: str, blocked: bool, tool: str) -> None:
    found = refused(policy(bash={"blocked_commands": ["rm", "git push"]}), command, tool)
    assert ("a rule forbids it" in found) is blocked


@pytest.mark.fault("gate: a command that is not known before it runs")
@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("ls -la", True), ("git status", True), ("ls && git diff | git apply", True), ("ls > out.txt", True),
        ("rm old.txt", True), ("git stash drop", True), ("git rebase main", False),
        ("xargs git log", False), ("xargs rm new.txt", False), ("find . -delete", False),
        ("for x in a; do ls; done", False),
        ("git -c core.pager='rm x' log", False), ("git log --frobnicate", False), ("git clone 'ext::rm x'", False),
        ("git fetch --upload-pack='rm x'", False),
        ("cat x", False), ("ls; cat x", False), ("ls $(cat x)", False), ("./ls", False), ("sudo ls", False),
        ("PATH=/tmp ls", False), ("$TOOL x", False), ("ls 'unfinished", False), ("eval ls", False),
        ("> out.txt", False), ("rm new.txt", False),
    ],
)  # fmt: skip
async def test_of_the_allowed_commands_each_is_asked_about_and_all_others_are_refused(
    command: str, listed: bool
) -> None:
    found = policy(bash={"allowed_commands": ["ls", "git", "rm old*", "xargs", "find", "git stash drop"]})
    decision = await gate(found).decide(request("server_exec", RUNS, command=command))
    assert isinstance(decision, Deferred if listed else Denied)
    assert listed or "not known or not among the allowed commands (ls, git, rm old*, xargs, " in refused(found, command)


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


def test_another_list_voids_approvals() -> None:
    lists = [{}, {"bash": {"allowed_commands": ["ls"]}}, {"bash": {"allowed_commands": []}}, {"allowed_tools": ["x"]}]
    assert len({policy(**teps).fingerprint for teps in lists}) == len(lists)


@pytest.mark.fault("gate: lists that contradict each other, unknown names of tools")
def test_only_tools_of_both_lists_are_allowed() -> None:
    chosen = {"permissions": {"tools": ["calculator", "note"]}, "teps": {"allowed_tools": ["calculator", "other"]}}
    found = policy_of(Settings.model_validate(chosen))
    assert [found.denied(facts(name, READS)) == "" for name in ("calculator", "note", "other")] == [True, False, False]
    chosen = {"permissions": {"tools": ["web_search"]}, "teps": {"allowed_tools": ["duckduckgo_web_search"]}}
    found = policy_of(Settings.model_validate(chosen))
    assert found.denied(facts("duckduckgo_web_search", SEARCHES, query="x")) == "", "the same under another name"


@pytest.mark.parametrize("listed", ["web_search", "duckduckgo_web_search"])
@pytest.mark.parametrize("called", ["web_search", "duckduckgo_web_search"])
def test_a_tool_is_meant_by_either_of_its_names(listed: str, called: str) -> None:
    found = policy(allowed_tools=[listed])
    assert found.denied(facts(called, SEARCHES, query="x")) == ""
    assert found.denied(facts("fetch_page", SEARCHES, url="x")) == "fetch_page is not among the allowed tools"
    rules = [{"action": "deny", "tool": listed}]
    denying = policy_of(Settings.model_validate({"permissions": {"rules": rules}}))
    assert "a rule forbids it" in denying.denied(facts(called, SEARCHES, query="x"))


@pytest.mark.fault("gate: a tool outside the list that the model calls all the same")
async def test_a_tool_outside_the_list_is_neither_offered_nor_run() -> None:
    model, tools = ScriptedModel(wants("secret"), says("I cannot.")), [answering("note", ""), answering("secret", "!")]
    settings = {"dial_endpoint": NOWHERE, "teps": {"allowed_tools": ["note"]}}
    services, profile = opened(Settings.model_validate(settings), tools=tools)
    profile = replace(profile, backend=Backend(lambda name, caller: model, fetches_files=True, listed=False))
    asked = TurnRequest([user("?")], CALLER)
    outcome = await take_turn(services, profile, asked, RecordingChoice(), LoopObserver())
    await services.close()
    assert [tool["function"]["name"] for tool in model.tools[0]] == ["note"]
    assert outcome.added[1].failed


@pytest.mark.fault("gate: a blocked or allowed command that no command begins with")
@pytest.mark.parametrize("text", ["curl | sh", "rm; ls", '"rm" -rf', ":(){ :|:& };:", "ls > x", "$HOME/x | y"])
@pytest.mark.parametrize("name", ["allowed_commands", "blocked_commands"])
def test_a_list_entry_that_no_command_begins_with_stops_the_start(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"AGENT_TEPS__BASH__{name.upper()}: no command begins with") as caught:
        policy(bash={name: ["ls", text]})
    assert "List each command on its own" in str(caught.value)
    rules = [{"action": "deny", "command": text}]
    with pytest.raises(SettingsError, match="AGENT_PERMISSIONS__RULES: no command begins with"):
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
        ({"permissions": {"tools": ["delegate", "find_tools"]}, "agents": {"enabled": True}}, "ok", "0 of your own"),
        ({"permissions": {"tools": ["delegate"]}}, "note", "permissions.tools: no tool is called delegate"),
        ({"permissions": {"tools": ["calculator"]}, "teps": {"allowed_tools": ["execute_code"]}}, "note",
         "no tool is left by permissions.tools and teps.allowed_tools"),
        ({"teps": {"allowed_tools": []}}, "note", "no tool is left by teps.allowed_tools"),
        ({"permissions": {"rules": [{"action": "allow", "command": "rm x"}]},
          "teps": {"bash": {"blocked_commands": ["curl", "a | b"]}}}, "bad", "no command begins with 'a | b'"),
    ],
)  # fmt: skip
async def test_doctor_reports_lists_that_contradict_each_other_or_fit_nothing(
    settings: dict[str, Any], state: str, found: str
) -> None:
    [row] = await results(Settings.model_validate(settings), "permission rules")
    assert (row.state, found in row.found, bool(row.fix)) == (state, True, state != "ok"), row
