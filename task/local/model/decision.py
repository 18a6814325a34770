"""Decisions as constrained JSON: the schema of the next step, the parsing of the model's JSON, and attached files."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast
from urllib.parse import unquote

import orjson

from task.conversation.inputs import file_names
from task.conversation.messages import Message, Role, ToolCall, user
from task.llm.base import ToolSchema
from task.llm.schemas import simple_schema
from task.local.model.prompt import ASK, CARDS, CORRECT, DESCRIBE, READER, RUNNER
from task.local.model.tables import PAGES, Table, is_table, parsed, table_of

REPLY = "reply"
REPLIED = '[{"tool":"reply"}]'
CHART = "chart"
CALCULATOR = "calculator"
CALLS = 4  # in one step
MOST_FILES = 4  # that are read at once
TEXT = 300  # characters of an argument of the product's own tools
SHORT = 4000  # characters of a file that needs no search in it
# Numbers, signs and the calculator's functions: otherwise small models write columns and variables into it.
ARITHMETIC = (
    r"^([-+*/%^()., 0-9\[\]]|sqrt|sin|cos|tan|asin|acos|atan|degrees|radians|log10|log2|log|exp|round|abs|min|max|sum"
    r"|factorial|floor|ceil|pow|pi|e)+$"
)
_FILE = re.compile(r"(?<![\w/])files/[^\s)\]\"'|]+")
_PAGE = re.compile(r"https?://[^\s)\]\"'|<>]+")
_NOTHING = re.compile(r"\s*+[-+]?+[\d.,]*+\s*+")  # to calculate: the model knows the answer
_NOTE = re.compile(r"(?<!\n)\n*+Attached files:\n(?>(?:- .*+(?:\n|\Z))+)\s*+\Z")
_LISTED = re.compile(r"^- (.+) \([^()\n]*\): (\S+)$", re.MULTILINE)
_UNSAFE = re.compile(r"[^\w .-]")  # in a string literal
_PRINTED_NOTHING = "**Output:**\n```\n(nothing was printed)\n```"  # before a table that is the result
_FAILED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)", re.MULTILINE)
_VALUE = re.compile(r"-?\d[\d.]*(?:e[-+]?\d+)?")
# What asks for an amount, in English or in another language, and what asks for more than that
_AMOUNT = re.compile(r"(?i)\b(?:(how (?:much|many|far|long)|what|calculate)|wie ?viele?|combien|cu[aá]nt\w+|quant\w)\b")
_MORE = re.compile(r"(?i)\b(?:explain|why|show|write|draw|translate|list|steps?|round(?:ed)?|decimals?)\b")
_REST = re.compile(r"(?i)\b(?:change|back|left|remains?|remaining)\b")
_NUMBER = re.compile(r"(?<![\d.])\d++(?:\.\d++)?")
_RATE = re.compile(rf"(?i)({_NUMBER.pattern}) (cents?|euros?|dollars?|pounds?|francs?) (?:an?|per) ([a-z]+)")
_CAP = re.compile(rf"(?i)(?:at most|(?:never|not|no) more than) ({_NUMBER.pattern}) (?:euro|dollar|pound|franc)")
_WORD = re.compile(r"[a-z]{4,}")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n{2,}")
_Json = dict[str, Any]
Call = tuple[str, _Json]  # the tool's name, and its arguments


def addresses_in(messages: Sequence[Message]) -> dict[str, list[str]]:
    """The values that arguments of these names may have: the files and web pages that the conversation names."""
    texts = [message.text() for message in messages]
    files = list(dict.fromkeys(url for text in texts for url in _FILE.findall(text)))
    pages = list(dict.fromkeys(url.rstrip(".,;:!?") for text in texts for url in _PAGE.findall(text)))
    return {"file_url": files, "file_urls": files, "url": pages, "urls": pages}


def unread(addresses: Mapping[str, list[str]], messages: Sequence[Message]) -> dict[str, list[str]]:
    """The addresses without the short files that the conversation contains completely: nothing is left to look up.

    Except tables, from which each question is computed.
    """
    last = last_question(messages)
    read = {
        url
        for place, url, text in readings(messages)
        if len(text) <= SHORT and PAGES not in text and (place > last or not is_table(url))
    }
    return {name: [url for url in known if url not in read] for name, known in addresses.items()}


def decision_schema(
    tools: Sequence[ToolSchema], addresses: Mapping[str, Sequence[str]], tool_choice: Any
) -> _Json | None:
    """The JSON schema of the next step; None where no call is possible.

    A tool that needs a file or a page is offered only where there is one. `tool_choice` is OpenAI's.
    """
    forced = tool_choice["function"]["name"] if isinstance(tool_choice, Mapping) else None
    functions = [tool["function"] for tool in tools if forced in (None, tool["function"]["name"])]
    calls: list[_Json] = []
    for name, parameters in ((str(one["name"]), simple_schema(one.get("parameters") or {})) for one in functions):
        if any(addresses.get(required) == [] for required in parameters.get("required", ())):
            continue
        arguments = _closed({"type": "object", "properties": {}} | parameters, addresses)
        if card := CARDS.get(name):
            shown = {key: value for key, value in arguments["properties"].items() if key in card.arguments}
            # Small models repeat themselves endlessly.
            limit = {"pattern": ARITHMETIC} if name == CALCULATOR else {"maxLength": TEXT}
            for key, value in shown.items():
                if value.get("type") == "string" and key != "code":
                    shown[key] = value | limit
            arguments = closed_object(shown, arguments["required"])
        calls.append(closed_object({"tool": {"const": name}, "arguments": arguments}, ["tool", "arguments"]))
    if not calls:
        return None
    # Calls of one tool only: otherwise a small model makes the second tool's call before it has the first one's result.
    wanted = [{"type": "array", "minItems": 1, "maxItems": CALLS, "items": call} for call in calls]
    if forced is not None or tool_choice == "required":
        return {"anyOf": wanted}
    reply = closed_object({"tool": {"const": REPLY}}, ["tool"])
    return {"anyOf": [{"type": "array", "minItems": 1, "maxItems": 1, "items": reply}, *wanted]}


def closed_object(properties: Mapping[str, Any], required: Sequence[str]) -> _Json:
    """The JSON schema of an object with these properties only, the required ones first."""
    ordered = {name: properties[name] for name in sorted(properties, key=lambda name: name not in required)}
    known = [name for name in required if name in properties]
    return {"type": "object", "properties": ordered, "required": known, "additionalProperties": False}


def _closed(schema: Mapping[str, Any], addresses: Mapping[str, Sequence[str]]) -> _Json:
    # Only what a grammar can express; files and pages are those of the conversation.
    if options := schema.get("anyOf"):
        return {"anyOf": [_closed(option, addresses) for option in options]}
    closed = {key: schema[key] for key in ("type", "enum") if key in schema}
    if "items" in schema:
        closed["items"] = _closed(schema["items"], addresses)
    if "properties" in schema:
        properties: _Json = {}
        for name, value in schema["properties"].items():
            known = addresses.get(name)
            properties[name] = {"enum": known} if known else _closed(value, addresses)
            if known and value.get("type") == "array":
                properties[name] = {"type": "array", "minItems": 1, "maxItems": len(known), "items": {"enum": known}}
        closed |= closed_object(properties, schema.get("required", ()))
    return closed


def calls_in(text: str, tools: Sequence[ToolSchema], messages: Sequence[Message]) -> list[Call]:
    """The calls in the model's JSON, without those that already have a result in this turn.

    Where a program names a file by its address, that is replaced by the file's name in the working directory.
    """
    steps, found, made = parsed(text), list[Call](), calls_made(messages)
    names, files = {tool["function"]["name"] for tool in tools}, names_of(addresses_in(messages)["file_url"], messages)
    for step in cast("list[Any]", steps if isinstance(steps, list) else [steps]):
        match step:
            case {"tool": "calculator", "arguments": {"expression": str(term)}} if _NOTHING.fullmatch(term):
                continue
            case {"tool": name, "arguments": {**arguments}} if name in names:
                if name == RUNNER:
                    arguments["code"] = with_names(str(arguments.get("code", "")), files)
                if (name, arguments) not in (*found, *made):
                    found.append((name, arguments))
            case _:
                pass
    return found


def ruled(messages: Sequence[Message]) -> list[Call]:
    """The calculation that the one rule such as "15 cents a day, at most 9 euros", in a short question or file that was
    read for it, gives for so many days; none where another number may have a part in it, or another rule fits the
    question's words as well."""
    last = last_question(messages)
    question, found = without_note(messages[last].text()), dict[str, int]()
    if len(question) > SHORT or not _AMOUNT.search(question):
        return []
    read = (text for place, _, text in readings(messages) if place > last and len(text) <= SHORT)
    rules = (" ".join(rule.split()) for text in read for rule in _SENTENCE.split(text) if _RATE.search(rule))
    for text in ("", *rules):
        rates, caps, numbers = (part.findall(f"{question} {text}") for part in (_RATE, _CAP, _NUMBER))
        counts = re.findall(rf"({_NUMBER.pattern}) {rates[0][2]}s?\b", question) if len(rates) == 1 else []
        if len(counts) == 1 and sorted(numbers) == sorted([rates[0][0], *caps, *counts]):
            price = Decimal(rates[0][0]) / (100 if rates[0][1].startswith("c") else 1)
            shared = set(_WORD.findall(question.lower())) & set(_WORD.findall(text.lower()))
            found[f"min({counts[0]}*{price}, {caps[0]})" if caps else f"{counts[0]}*{price}"] = len(shared)
    best = [term for term, shared in found.items() if shared == max(found.values())]
    return [(CALCULATOR, {"expression": best[0]})] if len(best) == 1 else []


def computed(messages: Sequence[Message]) -> str:
    """The answer to a question for an amount, and no more, that the calculator has just given; empty for any other."""
    question, known = without_note(messages[last_question(messages)].text()), calls_by_id(messages)
    results = [*itertools.takewhile(lambda one: one.role is Role.TOOL, reversed(messages))][::-1]
    made = [(known.get(one.tool_call_id or ""), one.text()) for one in results]
    is_right = all(call and call.name == CALCULATOR and _VALUE.fullmatch(value) for call, value in made)
    if not made or not is_right or _MORE.search(question) or not (asked := _AMOUNT.search(question)):
        return ""
    terms = {value: str(call.arguments().get("expression")) for call, value in made if call}
    if _REST.search(question):  # what is left or comes back may be computed the wrong way round
        terms = {value.lstrip("-"): f"abs({term})" if value[0] == "-" else term for value, term in terms.items()}
    values = " and ".join(f"**{value}** (`{term}`)" for value, term in terms.items())
    return f"The result{'s are' if len(terms) > 1 else ' is'} {values}." if asked[1] else values.replace(" and ", ", ")


def calls_by_id(messages: Sequence[Message]) -> dict[str, ToolCall]:
    return {call.id: call for message in messages for call in message.tool_calls}


@dataclass(frozen=True, slots=True)
class TableStep:
    """The step about a `table`: the conversation, which ends with its description and the question, and the last
    sentence, `ask`.

    `computed`: a program over it has run without an error; the conversation then ends with its result. Before that the
    model was `asked`, and has `decided` on the program.
    """

    table: Table
    messages: tuple[Message, ...]
    question: str
    computed: bool
    ask: str
    asked: tuple[Message, ...] = ()
    decided: str = ""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of this step: a selection, a program, or a reply."""
        # A program that is written freely over all rows would forget the filter as well.
        rows = {"rows": {"type": "string", "pattern": self.table.rows_pattern(self.question)}}
        result = {"type": "string", "pattern": self.table.result_pattern(self.question)}
        steps = ({**rows, "result": result}, {**rows, CHART: {"type": "string"}}, {"reply": {"const": True}})
        return {"anyOf": [closed_object(step, list(step)) for step in steps]}

    def calls(self, text: str) -> list[Call]:
        """The call in the JSON that the schema allows; none for a reply, or for JSON that was cut off."""
        step: dict[str, str] = parsed(text) or {}
        if "rows" not in step:
            return []
        return [(RUNNER, {"code": self.table.program(step["rows"], step.get(CHART) or step["result"])})]


def table_step(messages: Sequence[Message]) -> TableStep | None:
    """The next step when the last result is the only table that was read, or a program over it; None otherwise."""
    call = calls_by_id(messages).get(messages[-1].tool_call_id or "")
    if call is None or call.name not in (READER, RUNNER):
        return None
    asked, result = last_question(messages), messages[-1].text()
    question = without_note(messages[asked].text())
    read = {url: text for place, url, text in reversed(readings(messages)) if place > asked}
    names = names_of(read, messages)
    tables = [table for url, text in read.items() if (table := table_of(names[url], text))]
    code = str(call.arguments().get("code", ""))
    if len(tables) != 1 or (call.name == RUNNER and not code.startswith(tables[0].loading)):
        return None
    # What an earlier question's tools returned would only take time to read.
    past = (message for message in messages[:asked] if message.role is not Role.TOOL and not message.tool_calls)
    said = [replace(one, content=without_note(one.text())) for one in past]
    parts, ask, decided = [str(tables[0]), question], ASK, ""
    first = (*said, user("\n\n".join(parts)))
    if call.name == RUNNER:
        # What the model has chosen, and what came of it, without the loading and the columns computed for the choice
        chosen = code[max(code.find("\nrows = "), len(tables[0].loading)) :].strip()
        output = result.rpartition(code)[2].lstrip("`\n").removeprefix(_PRINTED_NOTHING).strip()
        failed = _FAILED.search(result) is not None
        parts, ask = (parts, CORRECT) if failed else ([question], DESCRIBE)
        parts.append(f"{chosen}\n\nResult:\n{output}")
        rows, _, wanted = chosen.removeprefix("rows = ").partition("\n")
        decided = orjson.dumps({"rows": rows, "result": wanted}).decode()
    return TableStep(tables[0], (*said, user("\n\n".join(parts))), question, ask is DESCRIBE, ask, first, decided)


def readings(messages: Sequence[Message]) -> list[tuple[int, str, str]]:
    """What was read of files: the place of the result, the file's address, and the text."""
    calls = calls_by_id(messages)
    return [
        (place, str(call.arguments().get("file_url", "")), message.text())
        for place, message in enumerate(messages)
        if (call := calls.get(message.tool_call_id or "")) and call.name == READER
    ]


def last_question(messages: Sequence[Message]) -> int:
    """The place of the last message of the user."""
    return max((place for place, message in enumerate(messages) if message.role is Role.USER), default=0)


def calls_made(messages: Sequence[Message]) -> list[Call]:
    """The calls since the last question."""
    calls = (call for message in messages[last_question(messages) :] for call in message.tool_calls)
    return [(call.name, call.arguments()) for call in calls]


def without_note(text: str) -> str:
    """A message's text without the list of its attached files."""
    return _NOTE.sub("", text)


def attached_tables(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """The addresses of the tables attached to the question that has just been asked, and of those attached before it,
    where it has no attachments."""
    if messages[-1].role is not Role.USER:
        return [], []
    asked = (message for message in reversed(messages) if message.role is Role.USER)
    current, *earlier = ([url for url, title in _attached(one).items() if is_table(title)] for one in asked)
    if _NOTE.search(messages[-1].text()):
        return current[:MOST_FILES], []
    return [], next(filter(None, earlier), [])[:MOST_FILES]


def _attached(message: Message) -> dict[str, str]:
    note = _NOTE.search(message.text())
    return {url: title for title, url in _LISTED.findall(note[0]) if url.startswith("files/")} if note else {}


def names_of(urls: Iterable[str], messages: Sequence[Message]) -> dict[str, str]:
    """The name under which a program finds each of the files."""
    titles = {url: title for message in messages for url, title in _attached(message).items()}
    names = dict(zip(titles, file_names((title, url) for url, title in titles.items()), strict=True))
    return {url: names.get(url) or unquote(url.rsplit("/", 1)[-1]) for url in urls}


def with_names(code: str, names: Mapping[str, str]) -> str:
    """The program with the files' names in place of their addresses; no name can end the string that it stands in."""
    for url in sorted(names, key=len, reverse=True):
        code = code.replace(url, _UNSAFE.sub(lambda mark: f"\\U{ord(mark[0]):08x}", names[url]))
    return code
