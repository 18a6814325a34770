"""Citations as DIAL Chat 1.x shows them: annotations of the answer, and empty tags where its text cites a source."""

import re
from collections.abc import Callable, Sequence
from mimetypes import guess_type

from aidial_sdk.chat_completion.chunks import ArbitraryChunk, BaseChunk

from task.conversation.messages import Attachment
from task.conversation.sources import MARKER, Sources, plain_title

_OURS = re.compile(r'(?<=\])(?:<cit id="c\d{1,4}" data-id="c\d{1,4}"></cit>)+')
_LINES = re.compile(r"[^\n]*+\n|[^\n]++")
_LONGEST = 4_000  # characters of a line that is followed
_QUOTE = 600
# A tag must not stand in code, formulas, JSON, addresses and the attributes of other tags. A unit is one of these as a
# whole, text without any, or a marker; what is none of them, or incomplete, makes the rest of its paragraph uncertain.
_UNIT = re.compile(
    rf"(?P<marker>{MARKER.pattern}(?![(:]))|[^\[\]{{`$<\\]++|\\(?![()\[\]])(?:.|\Z)|\$(?=\d)"
    r"|<(?![a-zA-Z/!?])|<[a-zA-Z/!?][^<>]*+>"
    r"|(?P<run>`++)(?:[^`]++|(?!(?P=run)(?!`))`++)++(?P=run)(?!`)"
    r"|\[(?:[^\[\]{`$<\\]++|\[[^\[\]{`$<\\]*+\])*+\](?:\((?:[^()]++|\([^()]*+\))*+\))?+"
)
_ADDRESS = re.compile(r"(?:://|www\.)\S*+\Z")
_FENCE = re.compile(r"[ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+(`{3,}+(?!.*`)|~{3,}+|\$\$(?!.*\$)|\\\[(?!.*\\\]))")
_INDENTED = re.compile(r"(?: {0,3}\t| {4})(?![ \t]*+(?:[-*+]|\d{1,9}[.)])[ \t])")


class Citations:
    """Follows the text of an answer, and puts a tag behind each marker `[n]` of a source that is certainly prose.

    `annotated` are the numbers of the sources that have a tag and an annotation, which is sent by `send`.
    """

    def __init__(self, send: Callable[[BaseChunk], None], sources: Sources) -> None:
        self.annotated = list[int]()
        self._send, self._sources, self._read = send, sources, 0
        self._line, self._place = "", 0  # how far the line is known
        self._fence, self._column, self._uncertain = "", 0, False

    def tagged(self, said: Sequence[str]) -> str:
        """The last piece of what was `said` so far, with tags; their annotations are sent."""
        for piece in said[self._read : -1]:
            self._followed(piece, shown=True)
        self._read = len(said)
        return self._followed(said[-1])

    def _followed(self, piece: str, *, shown: bool = False) -> str:
        text = ""
        for part in _LINES.findall(piece):
            text += self._in_line(part, shown=shown)
            if part.endswith("\n"):
                self._end_line()
        return text

    def _in_line(self, part: str, *, shown: bool) -> str:
        before, places = len(self._line), list[tuple[int, str]]()
        self._line = (self._line + part)[: _LONGEST + 1]
        self._uncertain = self._uncertain or len(self._line) > _LONGEST
        text = self._line.rstrip("\n")
        if self._fence or self._uncertain or _FENCE.match(text) or _INDENTED.match(text):
            self._place = len(text)
            return part
        while unit := _UNIT.match(text, self._place):
            self._place = unit.end()
            is_new = unit["marker"] and unit.end() > before and not shown
            if is_new and not _ADDRESS.search(text, 0, unit.start()):
                places.append((unit.end() - before, self._tags(unit["marker"])))
        for place, tags in reversed(places):
            part = part[:place] + tags + part[place:]
        return part

    def _end_line(self) -> None:
        line, known, self._line, self._place = self._line.rstrip("\n"), self._place, "", 0
        opened = _FENCE.match(line)
        if self._fence:
            inner = line.lstrip(" \t>")
            ends = inner.startswith(self._fence) and not inner.strip(f" \t\r{self._fence[0]}")
            closes = ends and len(line) - len(inner) <= self._column + 3
            self._fence = "" if closes or (self._fence == "\\[" and "\\]" in line) else self._fence
        elif opened:
            self._fence, self._column = opened[1], opened.start(1)
        elif not line.strip():
            self._uncertain = False
        else:
            self._uncertain = self._uncertain or known < len(line)

    def _tags(self, marker: str) -> str:
        tags = list[str]()
        for number, source in self._sources.named(marker):
            if number not in self.annotated:
                self._send(_annotation(len(self.annotated), number, source))
                self.annotated.append(number)
            tags.append(f'<cit id="c{number}" data-id="c{number}"></cit>')
        return "".join(tags)


def _annotation(index: int, number: int, source: Attachment) -> ArbitraryChunk:
    title, quote = plain_title(source), (source.data or "")[:_QUOTE]
    url = source.reference_url or ""
    file = {"type": source.reference_type or guess_type(url)[0] or "text/html", "url": url, "title": title}
    body = {"title": title, "quote": quote, "source": {"type": "attachment", "attachment": file}}
    # Chat finds the tag by one of its attributes, `id` or `data-id`.
    target = {"selector": {"type": "html_tag", "tag": "cit", "id": f"c{number}"}}
    delta = {"custom_fields": {"annotations": [{"index": index, "body": body, "target": target}]}}
    return ArbitraryChunk({"choices": [{"index": 0, "finish_reason": None, "delta": delta}], "usage": None})


def without_tags(text: str) -> str:
    """An answer that comes back, as its model wrote it."""
    return _OURS.sub("", text)
