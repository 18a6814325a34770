"""The slash commands and their table. None of them asks a model; /retry takes a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import orjson

from task.closing import run_blocking
from task.console.attachments import AttachedFile, local_path, unquoted
from task.console.sign_in import sign_in, sign_out
from task.console.slash.picks import list_skills
from task.console.slash.tools import list_tools
from task.console.terminal.rendering import local_time, one_line
from task.context.definition import persona_id
from task.conversation.messages import Message, Role
from task.errors import InvalidRequest
from task.llm.base import Usage
from task.memory.commands import answered
from task.product.skills import PICKED
from task.store.records import Session, StoredGrant
from task.store.trace_records import Trace, TraceFilter

if TYPE_CHECKING:
    from task.console.controller import FrameworkController

NOTHING_ALLOWED = "Nothing is allowed for longer than one call."
LISTED = 20  # sessions
COUNTED = 1_000  # of the newest runs of a session
NO_MESSAGE = "There is no message to repeat."
LONGEST_NAME = 40  # of a command that does not exist
DEFAULT, OVERWRITE, REVOKE, DETACH = "default", "--overwrite", "revoke", "detach"


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """`run` takes what follows the name and returns what to show; `during_turn`: it may run while an answer is made."""

    usage: str
    help: str
    run: Callable[[FrameworkController, str], str | None]
    during_turn: bool = False

    @property
    def name(self) -> str:
        return self.usage.split()[0]


def find_command(name: str) -> SlashCommand:
    """The command of this name. Raises: InvalidRequest, with the nearest one, if there is none."""
    command = COMMANDS.get(name.lower())
    if command is None:
        name = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
        near = get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5)
        advice = f"Did you mean {near[0]}?" if near else "Type /help for available commands."
        raise InvalidRequest(f"Unknown command: {name}. {advice}")
    return command


def _wrong_use(name: str) -> InvalidRequest:
    return InvalidRequest(f"Usage: {COMMANDS[name].usage}")


def _marked(name: str, *, current: bool) -> str:
    return f"- {name} (current)" if current else f"- {name}"


def show_help(console: FrameworkController, argument: str) -> str | None:
    if not argument:
        console.ui.display_special_command_help({command.usage: command.help for command in COMMANDS.values()})
        return None
    command = find_command(f"/{argument.lstrip('/')}")
    return f"{command.usage}: {command.help}"


def leave(console: FrameworkController, argument: str) -> None:
    console.quit()


def clear(console: FrameworkController, argument: str) -> str:
    console.history.clear_history(preserve_system=True)
    console.attached.clear()
    console.session_id = None
    return "Conversation history cleared."


def add_system_message(console: FrameworkController, argument: str) -> str:
    if not argument:
        raise _wrong_use("/system")
    console.history.add_system_message(argument)
    return f"Added system message: {argument}"


def switch_debug(console: FrameworkController, argument: str) -> str:
    console.ui.debug_mode = not console.ui.debug_mode
    return f"Debug mode {'enabled' if console.ui.debug_mode else 'disabled'}."


def choose_persona(console: FrameworkController, argument: str) -> str:
    profile, conversation = console.product.profile, console.conversation
    usual = profile.context.persona if profile.context is not None else ""
    if not argument:
        known = run_blocking(profile.context.personas) if profile.context is not None else {}
        if not known:
            return "There are no personas: a context definition names them (setting `context.definition_path`)."
        current = conversation.persona or usual
        return "\n".join(["Personas:", *(_marked(name, current=name == current) for name in known)])
    if argument == DEFAULT:
        conversation.persona = ""
        return f"Persona: {usual or 'none'}."
    run_blocking(profile.context_prompt, argument)  # refuses one that does not exist
    conversation.persona = persona_id(argument)
    return f"Persona: {conversation.persona}."


def list_or_revoke_grants(console: FrameworkController, argument: str) -> str:
    owner, (action, _, which) = console.caller.owner, argument.partition(" ")
    if argument and (action != REVOKE or not which.strip()):
        raise _wrong_use("/permissions")

    def described(grant: StoredGrant) -> str:
        until = f", until {local_time(grant.expires_at)}" if grant.expires_at is not None else ""
        return f"{grant.data.get('description') or grant.data.get('tool', '')}{until}"

    async def found() -> str:
        store = await console.product.services.store.get()
        # Without a session only those that count everywhere: the next session will have no others.
        grants = dict(enumerate(await store.grants.list(owner, console.session_id or ""), 1))
        if not grants:
            return NOTHING_ALLOWED
        if not argument:
            lines = [f"{number}. {described(grant)} ({grant.grant_id})" for number, grant in grants.items()]
            return "\n".join(["Allowed without asking:", *lines])
        chosen = [grant for number, grant in grants.items() if which in ("all", str(number), grant.grant_id)]
        if not chosen:
            raise InvalidRequest(f"There is no grant {which!r}; /permissions lists them.")
        for grant in chosen:
            await store.grants.revoke(owner, grant.grant_id)
        return "\n".join(f"Revoked: {described(grant)}" for grant in chosen)

    return run_blocking(found)


def show_or_change_memory(console: FrameworkController, argument: str) -> str:
    memories, caller = console.product.services.memory, console.caller.of_tools()
    return run_blocking(answered, memories, caller, "console", f"/memory {argument}")


def choose_model(console: FrameworkController, argument: str) -> str:
    conversation = console.conversation
    known = run_blocking(console.product.profile.listed_models, console.caller.core_key)
    spellings = {argument or conversation.model, f"{argument or conversation.model}:latest"}  # the second is Ollama's
    if not argument:
        if not known:
            return f"Model: {conversation.model}. Its provider lists no others; /model NAME takes any."
        lines = [_marked(name, current=name in spellings) for name in known]
        return "\n".join([f"Model: {conversation.model}. The provider has:", *lines])
    if known and spellings.isdisjoint(known):
        near = get_close_matches(argument, known, n=1)
        advice = f"Did you mean {near[0]}?" if near else "/model lists them."
        raise InvalidRequest(f"The provider has no model {argument!r}. {advice}")
    conversation.chosen_model = argument
    return f"Model: {argument}, from the next message on."


def change_files(console: FrameworkController, argument: str) -> str:
    def listed(file: AttachedFile) -> str:
        return file.name if file.stored else f"{file.name} (the model reads it in the working directory)"

    action, _, rest = argument.partition(" ")
    if not argument:
        if not console.attached:
            return "No file is attached. /files PATH attaches one to the next message; so does @PATH in a message."
        return "\n".join(["Files of the next message:", *(f"- {listed(file)}" for file in console.attached)])
    if action != DETACH:
        return f"Attached {listed(console.attach(local_path(unquoted(argument), console.product.tools.folder)))}"
    name = unquoted(rest.strip())
    gone = [file for file in console.attached if name in ("all", file.name, file.path.name, str(file.path))]
    if not gone:
        raise InvalidRequest(f"{name or 'No file'} is not attached; /files lists what is.")
    console.attached[:] = [file for file in console.attached if file not in gone]
    return f"Detached: {', '.join(file.name for file in gone)}."


def save(console: FrameworkController, argument: str) -> str:
    first, rest = [*argument.split(maxsplit=1), "", ""][:2]
    overwrite, name = first == OVERWRITE, rest if first == OVERWRITE else argument
    if not name:
        raise _wrong_use("/save")
    path, saved = local_path(unquoted(name), console.product.tools.folder), console.history.serialize()
    if path.suffix.lower() == ".json":
        content = orjson.dumps(saved, option=orjson.OPT_INDENT_2)
    else:
        parts = ["# Conversation"]
        for item in saved["messages"]:
            heading = f"Tool {item['tool_name']}" if item["role"] == "tool_result" else item["role"].title()
            parts.append(f"## {heading}")
            calls = [f"- called `{call['function']['name']}`" for call in item.get("tool_calls", ())]
            parts += filter(None, (Message(Role.USER, item["content"]).text(), "\n".join(calls)))
        content = ("\n\n".join(parts) + "\n").encode()
    try:
        with path.open("wb" if overwrite else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists already; /save --overwrite {path} replaces it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{path} cannot be written: {reason}.") from error
    return f"Saved {len(saved['messages'])} messages to {path}."


def resume(console: FrameworkController, argument: str) -> str | None:
    async def listed() -> tuple[Session, ...]:
        store = await console.product.services.store.get()
        return (await store.sessions.list(console.caller.owner, LISTED)).items

    sessions = dict(enumerate(run_blocking(listed), 1))
    if argument.isdecimal() and len(argument) < 4:
        if int(argument) not in sessions:
            raise InvalidRequest(f"There is no session {argument}; /resume lists {len(sessions)}.")
        argument = sessions[int(argument)].session_id
    if argument:
        console.resume(argument)
        return None
    if not sessions:
        return "There are no sessions yet."
    lines = ["Sessions, the last used first:"]
    for number, session in sessions.items():
        marks = " (current)" * (session.session_id == console.session_id) + " (ended)" * (session.ended_at is not None)
        details = f"{session.session_id}, {session.length} messages, {local_time(session.updated_at)}"
        lines.append(f"{number}. {one_line(session.title) or 'Untitled'}{marks}: {details}")
    return "\n".join([*lines, "/resume NUMBER continues one."])


def show_cost(console: FrameworkController, argument: str) -> str:
    session_id, usage = console.session_id, dict[str, Usage]()
    if session_id is None:
        return "Nothing was asked in this conversation yet."

    async def read() -> Sequence[Trace]:
        store = await console.product.services.store.get()
        await store.writer.flush()
        return (await store.traces.list(console.caller.owner, COUNTED, which=TraceFilter(session_id))).items

    traces = run_blocking(read)
    for trace in traces:
        for model, used in trace.usage.items():
            usage[model] = usage.get(model, Usage()) + used
    total = sum(used.prompt_tokens + used.completion_tokens for used in usage.values())
    lines = [f"{total} tokens in {len(traces)} runs of the session {session_id}."]
    for model, used in usage.items():
        lines.append(f"- {model}: {used.prompt_tokens} in requests, {used.completion_tokens} in answers")
    priced = [trace.cost for trace in traces if trace.cost is not None]
    unpriced = len(traces) - len(priced)
    without = f", without {unpriced} runs of models without a price" if unpriced else ""
    cost = f"{sum(priced):.6g}{without}" if priced else "unknown; the setting `prices` has the prices of models"
    return "\n".join([*lines, f"Cost: {cost}."])


def retry(console: FrameworkController, argument: str) -> None:
    owner, session_id = console.caller.owner, console.session_id or ""

    async def branched() -> tuple[str, Message, tuple[str, ...]]:
        sessions = (await console.product.services.store.get()).sessions
        messages = (await sessions.get(owner, session_id)).messages if session_id else ()
        places = [place for place, item in enumerate(messages) if item.role is Role.USER]
        if not places:
            raise InvalidRequest(NO_MESSAGE)
        branch = await sessions.branch(owner, session_id, places[-1])
        calls = [call for item in messages[places[-1] + 1 :][:1] for call in item.tool_calls]
        picked = tuple(call.texts()[0] for call in calls if call.id.startswith(PICKED))
        return branch.session_id, messages[places[-1]], picked

    console.session_id, message, console.conversation.skills = run_blocking(branched)
    # The history forgets the user's last message and what follows it; system messages stay.
    kept = console.history.serialize()["messages"]
    asked = max((place for place, item in enumerate(kept) if item["role"] == "user"), default=len(kept))
    later = [item for item in kept[asked:] if item["role"] == "system"]
    console.history.deserialize({"messages": kept[:asked] + later})
    console.ui.display_user_message(message.text())
    console.send(message)


_ALLOWED = "List what was allowed for longer than one call, or revoke it."
_FILES = "List the files of the next message, attach one, or detach it."
_SAVED = "Write the conversation: JSON where the path ends in .json, else Markdown."
_ALL = (
    SlashCommand("/help [command]", "Show this list, or the line of one command.", show_help, during_turn=True),
    SlashCommand("/quit", "End the program; the conversation is kept.", leave, during_turn=True),
    SlashCommand("/exit", "The same as /quit.", leave, during_turn=True),
    SlashCommand("/clear", "Clear the conversation but its system messages, and start a new session.", clear),
    SlashCommand("/system <message_content>", "Add a system message to the conversation.", add_system_message),
    SlashCommand("/debug", "Switch summaries of what goes to the model and to tools.", switch_debug, during_turn=True),
    SlashCommand("/persona [name|default]", "List the personas, or choose one for the conversation.", choose_persona),
    SlashCommand("/permissions [revoke number|id|all]", _ALLOWED, list_or_revoke_grants, during_turn=True),
    SlashCommand("/memory [on|off|add|edit|delete|export]", "What is remembered of you.", show_or_change_memory),
    SlashCommand("/tools", "List the tools, and what is missing and why.", list_tools, during_turn=True),
    SlashCommand("/skills", "List skills and prompts, which /NAME uses.", list_skills, during_turn=True),
    SlashCommand("/sign-in [server]", "Sign in to an MCP server in the browser.", sign_in),
    SlashCommand("/sign-out <server>", "Delete your tokens of an MCP server.", sign_out),
    SlashCommand("/model [name]", "Show the models of the provider, or switch to one.", choose_model),
    SlashCommand("/files [path | detach name|all]", _FILES, change_files, during_turn=True),
    SlashCommand("/save [--overwrite] <path>", _SAVED, save, during_turn=True),
    SlashCommand("/resume [number|id]", "List the sessions, those of the web page too, or continue one.", resume),
    SlashCommand("/cost", "Show the tokens and the cost of this session.", show_cost, during_turn=True),
    SlashCommand("/reload", "Read configuration and context again.", lambda console, _: console.reload()),
    SlashCommand("/retry", "Repeat the last message in a branch of the session.", retry),
)
COMMANDS: Mapping[str, SlashCommand] = {command.name: command for command in _ALL}
