"""What is compared of a conversation, the same for every front door and backend: docs/matrix.md describes it.

The expected projection follows from the conversation alone, so that no cell is the measure of the others.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from task.approvals.questions import without_question
from task.prompts import SYSTEM_PROMPT
from tests.support.scripts import Conversation, ScriptedAnswer, Turn
from tests.support.upstream import Received

SYSTEM = {"role": "system", "text": "<system prompt>"}
BLIND = (
    "[The user attached a picture here; the model in use cannot see pictures. Tell the user if the question needs one.]"
)
_REFERENCE = re.compile(r"reference:? ([0-9a-f]{8})\b")
_STORED = re.compile(r"All of it is in (\S+\.txt):")
_LONG = re.compile(r"=+(?:\\n=+)*")  # what the long report consists of, in JSON
_PLACE = re.compile(r"\$(\w+)")
_TODAY = re.compile(r"Today is [^.]+\. The time of day stands behind the newest message\.")
_TIME_OF_DAY = re.compile(
    r"(?:(?:\\n){1,2}|, \{\"type\": \"text\", \"text\": \")"
    r"\[Note from the system, not from the user: it is \d\d:\d\d, UTC[+-]\d{4}\.\]"
)
_DECISION = re.compile(r"(approve|deny|always)\b")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a front door gives for one message of the user: the answer, the calls with their results so far, the
    tools whose calls wait for the user, the codes of their questions, whether the run failed, and whatever else this
    door shows."""

    answer: str
    calls: Sequence[Mapping[str, Any]]
    results: Sequence[str | None]
    waits: Sequence[str] = ()
    codes: Sequence[str] = ()
    failed: bool = False
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])


def projected(outcome: Outcome, requests: Sequence[Received], places: Mapping[str, str]) -> dict[str, Any]:
    """One turn as it was."""
    turn = {
        "answer": without_question(outcome.answer).strip(),
        "calls": list(outcome.calls),
        "results": list(outcome.results),
        "waits": list(outcome.waits),
        "failed": outcome.failed,
        **outcome.shown,
        "asked": [canonical(request.messages) for request in requests],
        "offered": [request.tools for request in requests],
    }
    return normalised(turn, places)


def normalised(turn: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Without what differs from one run to the next: the places of files, references of errors."""
    text = json.dumps(turn, ensure_ascii=False)
    for name, place in places.items():
        text = text.replace(place, f"<{name}>")
    return json.loads(_LONG.sub("…", _REFERENCE.sub("reference <id>", text)))


def stored(requests: Sequence[Received]) -> dict[str, str]:
    """The place of a result that was too long for the model."""
    text = json.dumps([request.messages for request in requests])
    return {"stored": found[1]} if (found := _STORED.search(text)) is not None else {}


def up_to_the_time(request: Received) -> str:
    """What is sent before the time of day, which stands once, behind the user's newest message; the date may change."""
    text = _TODAY.sub("Today", json.dumps(request.body["messages"]))
    before, *rest = _TIME_OF_DAY.split(text)
    assert len(rest) == 1, "the time of day stands in the newest turn only"
    assert before.startswith('[{"role": "system"'), "the date is part of the system prompt"
    assert "Today" in before.partition('"}, {"role": "user"')[0], "the date is part of the system prompt"
    return before


def continues(request: Received, earlier: Received) -> bool:
    """Whether a request begins, byte for byte, with an earlier one up to its user's message: what providers keep."""
    return _TODAY.sub("Today", json.dumps(request.body["messages"])).startswith(up_to_the_time(earlier))


def canonical(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A request's messages without ids: a result names the number of its call."""
    numbers: dict[str, int] = {}
    return [_canonical(message, numbers) for message in messages]


def _canonical(message: Mapping[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    role = message["role"]
    parts = message.get("content") or ""
    if isinstance(parts, str):
        parts = [{"type": "text", "text": parts}]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    found: dict[str, Any] = {"role": role, "text": text.replace(SYSTEM_PROMPT, "<system prompt>")}
    if pictures := sum(part["type"] == "image_url" for part in parts):
        found["pictures"] = pictures
    if role == "tool":
        return found | {"call": numbers[message["tool_call_id"]]}
    calls = message.get("tool_calls") or ()
    numbers |= {call["id"]: len(numbers) + place for place, call in enumerate(calls)}
    return found | ({"calls": [called(call["function"]) for call in calls]} if calls else {})


def called(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool": function["name"], "arguments": json.loads(function["arguments"])}


def expected(conversation: Conversation, tools: Sequence[str], *, sees: bool, streams: bool) -> list[dict[str, Any]]:
    """Each turn as the conversation says; `sees` and `streams`: the backend takes pictures and streams its answers."""
    history, system, made = list[dict[str, Any]](), SYSTEM, conversation.application
    if made is not None:
        tools, system = made.tools, {**SYSTEM, "text": f"{SYSTEM['text']}{made.system}"}
    turns = [_expected(turn, system, history, tools, sees, streams) for turn in conversation.turns]
    return json.loads(_PLACE.sub(r"<\1>", json.dumps(turns)))


def _expected(
    turn: Turn,
    system: Mapping[str, Any],
    history: list[dict[str, Any]],
    tools: Sequence[str],
    sees: bool,
    streams: bool,
) -> dict[str, Any]:
    results = iter(turn.results)
    waiting = [message for message in history if message.get("text") is None and message["role"] == "tool"]
    if waiting and is_decision(turn.user):
        _fill(history, results)
    else:
        for message in waiting:
            message["text"] = turn.closes
        history.append(_question(turn, sees))
    asked = [[dict(system), *_asked(answer, history, results)] for answer in turn.model]
    return {
        "answer": turn.answer if streams or turn.unstreamed is None else turn.unstreamed,
        "calls": [call.model_dump() for call in turn.tool_calls],
        "results": turn.results,
        "waits": turn.waits,
        "failed": any(answer.breaks for answer in turn.model),
        "asked": asked,
        "offered": [[] if answer.last else list(tools) for answer in turn.model],
    }


def documented_names(turn: Mapping[str, Any]) -> dict[str, Any]:
    """The turn at a door at which the model knows the search under its documented name; a call keeps its own."""
    text = json.dumps({name: part for name, part in turn.items() if name != "calls"})
    for name, documented in (("duckduckgo_web_search", "web_search"), ("max_results", "num_results")):
        text = text.replace(name, documented)
    return {**turn, **json.loads(text)}


def is_decision(text: str) -> bool:
    """Whether a person's message answers the question about a call."""
    return _DECISION.match(text) is not None


def _fill(history: list[dict[str, Any]], results: Iterator[str | None]) -> None:
    start = max(place for place, message in enumerate(history) if "calls" in message)
    for message in history[start + 1 :]:
        message["text"] = next(results)


def _question(turn: Turn, sees: bool) -> dict[str, Any]:
    pictures = sum(item["type"].startswith("image/") for item in turn.attachments)
    text = turn.sent if turn.sent is not None else turn.user
    if not pictures:
        return {"role": "user", "text": text}
    if sees:
        return {"role": "user", "text": text, "pictures": pictures}
    return {"role": "user", "text": f"{text}\n{BLIND}"}


def _asked(
    answer: ScriptedAnswer, history: list[dict[str, Any]], results: Iterator[str | None]
) -> list[dict[str, Any]]:
    """The request for an answer, without its system message; the history then grows by the answer and its calls."""
    note = [{"role": "user", "text": answer.note}] if answer.note is not None else []
    request = [*(dict(message) for message in history), *note]
    text = answer.text if isinstance(answer.text, str) else "".join(answer.text)
    first = sum(message["role"] == "tool" for message in history)
    calls = {"calls": [call.model_dump() for call in answer.call]} if answer.call else {}
    history.append({"role": "assistant", "text": text, **calls})
    history += [{"role": "tool", "text": next(results), "call": first + place} for place in range(len(answer.call))]
    return request
