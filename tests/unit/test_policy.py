"""Rules: which one decides, which can never decide, and what the default ones allow in the platform's scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import Message, user
from task.errors import SettingsError
from task.permissions.decisions import Allowed, CallRequest, Effect
from task.permissions.policy import DEFAULT_RULES, Policy, Rule, dead_rules
from task.product import opened
from task.product.parts import default_tools, policy_of
from task.settings import Settings, load_settings
from task.tools.base import BaseTool
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.toolbox import Toolbox
from tests.support.gating import CHANGES, READS, RUNS, SEARCHES, facts, gate, turn

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
    found = {rule.number: rule.reason for rule in dead_rules(rules)}
    assert found.keys() == dead.keys()
    assert all(dead[number] in reason for number, reason in found.items())


@pytest.mark.fault("gate: rules that can never decide")
def test_rules_for_unknown_tools_are_reported_if_all_tools_are_known() -> None:
    rules = [Rule("allow", tool="serach"), Rule("deny", tool="del*"), Rule("ask", tool="cal*")]
    assert [dead.number for dead in dead_rules(rules, ["calculator", "search"])] == [1, 2]
    assert dead_rules(rules) == []


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


async def test_the_rules_of_the_settings_come_before_the_products_own() -> None:
    rules = (
        '[{"action": "allow", "tool": "shell_run", "command": "git status"}, {"action": "deny", "effects": ["write"]}]'
    )
    settings = load_settings(environ={"AGENT_PERMISSIONS__RULES": rules, "AGENT_PERMISSIONS__GRANT_HOURS": "2"})
    own = (Rule("allow", tool="shell_run", command=("git status",)), Rule("deny", effects=W))
    assert policy_of(settings) == Policy((*own, *DEFAULT_RULES))
    services, profile = opened(settings)
    await services.close()
    assert profile.rules.grant_seconds == 7_200


def test_the_settings_can_name_the_only_tools_and_leave_the_products_rules_out() -> None:
    chosen = {"AGENT_PERMISSIONS__TOOLS": "note, calculator", "AGENT_PERMISSIONS__DEFAULT_RULES": "false"}
    policy = policy_of(load_settings(environ=chosen))
    assert policy.rules == ()
    assert policy.denied(facts("note", RUNS)) == ""
    assert policy.denied(facts("search", READS)) == "search is not among the allowed tools"


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


def test_rules_can_be_written_in_the_yaml_file(tmp_path: Any) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("permissions:\n  rules:\n    - {action: ask, tool: 'fetch_*', host: '*.internal'}\n")
    first = policy_of(load_settings(file, environ={})).rules[0]
    assert first == Rule("ask", tool="fetch_*", host="*.internal")


SEARCH, FETCH, IMAGE = "duckduckgo_web_search", "fetch_page", "image_generation_tool"
EXTRACT, CODE, RAG = "file_content_extraction_tool", "execute_code", "rag_search_tool"
REPORT = "files/b/report.csv"
FOUND = "1. Eiffel Tower\n   URL: https://tower.example/en\n   A wrought-iron tower in Paris, 330 metres tall.\n"
Step = tuple[str, dict[str, Any], str]

SCENARIOS: dict[str, tuple[str, list[Step]]] = {
    "11 weather, then a picture of it": (
        "What's the weather in Paris? Then generate an image representing that weather",
        [
            (SEARCH, {"query": "weather in Paris"}, "1. Paris\n   URL: https://w.example/p\n   Rain, 12 degrees.\n"),
            (IMAGE, {"prompt": "Paris in the rain at 12 degrees, umbrellas"}, "The image is attached."),
        ],
    ),
    "15 weather in Kyiv": (
        "What is the weather in Kyiv right now?",
        [(SEARCH, {"query": "weather Kyiv now", "max_results": 5}, "1. Kyiv\n   URL: https://w.example/k\n   Snow.\n")],
    ),
    "16 a person": (
        "Who is Arkadiy Dobkin?",
        [
            (SEARCH, {"query": "Arkadiy Dobkin"}, "1. Dobkin\n   URL: https://bio.example/d\n   EPAM's founder.\n"),
            (FETCH, {"url": "https://bio.example/d", "start": 0}, "He founded EPAM in 1993. See https://epam.example/"),
            (FETCH, {"url": "https://epam.example/", "start": 0}, "EPAM."),
            (FETCH, {"url": "https://bio.example/d", "start": 8000}, "More."),
        ],
    ),
    "17 analysis of a file with a chart": (
        f"Analyze this sales data\n\nAttached files:\n- report.csv (text/csv): {REPORT}",
        [
            (EXTRACT, {"file_url": REPORT, "page": 1}, "| Date | Sales |\n|---|---|\n| 2025-10-01 | 1200 |"),
            (CODE, {"code": "import matplotlib.pyplot as plt\n" + "plt.plot([1, 2])\n" * 80}, "Created chart.png"),
        ],
    ),
    "18 search and paint": (
        "Search for the Eiffel Tower and generate an artistic image of it",
        [
            (SEARCH, {"query": "Eiffel Tower facts"}, FOUND),
            (IMAGE, {"prompt": f"Oil: a wrought-iron tower in Paris, 330 metres tall. {'Light. ' * 60}"}, "Done"),
        ],
    ),
    "8 search in a document, and the calculator": (
        f"How should I clean the plate?\n\nAttached files:\n- manual.txt (text/plain): {REPORT}",
        [
            (RAG, {"request": "How should I clean the plate? " * 9, "file_url": REPORT}, "In warm soapy water."),
            ("calculator", {"expression": "17.5 / 100 * 4380"}, "766.5"),
            ("read_file_lines", {"file_url": "files/b/rag_search_tool-result.txt", "first_line": 1}, "1: x"),
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseTool]:
    """The product's own tools with their declared effects, and those of its search server."""
    folder: Path = tmp_path_factory.mktemp("agent")
    settings = Settings.model_validate({"pyinterpreter_mcp_url": "http://127.0.0.1:1/mcp", "data_dir": folder})
    found: list[BaseTool] = default_tools(settings)
    client = MCPClient("http://127.0.0.1:1/mcp")
    found += [MCPTool(client, MCPToolModel(name, name, {"type": "object"}, read_only=True)) for name in (SEARCH, FETCH)]
    return {tool.name: tool for tool in found}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_scenario_passes_without_a_question(scenario: str, tools: dict[str, BaseTool]) -> None:
    asked, steps = SCENARIOS[scenario]
    box, keeper = Toolbox(list(tools.values())), gate()
    messages: list[Message] = [user(asked)]
    for number, (name, arguments, result) in enumerate(steps):
        call, answer = turn(name, arguments, result, call_id=f"c{number}")
        # The tools that read stored results come with a Core only; their effect is to read.
        effects = tools[name].effects if name in tools else tools[EXTRACT].effects
        decision = await keeper.decide(CallRequest(call.tool_calls[0], arguments, effects, box.view(messages)))
        assert isinstance(decision, Allowed), (name, decision)
        messages += [call, answer]
