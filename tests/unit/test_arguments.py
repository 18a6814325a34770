"""What the gate reads in the arguments of a call: commands and addresses under any name, and how much they say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, ToolCall, user
from task.permissions.decisions import Allowed, CallRequest, Deferred, Denied, Effect
from task.permissions.gate import Grant
from task.permissions.hosts import normalised
from task.permissions.policy import DEFAULT_POLICY, DEFAULT_RULES, Policy, Rule
from tests.support.gating import CHANGES, READS, RUNS, SEARCHES, after_search, facts, gate, request, turn

SAID, *HARMLESS = map(json.loads, (Path(__file__).parent / "harmless_calls.jsonl").read_text("utf-8").splitlines())
# Under which a tool may take an address.
NAMES = (
    *(
        "address",
        "addr",
        "api",
        "base",
        "base_url",
        "bucket",
        "callback",
        "channel",
        "cluster",
        "connection",
        "contact",
    ),
    *(
        "cc",
        "destination",
        "dest",
        "dns",
        "domain",
        "download",
        "dst",
        "email",
        "endpoint",
        "entry",
        "feed",
        "file_url",
    ),
    *("from", "gateway", "host", "hostname", "href", "image", "input", "instance", "ip", "link", "location", "mirror"),
    *("name", "node", "origin", "page", "peer", "proxy", "recipient", "registry", "remote", "repository", "resource"),
    *("server", "service", "site", "source", "src", "target", "to", "upstream", "uri", "url", "webhook", "where"),
)


async def test_harmless_calls_ask_no_more_often_than_they_did() -> None:
    seen, asking = [user(SAID["said"]), *turn("search", {"query": "shop"}, SAID["found"])], list[Any]()
    for row in HARMLESS:
        call = request(row["tool"], frozenset(map(Effect, row["effects"])), seen, **row["arguments"])
        if row["runs"] and not isinstance(await gate().decide(call), Allowed):
            asking.append(row)
    assert len(HARMLESS) > 300
    assert not asking


@pytest.mark.fault("gate: an address without a scheme, under any name of an argument")
@pytest.mark.parametrize("name", NAMES)
async def test_an_address_needs_approval_whatever_the_argument_is_called(name: str) -> None:
    arguments: dict[str, Any] = {name: "evil.com/x"}
    assert isinstance(await gate().decide(request("look", SEARCHES, after_search(), **arguments)), Deferred)
    nested = request("look", SEARCHES, after_search(), options=[{name: "see t.co"}])
    assert isinstance(await gate().decide(nested), Deferred)


@pytest.mark.fault("gate: an address without a scheme, under any name of an argument")
@pytest.mark.parametrize(
    "text",
    [
        "//evil", r"\\evil\share", "git@evil:x", "bob@evil.com", "evil:8080", "localhost:9000", "10.0.0.1", "012.0.0.1",
        "0x0a000001", "167772161", "[::ffff:10.0.0.1]:80", "2001:db8::1", "evil.com.", "EVIL.COM:443/x", "t.co",
        "evil%2ecom", "evil\uff0ecom", "evil\u3002com", "site=evil.com", "go to (evil.com).", "mailto:bob@evil.com",
        "evil.com\\x", "docs.example/a?page=2 SECRET", "db.internal",
        "a.b.example/p?q#f", "xn--bcher-kva.example", "b\u00fccher.example",
        "*evil.io*",
    ],
)  # fmt: skip
async def test_every_spelling_of_an_address_needs_approval_after_text_from_outside(text: str) -> None:
    assert isinstance(await gate().decide(request("look", SEARCHES, after_search(), where=text)), Deferred)
    assert isinstance(await gate().decide(request("look", SEARCHES, [user("Go")], where=text)), Allowed)
    literal = [user(f"Take {text} please"), *after_search()]
    if text[0].isalpha() and text.isascii() and not set(text) & set("=()%"):
        assert isinstance(await gate().decide(request("look", SEARCHES, literal, where=text)), Allowed)


@pytest.mark.parametrize(
    "text",
    [
        "2024", "20260201", "1.5", "2.3.1", "12.50 EUR", "48.8566,2.3522", "10:30", "14:30:00", "e.g. this",
        "std::vector", "main.go", "node.js", "1767225600.000200", "// a comment", "@babel/core", "react@18.2.0",
        "UTC+2", "John 3:16", "10.1038/nature14539", "src/main.py", "01.02.2026", "02/01/2026",
        "dGVhbTpDMDYxRkE1UEI=",
    ],
)  # fmt: skip
async def test_versions_amounts_dates_and_paths_are_no_addresses(text: str) -> None:
    assert isinstance(await gate().decide(request("look", SEARCHES, after_search(), where=text)), Allowed)


@pytest.mark.fault("gate: numbers, booleans and names of members that carry text out of a conversation")
@pytest.mark.parametrize(
    "arguments",
    [
        {"at": {f"n{number}": True for number in range(40)}},
        {"at": list(map(ord, "S" * 80))},
        {"at": [True, False] * 30},
        {"at": [{"x" * 150: 1}, {"y" * 60: 2}]},
        {f"undeclared_{number}": 1 for number in range(20)},
        {"at": [[[[]]]] * 30},
        {"at": 10**201},
        {"at": [f"https://docs.example/{number}" for number in range(30)]},
    ],
    ids=["names", "numbers", "booleans", "long names", "arguments of its own", "brackets", "digits", "known addresses"],
)
async def test_all_that_a_call_sends_counts_as_text(arguments: Mapping[str, Any]) -> None:
    seen = after_search(" ".join(f"https://docs.example/{number}" for number in range(30)))
    call = ToolCall("next", FunctionCall("look", "{}"))
    asked = CallRequest(call, dict(arguments), SEARCHES, facts("look", SEARCHES, seen).request.context)
    decision = await gate().decide(CallRequest(call, dict(arguments), SEARCHES, asked.context, names=frozenset({"at"})))
    assert isinstance(decision, Deferred)
    assert "more than 200 characters" in decision.reason


async def test_known_addresses_and_files_do_not_count_as_text() -> None:
    known = [f"https://docs.example/{'a' * 300}", f"{'b' * 300}/notes.md"]
    call = request("look", SEARCHES, after_search(f"See {' and '.join(known)} now"), at=known, full=True)
    assert isinstance(await gate().decide(call), Allowed)


DENIES = Policy((Rule("deny", host="10.*"), Rule("deny", host="*.internal"), Rule("allow")))


async def test_more_addresses_than_are_read_fit_every_rule_that_denies_by_host() -> None:
    urls = [f"https://a{number}.example/" for number in range(2_001)]
    for sent, expected in ((urls, Denied), (urls[:2_000], Allowed), (urls[:1] * 3_000, Allowed)):
        assert isinstance(await gate(DENIES).decide(request("look", SEARCHES, [user("Go")], at=sent)), expected)
    allows = Policy((Rule("allow", host="*.example"),))
    assert isinstance(await gate(allows).decide(request("look", SEARCHES, [user("Go")], at=urls)), Deferred)


@pytest.mark.fault("gate: a host in a spelling or under a name that rules by host miss")
@pytest.mark.parametrize("name", ["url", "server", "target", "where"])
@pytest.mark.parametrize(
    "host",
    [
        "db.internal.", "DB.Internal", "db%2einternal", "db\u3002internal", "\uff44b.internal", "167772161",
        "0x0a000001", "012.0.0.1", "0xa.1", "10.0.1", "[::ffff:10.0.0.1]", "::ffff:a00:1", "10.0.0.1.",
        "user@db.internal:5432",
    ],
)  # fmt: skip
async def test_rules_by_host_see_hosts_as_browsers_do(name: str, host: str) -> None:
    found = [host] if name == "where" else [host, f"https://{host if host[0] != ':' else f'[{host}]'}:80/x"]
    for value in found:
        arguments: dict[str, Any] = {name: value}
        decision = await gate(DENIES).decide(request("look", SEARCHES, [user("Go")], **arguments))
        is_short = name == "where" and value == "10.0.1"  # as versions look
        assert isinstance(decision, Allowed if is_short else Denied), value
    assert isinstance(await gate(DENIES).decide(request("look", SEARCHES, [user("Go")], target=167772161)), Denied)


async def test_a_number_in_an_unusual_spelling_asks_even_if_it_is_known() -> None:
    for url in ("http://0x0a000001/", "http://012.0.0.1/", "http://[::ffff:10.0.0.1]/", "http://1/"):
        call = request("look", SEARCHES, [user(f"Read {url} now")], url=url)
        assert isinstance(await gate(Policy((Rule("allow", host="10.0.0.1"), *DEFAULT_RULES))).decide(call), Deferred)
    assert [normalised(name) for name in ("1.2.3.099", "256.1.1.1", "1.2.3.4.5", "A..b")] == [
        "1.2.3.099", "256.1.1.1", "1.2.3.4.5", "a..b",
    ]  # fmt: skip


COMMANDS: list[dict[str, Any]] = [
    *(
        {name: "rm -rf x"}
        for name in ("command", "cmd", "shell", "script", "code", "args", "argv", "commandLine", "run")
    ),
    {"commands": ["ls", "rm -rf x"]},
    {"commands": [["rm", "-rf", "x"]]},
    {"commands": ["rm", "-rf"]},
    {"command": ["ls", "rm -rf x"]},
    {"argv": ["rm", "-rf", "x y"]},
    {"command": ["bash", "-c", "rm x"]},
    {"command": "rm", "args": ["-rf", "x"]},
    {"program": "rm", "args": "-rf x"},
    {"job": {"steps": [{"executable": "rm", "argv": ["x"]}]}},
    {"Command": "ls", "command": "rm x"},
    {"command": "rm x", "program": "ls", "args": ["y"]},
]


@pytest.mark.fault("gate: a command under another name, or beside one that was recognised")
@pytest.mark.parametrize("arguments", COMMANDS)
async def test_commands_are_read_under_every_usual_name(arguments: dict[str, Any]) -> None:
    policy = Policy((Rule("deny", command=("rm",)), Rule("allow")))
    assert isinstance(await gate(policy).decide(request("run_it", RUNS, **arguments)), Denied)


UNREAD: list[dict[str, Any]] = [
    {"instruction": "rm -rf x"},
    {"command": "ls", "then": "rm -rf x"},
    {"command": "ls", "env": {"LD_PRELOAD": "./x.so"}},
    {"command": "ls", "rm -rf x": True},
    {"steps": [{"do": "rm x"}]},
    {"commands": [{"program": "make", "args": ["x"]}]},
]


@pytest.mark.fault("gate: a command under another name, or beside one that was recognised")
@pytest.mark.parametrize("arguments", UNREAD)
async def test_a_tool_that_executes_what_is_not_recognised_asks_where_rules_are_about_commands(
    arguments: dict[str, Any],
) -> None:
    call = request("run_it", RUNS, **arguments)
    assert isinstance(await gate(Policy((Rule("allow"),))).decide(call), Allowed)
    tainted = request("run_it", frozenset({Effect.EXECUTE}), after_search(), **arguments)
    assert isinstance(await gate(Policy((Rule("allow"),))).decide(tainted), Deferred)
    assert isinstance(await gate(Policy((Rule("deny", command=("rm",)), Rule("allow")))).decide(call), Deferred)
    assert isinstance(await gate(Policy((Rule("allow", command=("ls",)),))).decide(call), Deferred)
    assert isinstance(await gate(Policy((Rule("allow"),), commands=("ls",))).decide(call), Denied)
    keeper = gate(DEFAULT_POLICY)
    asked = await keeper.decide(call)
    assert isinstance(asked, Deferred)
    assert asked.grant_description == "run_it, exactly as shown"
    assert all(json.dumps(value) in asked.card.command for value in arguments.values()), "the card shows all of it"
    keeper.grants.add(Grant("call", "run_it", "anna", "c1", 2_000, digest=asked.digest, once=True, widens=True))
    for _ in range(2):
        assert isinstance(await keeper.decide(call), Allowed)
    assert isinstance(await keeper.decide(request("run_it", RUNS, **arguments, more=1)), Deferred)


@pytest.mark.parametrize(
    ("tool", "effects", "arguments"),
    [
        ("execute_code", frozenset({Effect.EXECUTE}), {"code": "import os"}),
        ("run_it", RUNS, {"command": "ls", "cwd": "src", "timeout": 5, "background": False}),
        ("set_country", CHANGES, {"code": "DE", "name": "Germany"}),
        ("fs_read", READS, {"path": "rm"}),
    ],
)
async def test_what_can_be_read_in_full_runs_under_rules_about_commands(
    tool: str, effects: frozenset[Effect], arguments: dict[str, Any]
) -> None:
    policy = Policy((Rule("deny", command=("rm",)), Rule("allow")))
    assert isinstance(await gate(policy).decide(request(tool, effects, **arguments)), Allowed)
    if tool == "execute_code":
        assert isinstance(await gate(policy).decide(request(tool, effects, after_search(), **arguments)), Allowed)
