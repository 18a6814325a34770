"""Readers of text files: plain text and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from task.documents.encoding import decode
from task.documents.model import Block, Extraction

_STRING = r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+(?:"|\\?\Z)'
# One line of the indented form: an optional key, a bracket or a scalar, an optional comma.
_LINE = re.compile(rf"(?:({_STRING})\s*:\s*)?({_STRING}|[{{}}\[\]]|[^\s{{}}\[\],:\"]+)\s*(,?)")


def read_text(content: bytes, content_type: str = "") -> Extraction:
    decoded = decode(content)
    return Extraction((Block(decoded.text),), decoded.notes)


def read_json(content: bytes, content_type: str = "") -> Extraction:
    """JSON indented by two spaces, its numbers and keys exactly as they were; text with a note where it is invalid."""
    decoded = decode(content)
    if not decoded.text.strip():
        return Extraction(notes=decoded.notes)
    try:
        json.loads(decoded.text)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        return Extraction((Block(decoded.text),), (*decoded.notes, f"not valid JSON ({reason}), given as it is"))
    return Extraction((Block(_indented(decoded.text)),), decoded.notes)


def _indented(text: str) -> str:
    pieces: list[str] = []
    room = 4 * len(text) + 10_000
    for piece in _lines(text):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:  # the indentation of deep nesting would fill the memory
            return text
    return "".join(pieces).lstrip()


def _lines(text: str) -> Iterator[str]:
    indent, is_opening = "\n", False
    for match in _LINE.finditer(text):
        key, value, comma = match.groups()
        if value in ("]", "}"):
            indent = indent[:-2]
            yield f"{value}{comma}" if is_opening else f"{indent}{value}{comma}"
            is_opening = False
            continue
        yield f"{indent}{_readable(key)}: {_readable(value)}{comma}" if key else f"{indent}{_readable(value)}{comma}"
        is_opening = value in ("[", "{")
        if is_opening:
            indent += "  "


def _readable(part: str) -> str:
    r"""The part with its \uXXXX letters as letters, unless half of a surrogate pair would be left alone."""
    if "\\u" not in part:
        return part
    readable = json.dumps(json.loads(part), ensure_ascii=False)
    return part if any("\ud800" <= letter <= "\udfff" for letter in readable) else readable
