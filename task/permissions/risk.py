"""Assess the harm a call could do, from the parsed call and never from the model's words about it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from posixpath import basename

from task.permissions.arguments import named_values
from task.permissions.decisions import Effect
from task.permissions.facts import CallFacts
from task.permissions.icerc import Level, RiskAssessment, spelt_out, tricks
from task.permissions.programs import LISTED, kind_of
from task.permissions.shell import Command

MOST_DETAILS, DETAIL_CHARS = 12, 200
SHOWN = 3  # files and hosts in the sentence about the scope
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ENDING = frozenset(
    {"cancel", "delete", "destroy", "drop", "erase", "purge", "remove", "reset", "revoke", "terminate", "truncate"}
    | {"uninstall", "unlink", "wipe", "kill", "overwrite"}
)
_REACHING = frozenset(
    {"buy", "deploy", "email", "invite", "mail", "merge", "order", "pay", "post", "publish", "send", "share"}
    | {"transfer", "tweet", "upload", "withdraw"}
)
_AMOUNT = re.compile(r"amount|price|total|sum|quantity|fee|budget|balance|payment|salary|credit", re.IGNORECASE)
_NUMBER = re.compile(r"\W?\s?\d[\d.,' ]*\W?")
_STATEMENT = re.compile(r"\b(?:drop|truncate|delete\s+from|alter|grant|revoke)\b", re.IGNORECASE)
_STATEMENT_NAME = re.compile(r"sql|query|statement", re.IGNORECASE)
_Finding = tuple[Level, str]  # the reason
_RISKS: Mapping[str, _Finding] = {
    "changes": ("medium", "changes files"),
    "contacts": ("medium", "contacts another machine"),
    "unknown": ("medium", "may run code or change data"),
    "unlisted": ("high", "is used in a form that is not on the list, which may do anything"),
    "network": ("high", "may send data to another machine"),
    "discards": ("high", "deletes or changes data that may be lost"),
    "runs": ("high", "runs what its arguments name"),
}


def command_of(facts: CallFacts) -> str:
    """Exactly what will run: the command line, or the tool with its arguments as JSON, one per line."""
    arguments = facts.request.arguments
    if facts.command and len(arguments) == 1 and not facts.unread:
        return facts.command
    lines = [
        f"{name if name.isidentifier() else json.dumps(name)} = {json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in arguments.items()
    ]
    return "\n".join([facts.tool, *lines])


def assessed(facts: CallFacts) -> RiskAssessment:
    """Level, scope and details of the call."""
    found = list(_findings(facts))
    levels = {level for level, _ in found}
    level: Level = "high" if "high" in levels else "medium" if "medium" in levels else "low"
    details = list(dict.fromkeys(_line(text) for _, text in found if text))
    if len(details) > MOST_DETAILS:
        details = [*details[:MOST_DETAILS], f"and {len(details) - MOST_DETAILS} more"]
    return RiskAssessment(level, _scope(facts), "\n".join(details))


def _line(text: str) -> str:
    # A line of its own would look like another finding.
    return " ".join(spelt_out(text).split())[:DETAIL_CHARS]


def _findings(facts: CallFacts) -> Iterator[_Finding]:
    texts = [facts.tool, *facts.request.arguments, *(text for _, text in named_values(facts.request.arguments, str))]
    for trick in dict.fromkeys(trick for text in texts for trick in tricks(text)):
        yield "high", f"the call contains {trick}"
    if Effect.NETWORK in facts.effects:
        yield "low", f"sends {facts.text_length:,} characters to a server"
    if facts.command:
        script = facts.script
        if not script.plain:
            yield "high", f"not a plain line: {script.why}. What it runs is not known"
        for command in script.commands:
            yield from _of_command(command)
        for target in script.writes:
            yield "medium", f"writes into {target}"
    else:
        yield "medium" if facts.effects & {Effect.WRITE, Effect.EXECUTE} else "low", ""
        yield from _of_name(facts)
    writes = bool(facts.effects & {Effect.WRITE, Effect.EXECUTE})
    for path in facts.paths:
        leaves = path in facts.away
        where = " outside the workspace" if leaves else ""
        yield "high" if leaves and writes else "low", f"path{where}: {path}"
    for path in facts.of_git:
        yield "high", f"git's own files: {path}"
    if facts.request.workspace is not None and Effect.NETWORK in facts.effects:
        yield "high", "runs with the network, so it can send what it reads and load what others wrote"
    for host in facts.hosts:
        yield "low", f"host: {host}"
    if not facts.urls_known:
        level: Level = "high" if facts.request.context.tainted else "medium"
        yield level, "the model made this address up: it is in none of your messages and in no result"
    for name, value in named_values(facts.request.arguments, (str, int, float)):
        is_number = _NUMBER.fullmatch(value) if isinstance(value, str) else not isinstance(value, bool)
        if is_number and _AMOUNT.search(name):
            yield "high" if writes else "low", f"amount: {name} = {value}"


def _of_command(command: Command) -> Iterator[_Finding]:
    # Of a plain line, or of the words of one that is not plain.
    kind, name, parts = kind_of(command), command.name, command.parts
    if command.plain and kind != "reads":
        level, does = _RISKS[kind]
        yield level, f"{name} {does}: {' '.join(command.words)[:120]}"
    for word in dict.fromkeys(map(basename, parts[command.plain :] if kind not in LISTED else ())):
        if kind_of(Command((word,))) in ("discards", "network"):
            yield "high", f"{name if command.plain else 'the line'} is given {word}, which it may run"


def _of_name(facts: CallFacts) -> Iterator[_Finding]:
    if Effect.WRITE not in facts.effects:
        return
    words = {word.lower() for word in _WORD.findall(facts.tool)}
    if ends := words & _ENDING:
        yield "high", f"its name suggests that it can {min(ends)} data permanently"
    if reaches := words & _REACHING:
        yield "high", f"its name suggests that it can {min(reaches)} something to other people"
    texts = (text for name, text in named_values(facts.request.arguments, str) if _STATEMENT_NAME.search(name))
    if any(map(_STATEMENT.search, texts)):
        yield "high", "the statement deletes or changes stored data"


def _scope(facts: CallFacts) -> str:
    if facts.command:
        count = len(facts.script.commands) if facts.script.plain else "unknown"
        contacted = f" and contacts {_listed(facts.hosts)}" if facts.hosts else ""
        return f"runs {count} command{'' if count == 1 else 's'}{contacted}"
    remote, writes = Effect.NETWORK in facts.effects, Effect.WRITE in facts.effects
    files = _listed(facts.paths)
    changes = f"changes {files}" if files else f"{facts.tool} may change data{' on its server' if remote else ''}"
    does = {
        **({} if writes else {Effect.READ: f"reads {files or 'data'}"}),
        Effect.WRITE: changes,
        Effect.EXECUTE: "runs code",
        Effect.NETWORK: f"contacts {_listed(facts.hosts) or 'an external server'}",
    }
    return ", ".join(text for effect, text in does.items() if effect in facts.effects) or "only computes"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_line(name) for name in names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
