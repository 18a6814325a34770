"""Every parser of text from outside, with texts for it to read, its bound, and what it may raise."""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from task.api.markdown import blocks_of
from task.api.messages import ChatCompletionRequest
from task.api.responses_items import ResponseRequest
from task.api.runs import ApprovalAnswer, RunStart
from task.api.sessions import SessionStart
from task.approvals.approvals import codes_in, read_reply
from task.coding.verification import pytest_command
from task.console.terminal.answer import MarkdownBlocks
from task.conversation.state import StateRejected, StateSeal
from task.documents.extract import extract
from task.documents.text import decode, decode_html
from task.errors import AgentError, ToolError
from task.llm.base import Accumulator
from task.llm.chat_chunks import EventTooLong, SseReader, _ChatAnswer
from task.llm.failures import retry_after
from task.local.core.config import expanded, load_config
from task.output.links import Suspicion, tag_at
from task.output.sanitizer import Defanger
from task.permissions.hosts import host_of, is_address, words_of
from task.permissions.icerc import Brief, spelt_out, tricks
from task.permissions.risk import assessed
from task.permissions.taint import addresses_in, is_plain, urls_in
from task.settings.document import parsed
from task.skills.skill import skill_of, unpacked
from task.tools.calculator.calculator_tool import CalculationError, evaluate
from task.tools.openapi.document import ApiSpec, operations_of
from tests.support.gating import RUNS, facts
from tests.support.office import paragraph, sheet_file, word_file
from tests.support.pdfs import text_pdf


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser, the texts it is given, how many of 200,000, and the errors that say what is wrong with a text."""

    name: str
    texts: st.SearchStrategy[Any]
    parse: Callable[[Any], object]
    examples: int
    refusals: tuple[type[Exception], ...] = ()


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**70, "", "x", "x" * 5_000, [], {}, [[]], {"a": {}}, [None], "\0", "é\u202e"),
    "1" * 4_000,
    *("https://a.example/'x", "data:,", "files/b/x", {"type": "text"}, [{"type": "image_url"}], "\ud800"),
    json.loads("[" * 300 + "]" * 300),
)


def joined(*marks: str) -> st.SearchStrategy[str]:
    """Texts of these marks and some others; now and then one part is repeated many times."""
    part = st.lists(st.sampled_from((*marks, "a", " ", "\n", "\\", "\0", "é", "\u202e", "0")), max_size=8).map("".join)
    return st.builds(lambda before, again, times, after: before + again * times + after, part, part, TIMES, part)


TIMES = st.sampled_from((1, 1, 1, 1, 1, 1, 1, 2, 40, 500))


def changed(document: Any) -> st.SearchStrategy[Any]:
    """The document with odd values in some places."""
    changes = st.lists(st.tuples(st.integers(0, 200), st.sampled_from(range(len(ODD)))), max_size=4)
    return changes.map(lambda found: _changed(document, found))


def _changed(document: Any, changes: Sequence[tuple[int, int]]) -> Any:
    result = copy.deepcopy(document)
    for number, odd in changes:
        places = list(_places(result))
        if places:
            holder, key = places[number % len(places)]
            holder[key] = copy.deepcopy(ODD[odd])
    return result


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            if isinstance(value[key], dict) or (isinstance(value[key], list) and len(value[key]) > 1):
                yield from _places(value[key])


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """The file with some bytes overwritten, or cut off."""
    spots = st.lists(st.tuples(st.integers(0, len(content)), st.binary(max_size=4)), max_size=4)
    return st.builds(lambda found, end: _damaged(content, found)[:end], spots, st.integers(0, 2 * len(content)))


def _damaged(content: bytes, spots: Sequence[tuple[int, bytes]]) -> bytes:
    for place, new in spots:
        content = content[:place] + new + content[place + len(new) :]
    return content


def _as_utf_8(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return texts.map(lambda text: text.encode("utf-8", "replace"))


def _read(name: str) -> Callable[[bytes], object]:
    return lambda content: extract(name, content)


def _defang(text: str) -> str:
    defanger = Defanger(Suspicion(lambda _: False, lambda: True))
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    return "".join([*map(defanger.feed, pieces), defanger.feed("", last=True)])


def _tag(text: str) -> object:
    tag = tag_at(f"<a {text}", 0, len(text) + 3)
    return tag and tag[1]


def _stream(data: bytes) -> object:
    answer, reader, built = _ChatAnswer((), 1_000_000), SseReader(), Accumulator()
    for start in range(0, len(data), 50):
        reader.feed(data[start : start + 50])
        for delta in answer.feed(data[start : start + 50]):
            built.add(delta)
    reader.close()
    for delta in answer.close():
        built.add(delta)
    return built.message()


def _event(chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _command_line(line: str) -> object:
    return assessed(facts("shell", RUNS, command=line))


def _reply(text: str) -> object:
    return codes_in(text), read_reply(text, None, ["k7f3"])


def _card(text: str) -> object:
    return Brief.read(text), spelt_out(text), tricks(text)


def _unpack(state: Any) -> object:
    seal = StateSeal(b"secret")
    body = {key: value for key, value in state.items() if key != "signature"}
    forged = {**state, "signature": seal.signature(body, "anna")}
    return [seal.unpack(one, "anna") for one in (state, forged)]


def _mcp(answer: Any) -> object:
    from mcp import types as wire

    from task.tools.mcp.results import result_of

    return result_of(wire.CallToolResult.model_validate(answer))


def _addresses(text: str) -> object:
    found = list(urls_in({"url": text, "query": text}))
    return [host_of(text), is_plain(text), addresses_in(text), [*map(host_of, found)], *map(is_address, words_of(text))]


def _bodies(body: Any) -> object:
    content = json.dumps(body)  # lone surrogates too, as escapes
    models: tuple[type[BaseModel], ...] = (
        ChatCompletionRequest,
        ResponseRequest,
        RunStart,
        SessionStart,
        ApprovalAnswer,
    )
    for model in models:
        try:
            model.model_validate_json(content)
        except ValidationError:
            continue
    return None


def _terminal(text: str) -> object:
    blocks = MarkdownBlocks()
    return [
        *(block for start in range(0, len(text), 50) for block in blocks.add(text[start : start + 50])),
        *blocks.end(),
    ]


def _skill(text: str) -> object:
    return skill_of("a", {"SKILL.md": text.encode(errors="replace")}, "picked")


def _archive() -> bytes:
    packed = BytesIO()
    with ZipFile(packed, "w") as archive:
        archive.writestr("a/SKILL.md", "---\nname: a\ndescription: b\n---\nText")
    return packed.getvalue()


def _unpacked(packed: bytes) -> object:
    return unpacked(packed)


def _operations(document: Any) -> object:
    text = document if isinstance(document, str) else json.dumps(document)
    return operations_of(text.encode(errors="replace"), ApiSpec("a", "https://a.example/api.json"))


def _date(text: str) -> object:
    return retry_after({"Retry-After": text}, datetime.now(UTC))


def _core_config(document: Any) -> object:
    path = Path("core.json")
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8", errors="replace")
    return load_config([path], None, lambda found: expanded(found, {}, {}))


CHUNK = {
    "id": "1",
    "choices": [
        {
            "index": 0,
            "delta": {
                "content": "a",
                "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
                "custom_content": {"attachments": [{"type": "text/plain", "url": "files/b/x", "data": "x"}]},
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    "error": None,
}
BODY = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "name": "f"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "temperature": 1,
    "stream": True,
    "metadata": {"a": "b"},
}
STATE = {
    "version": 5,
    "tool_call_history": [{"role": "tool", "content": "x", "tool_call_id": "c"}],
    "pending": [{"call_id": "c", "code": "k7f3", "digest": "d", "reason": "r"}],
    "references": {},
    "turn": "t",
    "expires": 9,
    "resumes": "",
    "grants": "[]",
    "signature": "x",
}
ANSWER = {
    "content": [
        {"type": "text", "text": "a"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "y", "mimeType": "text/plain"}},
        {"type": "resource_link", "uri": "https://a.example", "name": "n"},
    ],
    "structuredContent": {"a": [1]},
    "isError": False,
}
CORE = {
    "models": {"m": {"endpoint": "http://a/${env:X}", "limits": {"maxTotalTokens": 9}, "upstreams": [{"key": "k"}]}},
    "keys": {"k": {"project": "p", "role": "r"}},
    "roles": {"r": {"limits": {"m": {"day": "9"}}}},
    "applications": {"x": {"endpoint": "http://b"}},
}
API = {
    "openapi": "3.1.0",
    "servers": [{"url": "https://a.example/v1"}],
    "paths": {
        "/a/{b}": {
            "parameters": [{"name": "b", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {"operationId": "a", "tags": ["t"], "parameters": [{"$ref": "#/components/parameters/c"}]},
            "post": {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/D"}}}}},
        }
    },
    "components": {
        "parameters": {"c": {"name": "c", "in": "query", "schema": {"type": "integer"}}},
        "schemas": {"D": {"type": "object", "properties": {"d": {"$ref": "#/components/schemas/D"}}}},
    },
}
HTML = (
    *("<p>", "</p>", "<table>", "<tr>", "<td rowspan=9>", "<ul>"),
    *("<a href='", "<img src=", "<!--", "-->", "<script>", "&#x"),
)
MARKDOWN = (
    *("[", "](", ")", "![", "`", "```", "~~~\n", "<", ">", "*"),
    *("_", "|", "|-", "# ", "- ", "https://", "\\", "&lt;", "$$"),
)
SHELL = (
    *("|", "&&", "$(", "`", ")", "'", '"', "<<A\n", ">", "{", "}", "rm ", "sudo ", "find -exec ", "env -S ", "[[ "),
    "=",
)
LINKS = (
    *("https://", "http:", "/", "//", "\\\\", "@", "a.example", ":80"),
    *("?", "#", "%2e", "..", "'", "files/", "\u200b", "[::1]"),
)
YAML = (
    *(": ", "- ", "&a ", "*a", "!!python/object:x ", "{", "}", "[", "]", "'", '"', "|\n", "${X}", "a:\n  ", "<<: "),
    *("? ", "---\n"),
)
DOCUMENT = (
    *("<w:p>", "</w:p>", "<w:r><w:t>x</w:t></w:r>", "<w:tbl>", "<w:tr>", "<w:tc>"),
    *(paragraph("x"), "<w:numPr/>", "&#0;"),
)
ROWS = (
    *('<row r="1">', "</row>", '<c r="A1"><v>1</v></c>', '<c r="XFD9" t="s"><v>9</v></c>'),
    *('<c t="b">', "</c>", "<v>1e9</v>"),
)

PARSERS = (
    Parser("text", _as_utf_8(joined(*MARKDOWN, ",", ";", "\t")), _read("a.txt"), 1_500, (AgentError,)),
    Parser("bytes", st.binary(max_size=300), _read("a.bin"), 21_000, (AgentError,)),
    Parser("csv", _as_utf_8(joined(",", ";", '"', "\t", "\r", "1.5", "sep=")), _read("a.csv"), 1_500, (AgentError,)),
    Parser("json",
           _as_utf_8(joined("{", "}", "[", "]", '"', ":", ",", "1e9", "null")),
           _read("a.json"), 6_000, (AgentError,)),
    Parser("html", _as_utf_8(joined(*HTML)), _read("a.html"), 2_000, (AgentError,)),
    Parser("docx", joined(*DOCUMENT).map(word_file), _read("a.docx"), 2_000, (AgentError,)),
    Parser("xlsx", joined(*ROWS).map(sheet_file), _read("a.xlsx"), 1_500, (AgentError,)),
    Parser("damaged docx", damaged(word_file(paragraph("x"))), _read("a.docx"), 3_000, (AgentError,)),
    Parser("damaged pdf", damaged(text_pdf(1, 3)), _read("a.pdf"), 1_000, (AgentError,)),
    Parser("encoding", st.binary(max_size=200), decode, 3_000, (AgentError,)),
    Parser("encoding of html",
           _as_utf_8(joined("<meta charset=", "utf-16", "'", "\xff")),
           decode_html, 8_000, (AgentError,)),
    Parser("state", changed(STATE), _unpack, 30_000, (StateRejected,)),
    Parser("stream of chunks", changed(CHUNK).map(_event), _stream, 17_000, (AgentError,)),
    Parser("stream of bytes",
           _as_utf_8(joined("data: ", "{", "}", "\r\n", ":", "[DONE]")),
           _stream, 8_000, (AgentError, EventTooLong)),
    Parser("mcp result", changed(ANSWER), _mcp, 16_000, (ValidationError,)),
    Parser("shell", joined(*SHELL), _command_line, 6_000),
    Parser("addresses", joined(*LINKS), _addresses, 16_000),
    Parser("settings", joined(*YAML), parsed, 11_000, (AgentError,)),
    Parser("reply", joined("approve ", "k7f3", ", ", "and ", "deny all", "because", "please", "1"), _reply, 18_000),
    Parser("sanitiser", joined(*MARKDOWN, *HTML), _defang, 4_000),
    Parser("tag", joined(*HTML, "=", '"', "/>"), _tag, 9_000),
    Parser("markdown", joined(*MARKDOWN, *HTML), blocks_of, 2_000),
    Parser("card", joined("Intent: ", "**", "\u0430", "#", ">"), _card, 4_000),
    Parser("request bodies", changed(BODY), _bodies, 7_500),
    Parser("plan's tests", joined("pytest ", "-q ", "a.py::b ", "'", '"', "`"), pytest_command, 4_000),
    Parser("answer in a terminal", joined(*MARKDOWN), _terminal, 2_000),
    Parser("dates", joined("Mon, ", "29 Nov ", "2026 ", "01:00:00 ", "GMT", "(", "+"), _date, 4_000),
    Parser("calculator",
           joined("1", "+", "(", ")", "**", "sqrt(", "9", ".", "e", "!"),
           evaluate, 4_000, (CalculationError,)),
    Parser("skill",
           joined("---\n", "name: a\n", "description: b\n", "allowed-tools: ", *YAML), _skill, 2_000, (ValueError,)),
    Parser("archive of a skill", damaged(_archive()), _unpacked, 2_000, (ValueError,)),
    Parser("API document", changed(API), _operations, 1_000, (ToolError,)),
    Parser("API document in YAML",
           joined("openapi: 3.1.0\n", "paths:\n", "  /a:\n", *YAML), _operations, 2_000, (ToolError,)),
    Parser("core configuration", changed(CORE), _core_config, 1_000, (AgentError,)),
)  # fmt: skip

# A library of these reads a structure of its own. JSON is read in one pass, and its depth is bounded at the doors.
LIBRARIES = (
    "ast|charset_normalizer|csv|dotenv|email|gzip|jsonschema|lxml|markdown_it|nh3|pdfplumber|PIL|pypdfium2|shlex"
    "|tarfile|tomllib|trafilatura|xml|yaml|zipfile|zlib"
)
IMPORTS = re.compile(rf"^\s*(?:import|from) (?:{LIBRARIES})\b", re.MULTILINE)
READER, OWN = "a reader's seconds, memory and characters", "files of the operator or of this installation"
# The modules that use one: their bounds, and what tries their worst input: parsers from above, or tests.
LISTED: Mapping[str, tuple[str, str]] = {
    "mcp_servers/duckduckgo/decoding.py": ("the bytes of a page",
        "integration/test_page_fetch::test_a_gzip_bomb_is_read_no_further_than_its_bound"),
    "mcp_servers/duckduckgo/text.py": (READER,
        "integration/test_page_fetch::test_a_pdf_bomb_is_reported_and_the_next_page_is_read"),
    "mcp_servers/sandbox/objects.py": ("2 GiB, unpacked, of one command",
        "integration/test_workspace_git::test_no_more_is_unpacked_of_new_objects_than_may_be_copied"),
    "task/api/markdown.py": ("100 texts in a request", "markdown"),
    "task/api/page.py": (OWN, ""),
    "task/cli/core_config.py": (OWN, ""),
    "task/cli/model.py": ("checked by hash before", ""),
    "task/cli/up.py": ("only written", ""),
    "task/coding/verification.py": ("a plan's tests", "plan's tests"),
    "task/console/terminal/answer.py": ("a model's answer", "answer in a terminal"),
    "task/console/terminal/rendering.py": ("only written", ""),
    "task/documents/html.py": (READER, "html"),
    "task/documents/office.py": (READER, "docx, xlsx, damaged docx"),
    "task/documents/pdf.py": (READER, "damaged pdf"),
    "task/documents/pdf_layout.py": (READER, "damaged pdf"),
    "task/documents/pdf_recovery.py": (READER, "damaged pdf"),
    "task/documents/tables.py": (READER, "csv"),
    "task/documents/text.py": (READER, "text, bytes, encoding, encoding of html"),
    "task/embedding/weights.py": ("checked by hash before", ""),
    "task/llm/failures.py": ("one header of a response", "dates"),
    "task/local/core/deployments.py": (OWN, ""),
    "task/local/core/images.py": (OWN, ""),
    "task/permissions/arguments.py": ("only written", ""),
    "task/permissions/programs.py": (OWN, ""),
    "task/search/readings.py": (OWN, ""),
    "task/settings/dial.py": (OWN, ""),
    "task/settings/document.py": ("256 KiB, 20,000 values, 50 levels", "settings"),
    "task/settings/sources.py": (OWN, ""),
    "task/skills/skill.py": ("a header of 8 KiB, 100 files of 8 MiB", "skill, archive of a skill"),
    "task/tools/base.py": ("a schema that was reduced",
        "unit/test_strangers_schemas::test_a_strangers_schema_becomes_one_that_is_safe_to_check"),
    "task/tools/calculator/calculator_tool.py": ("4,000 characters", "calculator"),
    "task/tools/mcp/elicitation.py": ("5,000 characters, 10 fields",
        "integration/test_elicitation::test_what_users_are_not_asked_is_declined_with_a_sentence"),
    "task/tools/openapi/document.py": ("16 MiB, 100 operations", "API document, API document in YAML"),
    "task/tools/workspace/commands.py": ("only written", ""),
    "task/tools/workspace/snapshots.py": (OWN, ""),
}  # fmt: skip
