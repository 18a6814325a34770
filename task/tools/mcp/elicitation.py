"""What an MCP server asks the user in the middle of a call, which waits for the answer like one for an approval."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from secrets import token_hex
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from task.conversation.inner import ASKS, inner, interim, transcript
from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.errors import ArgumentsError, ToolError
from task.llm.schemas import plain_schema
from task.permissions.icerc import ICERC, RiskAssessment, visible
from task.tools.models import ToolCallParams
from task.tools.toolbox import Paused, Pending

if TYPE_CHECKING:
    import mcp.types as wire

MAX_FIELDS, MAX_ROUNDS = 10, 5  # of a form; questions of one call
# Characters of a question with a form, or with a page, of which a card must show all; of what the server gets back.
LONGEST, LONGEST_PAGE, LONGEST_STATE = 5_000, 1_000, 10_000
SIMPLE = frozenset({"string", "number", "integer", "boolean"})
# Only pages of the server's own may ask for these. Source: the MCP specification, Elicitation.
_SECRET = re.compile(
    r"pass[ _-]?(?:word|phrase|code|wd)|secret|credential|(?:api|private)[ _-]?key|access[ _-]?token|card number"
    r"|\b(?:pin|cvv|otp|ssn)\b|(?:one[ -]time|security|verification) code|passwor|kennwort|contrase|mot de passe|парол",
    re.IGNORECASE,
)
_PAGE = re.compile(r"[!-\[\]-~]+")  # browsers read a backslash as a slash
REFUSED = "The server asked the user for something, which was declined: {}. The call has not been completed."


def question_of(result: wire.InputRequiredResult, round_: int) -> dict[str, Any]:
    """What the server asks in this round of a call, as JSON. Raises: ValueError: no user is asked that, with why."""
    [(key, request), *more] = (result.input_requests or {}).items()
    if more or request.method != "elicitation/create":
        raise ValueError("users are asked one question at a time, and nothing else")
    asked = request.params.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = json.dumps(asked, ensure_ascii=False)
    if len(text) > LONGEST or len(result.request_state or "") > LONGEST_STATE or round_ > MAX_ROUNDS:
        raise ValueError("it is too long, or one too many")
    question = {"key": key, "state": result.request_state, "message": asked["message"], "round": round_}
    if asked["mode"] == "url":
        parts = urlsplit(asked["url"])
        local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        plain = parts.username is None and _PAGE.fullmatch(asked["url"]) and len(text) <= LONGEST_PAGE
        if not plain or not (parts.scheme == "https" or local):
            raise ValueError("its page is not one with https and a short, plain address")
        return {**question, "shown": {"host": parts.netloc, "page": asked["url"]}}
    schema = plain_schema(asked["requestedSchema"])
    fields = schema.get("properties") or {}
    if not 0 < len(fields) <= MAX_FIELDS or not all(str(shape.get("type")) in SIMPLE for shape in fields.values()):
        raise ValueError(f"a form has one to {MAX_FIELDS} fields, with text, numbers or yes and no")
    if _SECRET.search(text):
        raise ValueError("passwords and secrets are not asked for in a chat")
    answer = {name: shape.get("default") for name, shape in fields.items()}
    shown = {"fields": fields, "needed": schema.get("required", []), "answer": answer}
    return {**question, "schema": {**schema, "additionalProperties": False}, "shown": shown}


def put(call: ToolCall, server: str, question: Mapping[str, Any], problem: str = "") -> Paused:
    """The result of a call that waits for the user's answer; the question is a call of its own, with an own id."""
    shown = {f"{server} asks": question["message"], **question["shown"], **({"problem": problem} if problem else {})}
    asks = ToolCall(f"{ASKS}{token_hex(8)}", FunctionCall(call.name, json.dumps(shown, ensure_ascii=False)))
    kept = interim(call, [Message(Role.ASSISTANT, tool_calls=(asks,), memo=json.dumps(question))])
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in shown.items()]
    card = ICERC("", "\n".join(lines), "", RiskAssessment("medium", f"your answer is sent to {server}"))
    because, title = f"{server} wants to know it before it goes on", visible(f"{server} asks: {question['message']}")
    waiting = Pending(inner(call, asks), card, "", because, title=title, arguments=shown)
    return Paused(Role.TOOL, kept.content, memo=kept.memo, interim=True, waiting=(waiting,))


def answered(
    params: ToolCallParams, server: str, made: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | Paused | None:
    """What the call has asked before, with what is sent for it, or the question again where that is not an answer.

    None: it has asked nothing; `made` tells this call of this tool from others.

    Raises:
        ToolError: the call cannot go on.
    """
    if not (before := transcript(params.earlier, params.tool_call.id)):
        return None
    if not before[-1].tool_calls:  # it was answered, and the process died
        raise ToolError("It was interrupted and may have been done: look before you call it again.")
    question = json.loads(before[-1].memo)
    # The user has changed the arguments, or a tool of another server has got this name.
    if question["made"] != made:
        raise ToolError("It was not completed: it was changed while the user was asked. Call it again.")
    try:
        return question, answer_to(question, params.known_caller.said.get(before[-1].tool_calls[0].id))
    except ArgumentsError as error:
        return put(params.tool_call, server, question, str(error))


def answer_to(question: Mapping[str, Any], said: str | None) -> dict[str, Any]:
    """What is sent to the server, where the user `said` this, or nothing and approved.

    Raises:
        ArgumentsError: the answer does not fit the form, or has not come yet (None).
    """
    from jsonschema import Draft202012Validator

    if said is None:
        raise ArgumentsError("")
    result: dict[str, Any] = {"action": "accept"}
    if "schema" in question:
        fields, values = question["schema"]["properties"], dict(question["shown"]["answer"])
        if isinstance(given := _read(said), dict):
            values = given["answer"] if isinstance(given.get("answer"), dict) else given
        elif said:
            lines = [[part.strip() for part in re.split("[=:]", line, maxsplit=1)] for line in said.split("\n")]
            named = {line[0]: line[1] for line in lines if len(line) > 1 and line[0] in fields}
            if not named and len(fields) > 1:
                raise ArgumentsError(f"write a line for each of {', '.join(fields)}")
            for name, text in (named or {next(iter(fields)): said.strip()}).items():
                words = text.lower()
                is_text = fields[name]["type"] == "string"
                values[name] = text if is_text else _read({"yes": "true", "no": "false"}.get(words, words))
        result["content"] = {name: value for name, value in values.items() if value is not None}
        for fault in Draft202012Validator(question["schema"]).iter_errors(result["content"]):
            raise ArgumentsError(f"{'.'.join(map(str, fault.path)) or 'the answer'}: {fault.message}")
    return result


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
