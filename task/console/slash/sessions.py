"""The stored conversations of the console: listed, chosen, written to files, and taken one turn back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from task.console.terminal.rendering import one_line
from task.conversation.message_manager import MessageManager
from task.conversation.messages import Message, Role
from task.errors import InvalidRequest
from task.product import Services
from task.store.records import Session

LISTED = 20
_HEADINGS = {"system": "System", "user": "User", "assistant": "Assistant", "tool_result": "Tool"}


def local_time(seconds: float) -> str:
    """A time of the store on this machine's clock."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


async def listed_sessions(services: Services, owner: str, current: str | None) -> str:
    """The owner's sessions, numbered, the last used first."""
    sessions = (await (await services.store.get()).sessions.list(owner, LISTED)).items
    if not sessions:
        return "There are no sessions yet."
    lines = [f"{number}. {_listed(session, current)}" for number, session in enumerate(sessions, 1)]
    return "\n".join(["Sessions, the last used first:", *lines, "/resume NUMBER continues one."])


async def session_named(services: Services, owner: str, which: str) -> str:
    """The id of the session with this number in the list, this id, or an id that begins so.

    Raises:
        InvalidRequest: there is none, or several.
    """
    sessions = (await services.store.get()).sessions
    if which.isdecimal() and len(which) < 4:
        found = [item.session_id for item in (await sessions.list(owner, LISTED)).items]
        if not 0 < int(which) <= len(found):
            raise InvalidRequest(f"There is no session {which}; /resume lists {len(found)}.")
        return found[int(which) - 1]
    listed = [item.session_id for item in (await sessions.list(owner, 1000)).items]
    found = [name for name in listed if name.startswith(which)]
    if len(found) > 1 and which not in found:
        raise InvalidRequest(f"{len(found)} sessions begin with {which!r}; write more of the id.")
    return which if which in found or not found else found[0]


async def retry(services: Services, owner: str, session_id: str) -> tuple[str, Message]:
    """A branch of the session that ends before the user's last message, and that message.

    Raises:
        InvalidRequest: the session has no message of the user.
    """
    sessions = (await services.store.get()).sessions
    session = await sessions.get(owner, session_id)
    place = last_question(session.messages)
    if place is None:
        raise InvalidRequest("There is no message to repeat.")
    branch = await sessions.branch(owner, session_id, place)
    return branch.session_id, session.messages[place]


def last_question(messages: Sequence[Message]) -> int | None:
    """The place of the user's last message."""
    return next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role is Role.USER), None)


def drop_last_turn(history: MessageManager) -> None:
    """Leave out the user's last message and what follows it; system messages stay."""
    saved = history.serialize()
    messages: list[dict[str, Any]] = saved["messages"]
    asked = max((n for n, item in enumerate(messages) if item["role"] == "user"), default=len(messages))
    kept = messages[:asked] + [item for item in messages[asked:] if item["role"] == "system"]
    history.deserialize({**saved, "messages": kept})


def save(history: MessageManager, path: Path, *, overwrite: bool) -> str:
    """Write the conversation to a file: as JSON where its name ends so, else as Markdown.

    Raises:
        InvalidRequest: there is such a file and it is not to be overwritten, or it cannot be written.
    """
    saved = history.serialize()
    as_json = path.suffix.lower() == ".json"
    content = orjson.dumps(saved, option=orjson.OPT_INDENT_2) if as_json else markdown(saved["messages"]).encode()
    try:
        with path.open("wb" if overwrite else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise InvalidRequest(f"{path} exists already; /save --overwrite {path} replaces it.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{path} cannot be written: {reason}.") from error
    return f"Saved {len(saved['messages'])} messages to {path}."


def markdown(messages: Sequence[dict[str, Any]]) -> str:
    """Serialised messages as a page for people."""
    parts = ["# Conversation"]
    for item in messages:
        name = f" {item['tool_name']}" if item["role"] == "tool_result" else ""
        parts.append(f"## {_HEADINGS.get(item['role'], item['role'])}{name}")
        calls = [f"- called `{call['function']['name']}`" for call in item.get("tool_calls", ())]
        parts += filter(None, (_text(item["content"]), "\n".join(calls)))
    return "\n\n".join(parts) + "\n"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return Message(Role.USER, content).text()


def _listed(session: Session, current: str | None) -> str:
    here = " (current)" if session.session_id == current else ""
    ended = " (ended)" if session.ended_at is not None else ""
    details = f"{session.session_id}, {session.length} messages, {local_time(session.updated_at)}"
    return f"{one_line(session.title) or 'Untitled'}{here}{ended}: {details}"
