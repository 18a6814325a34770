"""The slash commands: one table, and what finds and runs them. None of them asks a model; /retry takes a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from task.closing import run_blocking
from task.console.console import Console
from task.console.slash.attaching import AttachedFile, attach, local_path, mentioned, message_with, unquoted
from task.console.slash.inspecting import cost, grants, revoke, tools
from task.console.slash.sessions import drop_last_turn, listed_sessions, retry, save, session_named
from task.context.definition import persona_id
from task.conversation.messages import Message
from task.errors import AgentError, InvalidRequest

COMMAND = "Command"  # the type of the errors shown
NO_TURN = "{name} waits until the answer is complete; Ctrl-C stops it."
USAGE = "Usage: {usage}"
LONGEST_NAME = 40  # of a command that does not exist


@dataclass(frozen=True, slots=True)
class Command:
    """`run` takes what follows the name and returns what to show; `during_turn`: it may run while an answer is made."""

    usage: str
    help: str
    run: Callable[[Console, str], str]
    during_turn: bool = False

    @property
    def name(self) -> str:
        return self.usage.split()[0]


def run_command(console: Console, text: str) -> bool:
    """Run the command that `text` is and show its result; False: it is none."""
    if not text.startswith("/"):
        return False
    name, argument = [*text.split(maxsplit=1), ""][:2]
    command = COMMANDS.get(name.lower())
    try:
        if command is None:
            raise InvalidRequest(unknown(name))
        if console.answering and not command.during_turn:
            raise InvalidRequest(NO_TURN.format(name=command.name))
        if shown := command.run(console, argument.strip()):
            console.ui.display_system_message(shown)
    except AgentError as error:
        console.ui.display_error_message(COMMAND, str(error))
    except KeyboardInterrupt:
        console.ui.display_error_message(COMMAND, f"{name} was stopped.")
    return True


def user_message(console: Console, text: str) -> Message:
    """The user's message with the attached files and with those that it names as `@path`.

    Raises:
        InvalidRequest: one of these cannot be attached; nothing has changed for the others.
    """
    for path in mentioned(text, console.product.folder):
        attach_file(console, path)
    message = message_with(text, console.attached)
    console.attached.clear()
    return message


def unknown(name: str) -> str:
    """What to say about a command that does not exist, with the nearest one."""
    name = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
    near = get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5)
    advice = f"Did you mean {near[0]}?" if near else "Type /help for available commands."
    return f"Unknown command: {name}. {advice}"


def _help(console: Console, argument: str) -> str:
    if not argument:
        console.ui.display_special_command_help({command.usage: command.help for command in COMMANDS.values()})
        return ""
    command = COMMANDS.get(f"/{argument.lstrip('/').lower()}")
    if command is None:
        raise InvalidRequest(unknown(f"/{argument.lstrip('/')}"))
    return f"{command.usage}: {command.help}"


def _quit(console: Console, argument: str) -> str:
    console.quit()
    return ""


def _clear(console: Console, argument: str) -> str:
    console.history.clear_history(preserve_system=True)
    console.attached.clear()
    console.session_id = None
    return "Conversation history cleared."


def _system(console: Console, argument: str) -> str:
    if not argument:
        raise _wrong_use("/system")
    console.history.add_system_message(argument)
    return f"Added system message: {argument}"


def _debug(console: Console, argument: str) -> str:
    console.ui.debug_mode = not console.ui.debug_mode
    return f"Debug mode {'enabled' if console.ui.debug_mode else 'disabled'}."


def _persona(console: Console, argument: str) -> str:
    context = console.product.profile.context
    known = run_blocking(context.personas) if context is not None else []
    usual = context.persona if context is not None else ""
    if not argument:
        if not known:
            return "There are no personas: a context definition names them (setting `context.definition_path`)."
        current = console.persona or usual
        return "\n".join(["Personas:", *(_marked(name, name == current) for name in known)])
    if argument == DEFAULT:
        console.persona = ""
        return f"Persona: {usual or 'none'}."
    run_blocking(console.product.profile.context_prompt, argument)  # refuses one that does not exist
    console.persona = persona_id(argument)
    return f"Persona: {console.persona}."


def _permissions(console: Console, argument: str) -> str:
    action, _, which = argument.partition(" ")
    if argument and (action != REVOKE or not which.strip()):
        raise _wrong_use("/permissions")
    if not argument:
        return run_blocking(grants, console.product, console.caller.owner, console.session_id)
    return run_blocking(revoke, console.product, console.caller.owner, console.session_id, which.strip())


def _tools(console: Console, argument: str) -> str:
    return run_blocking(tools, console.product, console.caller)


def _model(console: Console, argument: str) -> str:
    known = run_blocking(console.product.profile.listed_models, console.caller.core_key)
    if not argument:
        if not known:
            return f"Model: {console.model}. Its provider lists no others; /model NAME takes any."
        lines = [_marked(name, name in _spellings(console.model)) for name in known]
        return "\n".join([f"Model: {console.model}. The provider has:", *lines])
    if known and _spellings(argument).isdisjoint(known):
        near = get_close_matches(argument, known, n=1)
        advice = f"Did you mean {near[0]}?" if near else "/model lists them."
        raise InvalidRequest(f"The provider has no model {argument!r}. {advice}")
    console.model = argument
    return f"Model: {argument}, from the next message on."


def _files(console: Console, argument: str) -> str:
    action, _, rest = argument.partition(" ")
    if not argument:
        if not console.attached:
            return "No file is attached. /files PATH attaches one to the next message; so does @PATH in a message."
        return "\n".join(["Files of the next message:", *map(_listed_file, console.attached)])
    if action == DETACH:
        return _detach(console.attached, unquoted(rest.strip()))
    found = attach_file(console, local_path(unquoted(argument), console.product.folder))
    return f"Attached{_listed_file(found).removeprefix('-')}"


def attach_file(console: Console, path: Path) -> AttachedFile:
    """Attach a file to the next message, once.

    Raises:
        InvalidRequest: it cannot be attached.
    """
    found = run_blocking(attach, console.product, console.caller, path)
    console.attached[:] = [*(file for file in console.attached if file.path != path), found]
    return found


def _save(console: Console, argument: str) -> str:
    words = argument.split(maxsplit=1)
    overwrite = bool(words) and words[0] == OVERWRITE
    name = (words[1] if len(words) > 1 else "") if overwrite else argument
    if not name:
        raise _wrong_use("/save")
    return save(console.history, local_path(unquoted(name), console.product.folder), overwrite=overwrite)


def _resume(console: Console, argument: str) -> str:
    services, owner = console.product.services, console.caller.owner
    if not argument:
        return run_blocking(listed_sessions, services, owner, console.session_id)
    console.resume(run_blocking(session_named, services, owner, argument))
    return ""


def _cost(console: Console, argument: str) -> str:
    if console.session_id is None:
        return "Nothing was asked in this conversation yet."
    return run_blocking(cost, console.product, console.caller.owner, console.session_id)


def _reload(console: Console, argument: str) -> str:
    return console.reload()


def _retry(console: Console, argument: str) -> str:
    if console.session_id is None:
        raise InvalidRequest("There is no message to repeat.")
    session_id, message = run_blocking(retry, console.product.services, console.caller.owner, console.session_id)
    console.session_id = session_id
    drop_last_turn(console.history)
    console.ui.display_user_message(message.text())
    console.send(message)
    return ""


DEFAULT, OVERWRITE, REVOKE, DETACH = "default", "--overwrite", "revoke", "detach"
COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        Command("/help [command]", "Show this list, or the line of one command.", _help, during_turn=True),
        Command("/quit", "End the program; the conversation is kept.", _quit, during_turn=True),
        Command("/exit", "The same as /quit.", _quit, during_turn=True),
        Command("/clear", "Clear the conversation but its system messages, and start a new session.", _clear),
        Command("/system <message_content>", "Add a system message to the conversation.", _system),
        Command("/debug", "Switch summaries of what goes to the model and to tools.", _debug, during_turn=True),
        Command("/persona [name|default]", "List the personas, or choose one for the conversation.", _persona),
        Command(
            "/permissions [revoke number|id|all]", "List what was allowed for longer than one call, or revoke it.",
            _permissions, during_turn=True,
        ),
        Command("/tools", "List the tools, and what is missing and why.", _tools, during_turn=True),
        Command("/model [name]", "Show the models of the provider, or switch to one.", _model),
        Command(
            "/files [path | detach name|all]", "List the files of the next message, attach one, or detach it.", _files,
            during_turn=True,
        ),
        Command(
            "/save [--overwrite] <path>", "Write the conversation: JSON where the path ends in .json, else Markdown.",
            _save, during_turn=True,
        ),
        Command("/resume [number|id]", "List the sessions, those of the web page too, or continue one.", _resume),
        Command("/cost", "Show the tokens and the cost of this session.", _cost, during_turn=True),
        Command("/reload", "Read configuration and context again.", _reload),
        Command("/retry", "Repeat the last message in a branch of the session.", _retry),
    )
}  # fmt: skip


def _wrong_use(name: str) -> InvalidRequest:
    return InvalidRequest(USAGE.format(usage=COMMANDS[name].usage))


def _spellings(model: str) -> set[str]:
    return {model, f"{model}:latest"}  # the second is Ollama's


def _marked(name: str, current: bool) -> str:
    return f"- {name} (current)" if current else f"- {name}"


def _listed_file(file: AttachedFile) -> str:
    return f"- {file.name} ({file.note})" if file.note else f"- {file.name}"


def _detach(attached: list[AttachedFile], name: str) -> str:
    gone = [file for file in attached if name in ("all", file.name, file.path.name, str(file.path))]
    if not gone:
        raise InvalidRequest(f"{name or 'No file'} is not attached; /files lists what is.")
    attached[:] = [file for file in attached if file not in gone]
    return f"Detached: {', '.join(file.name for file in gone)}."
