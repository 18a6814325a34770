"""What command lines do is seen in whatever way they are written, and rules and grants cover no more than is known."""

from __future__ import annotations

import tomllib
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task.permissions.decisions import Allowed, Deferred, Denied
from task.permissions.gate import Grant, Grants
from task.permissions.policy import Policy, Rule
from task.permissions.programs import reading
from task.permissions.risk import assessed
from task.permissions.shell import LONGEST, parsed
from tests.support.clock import FakeClock
from tests.support.gating import RUNS, facts, gate, request

LINES = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))


def beginnings(line: str) -> tuple[str, ...]:
    """The first word of each line, and the first two."""
    words = line.split()
    return tuple(dict.fromkeys([words[0], " ".join(words[:2]), "git", "rm", "ls"]))


@pytest.mark.fault("gate: a program that is started by another, by an option or by code")
@pytest.mark.parametrize("line", LINES["denied"])
async def test_a_denied_program_is_found_wherever_it_hides(line: str) -> None:
    call = request("shell", RUNS, command=line)
    policy = Policy((Rule("allow", trusted=True), Rule("deny", command=("rm",))))
    assert isinstance(await gate(policy).decide(call), Denied)
    assert not isinstance(await gate(policy_of(line)).decide(call), Allowed)


@pytest.mark.fault("gate: options that make an allowed command do more")
@pytest.mark.parametrize("line", [*LINES["denied"], *LINES["asked"]])
async def test_neither_a_rule_nor_a_grant_for_its_first_words_covers_a_line_that_may_do_more(line: str) -> None:
    call = request("shell", RUNS, command=line)
    assert isinstance(await gate(policy_of(line)).decide(call), Deferred)
    grants = Grants(FakeClock(1_000).now)
    for beginning in beginnings(line):
        grants.add(Grant("prefix", "shell", "anna", "c1", 2_000, prefix=beginning))
    assert isinstance(await gate(Policy(()), grants=grants).decide(call), Deferred)


@pytest.mark.parametrize("line", LINES["allowed"])
async def test_ordinary_lines_are_covered_by_their_first_words(line: str) -> None:
    call = request("shell", RUNS, command=line)
    assert isinstance(await gate(policy_of(line)).decide(call), Allowed)
    grants = Grants(FakeClock(1_000).now)
    grants.add(Grant("prefix", "shell", "anna", "c1", 2_000, prefix=line.split()[0]))
    assert isinstance(await gate(Policy(()), grants=grants).decide(call), Allowed)
    denying = Policy((Rule("allow"), Rule("deny", command=("rm", "git push", "ls --frobnicate"))))
    assert isinstance(await gate(denying).decide(call), Allowed)


def policy_of(line: str) -> Policy:
    return Policy((Rule("allow", command=beginnings(line), trusted=True),))


@pytest.mark.fault("gate: a denied command under another name or with its options elsewhere")
@pytest.mark.parametrize(
    ("rule", "line", "fits"),
    [
        ("python", "python3.11 x.py", True),
        ("python3", "python x.py", True),
        ("python3", "/usr/bin/python3.12 x.py", True),
        ("awk", "gawk x", True),
        ("base64", "base32 x", False),
        ("chmod", "chown x y", False),
        ("git push", "git -C x --no-pager push origin", True),
        ("git push --force", "git push origin main --force", True),
        ("git push --force", "git push origin --force-with-lease", False),
        ("git push", "git commit -m push", False),
        ("git push", "git log push", False),
        ("git push", "bash -c 'git push'", True),
        ("rm -rf", "rm -fr x", True),
        ("rm -rf", "rm -r x -f", True),
        ("rm -rf", "rm -r x", False),
        ("curl", "FOO=1 curl https://a.example", True),
        ("rm", "echo rm", False),
        ("rm", "grep -rn rm .", False),
        ("rm", "git rm x", False),
        ("r*", "/bin/rm x", True),
    ],
)  # fmt: skip
async def test_a_rule_that_denies_words_means_the_command_in_any_order_and_under_any_name(
    rule: str, line: str, fits: bool
) -> None:
    policy = Policy((Rule("allow"), Rule("deny", command=(rule,))))
    decision = await gate(policy).decide(request("shell", RUNS, command=line))
    assert isinstance(decision, Denied if fits else Allowed)


@pytest.mark.fault("gate: a denied command after more text than is read")
@pytest.mark.parametrize("line", ["true;" * 600 + "rm x", "eval " * 3_000 + "rm x", "$X rm", "'rm x", 'bash -c "$X"'])
async def test_where_commands_are_denied_a_line_that_cannot_be_read_in_full_is_asked_about(line: str) -> None:
    call = request("shell", RUNS, command=line)
    denying = Policy((Rule("allow", trusted=True), Rule("deny", command=("rm",))))
    assert isinstance(await gate(denying).decide(call), Deferred | Denied)
    assert isinstance(await gate(Policy((Rule("allow", trusted=True),))).decide(call), Allowed)


@pytest.mark.fault("gate: a path that leads outside after it began inside")
@pytest.mark.parametrize(
    ("rule", "line", "allowed"),
    [
        (Rule("allow", command=("frobnicate x",)), "frobnicate x", True),
        (Rule("allow", command=("frobnicate x",)), "frobnicate x y", False),
        (Rule("allow", command=("frobnicate *",)), "frobnicate x", True),
        (Rule("allow", command=("frobnicate *",)), "frobnicate --all", False),
        (Rule("allow", command=("frobnicate --all",)), "frobnicate --all", False),
        (Rule("allow", command=("cat",), path="/var/log/*"), "cat /var/log/x", True),
        (Rule("allow", command=("cat",), path="/var/log/*"), "cat /var/log/../../etc/passwd", False),
        (Rule("allow", command=("cat",), path="/var/log/*"), "cat /var/log/x /etc/passwd", False),
        (Rule("allow", command=("cat",), path="docs/*"), "cat docs/../../x", False),
    ],
)
async def test_a_rule_allows_the_words_and_the_places_that_it_names(rule: Rule, line: str, allowed: bool) -> None:
    decision = await gate(Policy((rule,))).decide(request("shell", RUNS, command=line))
    assert isinstance(decision, Allowed if allowed else Deferred)


@pytest.mark.parametrize(
    ("line", "within"),
    [
        ("git log | head -3", True),
        ("python x.py", True),
        ("xargs git log", True),
        ("git -c core.pager='rm x' log", False),
        ("git log --frobnicate", False),
        ("xargs rm", False),
        ("xargs --frobnicate rm", False),
        ("git fetch --upload-pack='rm x'", False),
        ("git clone 'ext::rm x'", False),
    ],
)
async def test_a_list_of_all_commands_that_may_run_holds_for_what_they_start(line: str, within: bool) -> None:
    policy = Policy((Rule("allow", trusted=True),), commands=("git", "head", "python", "xargs"))
    decision = await gate(policy).decide(request("shell", RUNS, command=line))
    assert isinstance(decision, Allowed if within else Denied)


@pytest.mark.fault("gate: a path that leads outside after it began inside")
@pytest.mark.parametrize(
    "line", ["cat keys/b.pem", "cat keys/../keys/b.pem", "curl -F f=@keys/b.pem a", "cat < keys/b.pem"]
)
async def test_a_rule_that_denies_a_path_finds_it_in_every_command(line: str) -> None:
    policy = Policy((Rule("allow"), Rule("deny", path="keys/*.pem")))
    assert isinstance(await gate(policy).decide(request("shell", RUNS, command=line)), Denied)


MARKS = (
    "a", " ", "|", "&&", ";", "\n", "$(", "`", ")", "((", "{ ", "}", "'", '"', "<<A\n", "\nA\n", "<<< ", "<(", ">",
    "${", "[[ ", "]]", "x[", "if ", "fi ", "case ", "in ", "esac ", "do ", "for ", "a=(", "\\", "{a,b}", "*", "export ",
)  # fmt: skip
STARTS = (
    "find . -exec ", "env ", "eval ", "sudo ", "xargs ", "bash -c ", "sed '", "awk '", "python -c '", "git -c a=", "-",
)  # fmt: skip
KEYWORDS = ["if", "then", "for", "in", "do", "case", "time", "select", "function", "export", "unset", "local", "test"]
PLAIN_WORDS = st.one_of(st.sampled_from(KEYWORDS), st.text("azAZ059_./,:@%+-=~", min_size=1, max_size=4))
SHAPES = st.tuples(*[st.lists(st.sampled_from(MARKS + STARTS), max_size=4).map("".join)] * 3)


def cost(line: str) -> float:
    """Seconds that it takes to decide about a command line and to make its card."""
    policy = Policy((Rule("allow"), Rule("deny", command=("rm -rf x",)), Rule("deny", path="*/x")))
    call = facts("shell", RUNS, command=line)
    started = process_time()
    policy.denied(call)
    assessed(call)
    return process_time() - started


@pytest.mark.fault("gate: command lines that take long to read")
@pytest.mark.parametrize(
    "unit", ["find . -exec ", "find . -exec true ';' ", *STARTS, *MARKS, "declare 'a[$(", "../", "a@/"]
)
def test_however_often_something_is_nested_or_repeated_reading_it_takes_no_longer_than_its_length(unit: str) -> None:
    for line in (unit * (LONGEST // len(unit)), f"curl {unit * 40}", f"bash -c '{unit * (LONGEST // len(unit) - 5)}'"):
        assert cost(line) < 2
    assert cost(unit * 40) < 0.5


@settings(max_examples=300, deadline=None)
@given(st.lists(PLAIN_WORDS, min_size=1, max_size=5).map(" ".join))
def test_a_plain_command_is_what_the_grammar_finds_in_it(line: str) -> None:
    found, by_grammar = parsed(line), parsed(f"{line}\n")  # the grammar alone reads a line with its end
    assert found == by_grammar or not (found.understood or by_grammar.understood)


@pytest.mark.fault("gate: command lines that take long to read")
@settings(max_examples=30, deadline=None)
@given(SHAPES)
def test_no_shape_of_a_command_line_takes_long_to_read(shape: tuple[str, str, str]) -> None:
    before, unit, after = shape
    assert cost((before + (unit or "a") * LONGEST)[:LONGEST] + after) < 2


@pytest.mark.fault("gate: command lines that take long to read")
def test_a_command_line_of_too_many_commands_is_not_read_in_full() -> None:
    assert reading(parsed("true;" * 499)).complete
    assert not reading(parsed("true;" * 501)).complete
    assert not reading(parsed("env " * 4_000)).complete
