"""The policy: ordered rules that allow, deny or ask, by tool, effect, path, command and host.

At the end are the rules of a coding run, and the question about its preparation.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from posixpath import join, normpath
from typing import Literal

from task.conversation.messages import FunctionCall, ToolCall
from task.permissions.decisions import CallRequest, Effect, WorkspaceAccess
from task.permissions.facts import MOST_URLS, CallFacts
from task.permissions.matching import concerned, is_spelt_out, other_command
from task.permissions.names import names_of
from task.permissions.programs import kind_of, writes_nothing

Action = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; a condition that is not set fits every call.

    A rule that allows must fit all of a call: the call has at most these `effects`, and every path, command and host
    fits. A rule that denies or asks needs only one effect, path, command or host to fit. `tool`, `path` and `host` are
    globs, `command` is how commands may begin, word by word. `known_url`: whether every URL occurs in a result or in
    the user's messages. `trusted`: the rule also allows while text from outside is in the conversation. `workspace`:
    the call is one of a workspace tool and leads nowhere else; its commands are confined there, so knowing them is
    enough. `tainted`: text from outside is in the conversation, apart from what earlier ones have left.
    """

    action: Action
    tool: str = "*"
    effects: frozenset[Effect] | None = None
    path: str | None = None
    command: tuple[str, ...] = ()
    host: str | None = None
    known_url: bool | None = None
    trusted: bool = False
    workspace: bool = False
    tainted: bool = False

    def fits(self, facts: CallFacts) -> bool:
        if not self.names(facts.tool) or (self.workspace and not facts.confined):
            return False
        if self.tainted and not facts.request.context.tainted_in_conversation:
            return False
        if self.effects is not None:
            allowed = facts.effects <= self.effects
            if not (allowed if self.action == "allow" else facts.effects & self.effects):
                return False
        if self.known_url is not None and facts.urls_known is not self.known_url:
            return False

        def paths() -> Iterable[str]:
            if self.action == "allow":
                return map(normpath, facts.paths)
            found = [*facts.paths, *facts.words]
            return [*found, *(normpath(join(facts.script.folder, path)) for path in found), *map(normpath, found)]

        if self.host is not None and len(facts.urls) > MOST_URLS:
            return self.action != "allow"
        fits = self.path is None or self._fit(self.path, paths)
        fits = fits and (self.host is None or self._fit(self.host, lambda: facts.hosts))
        return fits and (not self.command or self._command_fits(facts))

    def names(self, tool: str) -> bool:
        """Whether the rule is about the tool, under whichever of its names."""
        return self.tool == "*" or any(fnmatchcase(name, self.tool) for name in names_of(tool))

    def describe(self) -> str:
        """The rule in one line, as in the settings."""
        parts = [f"{self.action} {self.tool}"]
        parts += [f"effects={','.join(sorted(self.effects))}"] if self.effects is not None else []
        command = " | ".join(self.command) or None
        named = {"path": self.path, "command": command, "host": self.host, "known_url": self.known_url}
        parts += [f"{name}={value}" for name, value in named.items() if value is not None]
        parts += [name for name in ("trusted", "workspace", "tainted") if getattr(self, name)]
        return " ".join(parts)

    def _fit(self, pattern: str, found: Callable[[], Iterable[str]]) -> bool:
        fitting = [fnmatchcase(value, pattern) for value in found()]
        return (bool(fitting) and all(fitting)) if self.action == "allow" else any(fitting)

    def _command_fits(self, facts: CallFacts) -> bool:
        commands = facts.script.commands
        if self.action != "allow":
            return any(concerned(commands, self.command))
        if facts.unread:
            return False
        if self.workspace:
            listed = bool(commands) and not other_command(facts.script, self.command)
            return listed and "discards" not in map(kind_of, commands)
        covered = writes_nothing(facts.script) and (self.path is not None or not (facts.leaving or facts.of_git))
        return covered and all(is_spelt_out(one, self.command) for one in commands)


@dataclass(frozen=True)
class Policy:
    """Deny wins over everything; then the first rule that fits decides; if none does, the user is asked.

    `only`: no other tools may be called at all. `commands`: how commands may begin at all, word by word.
    """

    rules: tuple[Rule, ...]
    only: frozenset[str] | None = None
    commands: tuple[str, ...] | None = None

    def offers(self, tool: str) -> bool:
        """Whether the tool may be called at all."""
        return self.only is None or not self.only.isdisjoint(names_of(tool))

    def denied(self, facts: CallFacts) -> str:
        """Why the call must not run; empty if nothing forbids it."""
        if not self.offers(facts.tool):
            return f"{facts.tool} is not among the allowed tools"
        if self.commands is not None and (facts.command or facts.unread):
            other = other_command(facts.script, self.commands) or (facts.tool if facts.unread else "")
            reason = f"it is not known or not among the allowed commands ({', '.join(self.commands)})"
            if other:
                return f"Command '{other}' is not in the allowed commands list: {reason}"
        denying = (rule for rule in self._strict if rule.action == "deny" and rule.fits(facts))
        rule = next(denying, None) if self._strict else None
        if rule is None:
            return ""
        if rule.tainted:
            return f"the conversation contains text from outside, and {facts.tool} never runs then"
        because = f"a rule forbids it ({rule.describe()})"
        meant = next((one.name for one in concerned(facts.script.commands, rule.command)), "")
        return f"Command '{meant}' is explicitly blocked by security policy: {because}" if meant else because

    def restricts_commands(self, facts: CallFacts) -> bool:
        """Whether a rule denies commands of the tool, or asks about them."""
        return bool(self._strict) and any(rule.command and rule.names(facts.tool) for rule in self._strict)

    def first(self, facts: CallFacts) -> Rule | None:
        return next((rule for rule in self.rules if rule.action != "deny" and rule.fits(facts)), None)

    @cached_property
    def _strict(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.action != "allow")  # few policies have any

    @cached_property
    def fingerprint(self) -> str:
        """Different for every policy, the same in every process."""
        rules = [
            {**asdict(rule), "effects": None if rule.effects is None else sorted(rule.effects)} for rule in self.rules
        ]
        only = None if self.only is None else sorted(self.only)
        return sha256(json.dumps([rules, self.commands, only], sort_keys=True).encode()).hexdigest()


def dead_rules(rules: Sequence[Rule], tools: Collection[str] | None = None) -> dict[int, str]:
    """Why rules can never decide, by their numbers from 1: hidden by a wider one, or no tool in `tools` (None: any)."""
    dead: dict[int, str] = {}
    earlier: list[Rule] = []
    # A rule that denies decides before all others, wherever it stands.
    for number, rule in sorted(enumerate(rules, 1), key=lambda numbered: numbered[1].action != "deny"):
        if (hiding := next((other for other in earlier if _covers(other, rule)), None)) is not None:
            dead[number] = f"the rule '{hiding.describe()}' decides first"
        elif tools is not None and not any(map(rule.names, tools)):
            dead[number] = f"no tool is called {rule.tool}"
        earlier.append(rule)
    return dict(sorted(dead.items()))


def _covers(wide: Rule, narrow: Rule) -> bool:
    # A rule of another sense needs all to fit where this one needs one: only what has no condition covers it.
    same_sense = (wide.action == "allow") == (narrow.action == "allow")
    plain = not any(mark in narrow.tool for mark in "*?[")
    if wide.tool not in (narrow.tool, "*") and not (plain and wide.names(narrow.tool)):
        return False
    if wide.tainted and not narrow.tainted:
        return False
    if wide.effects is not None and not (same_sense and narrow.effects is not None and narrow.effects <= wide.effects):
        return False
    pairs = ((wide.path, narrow.path), (wide.host, narrow.host), (wide.command or None, narrow.command or None))
    same_url = wide.known_url in (None, narrow.known_url)
    return same_url and all(a is None or (same_sense and a == b) for a, b in pairs)


DEFAULT_RULES = (
    Rule("allow", effects=frozenset({Effect.READ})),
    Rule("allow", tool="execute_code", effects=frozenset({Effect.EXECUTE})),  # has more effects without our sandbox
    Rule("allow", effects=frozenset({Effect.READ, Effect.NETWORK}), known_url=True),
)
REMEMBER, FORGET = "remember", "forget"
MEMORY_RULES = tuple(Rule("deny", tool, tainted=True) for tool in (REMEMBER, FORGET))
DEFAULT_POLICY = Policy(DEFAULT_RULES)

SETUP = "run --setup"  # a name that no tool can have: it is the user's own command, never offered to a model
WORKSPACE_TOOLS = ("fs_read", "fs_write", "fs_list", "fs_edit", "fs_search", "shell_run", "python_run")
_LOCAL = frozenset({Effect.READ, Effect.WRITE, Effect.EXECUTE})
# Documented; what such a program runs by itself is confined by the sandbox.
_COMMANDS = """ls cd cat head tail find grep sort uniq wc diff pwd echo tree stat file cut tr sed awk rg true test mkdir
touch cp mv make cmake npm pip cargo go git python python3 pytest node ruff mypy"""
ALLOWED_COMMANDS = tuple(_COMMANDS.split())
CODING_RULES = (
    *(Rule("allow", name, frozenset({Effect.READ, Effect.WRITE}), workspace=True) for name in ("fs_write", "fs_edit")),
    Rule("allow", "shell_run", _LOCAL, command=ALLOWED_COMMANDS, workspace=True),
    Rule("allow", "python_run", _LOCAL, workspace=True),
)
_YES_RULES = (Rule("allow", effects=_LOCAL, workspace=True), Rule("allow", SETUP, _LOCAL | {Effect.NETWORK}))


def coding_policy(policy: Policy, *, yes: bool = False) -> Policy:
    """The policy after `--apply`: what stays in the workspace runs where `policy` has no rule that asks or denies.

    `yes` answers the questions that are left about the workspace and about the setup; never one about a call that
    leads out of the workspace, that text from outside makes dangerous, or that a rule of the operator asks.
    """
    rules = (*policy.rules, *CODING_RULES, *(_YES_RULES if yes else ()))
    # The setup is the user's own command, not a tool that could be on a list of tools.
    only = policy.only if policy.only is None else policy.only | {SETUP}
    return replace(policy, rules=rules, only=only)


def is_listed(line: str, root: str) -> bool:
    """Whether a command line in the workspace at `root` runs documented commands only, and stays there."""
    facts = CallFacts(_request("shell_run", line, root, Effect.EXECUTE))
    return any(rule.command and rule.fits(facts) for rule in CODING_RULES)


def setup_request(command: str, root: str) -> CallRequest:
    """The call that a gate decides about before `--setup` runs, with the network, in the workspace at `root`."""
    return _request(SETUP, command, root, Effect.WRITE, Effect.EXECUTE, Effect.NETWORK)


def _request(tool: str, line: str, root: str, *effects: Effect) -> CallRequest:
    call = ToolCall(tool, FunctionCall(tool, json.dumps({"cmd": line})))
    return CallRequest(call, {"cmd": line}, frozenset(effects), workspace=WorkspaceAccess(root))
