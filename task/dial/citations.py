"""Citations as DIAL Chat 1.x shows them: annotations of the answer, and empty tags where its text cites a source."""

import re
from collections.abc import Callable, Sequence
from mimetypes import guess_type

from aidial_sdk.chat_completion.chunks import ArbitraryChunk, BaseChunk

from task.conversation.messages import Attachment
from task.conversation.sources import MARKER, Sources, plain_title

_LONGEST = 6_000  # characters of a line, of code or of what is unsure: they are looked at again with each marker
_QUOTE = 600
_MOST = 10  # tags behind one marker, such as [1-50]
_ITEM = r"(?:[-*+]|\d{1,9}[.)])[ \t]"
# A tag must not stand in code, formulas, JSON, addresses and the attributes of other tags. A unit is one of these as a
# whole, text without any, or a marker; where one is incomplete, the rest of the paragraph is unsure.
_UNIT = re.compile(
    rf"(?P<end>^[ \t\r]*+\n|\n)|^(?: {{0,3}}\t| {{4}})(?![ \t]*+{_ITEM}).*+"
    rf"|^[ \t>]*+(?:{_ITEM}[ \t]*+)*+(?P<fence>`{{3,}}+(?!.*`)|~{{3,}}+|\$\$(?!.*\$)).*+(?:\n.*+)*?"
    r"(?:\n[ >]{0,3}(?P=fence)[`~$]*+[ \t\r]*+$|\Z)"
    rf"|\\\[[\s\S]*?(?:\\\]|\Z)|(?P<marker>{MARKER.pattern}(?![(:]))|[^\[\]{{`$<\\\n]++|\\(?![()\[\]])(?:.|\Z)|\$(?=\d)"
    r"|<(?![a-zA-Z/!?])|<[a-zA-Z/!?][^<>\n]*+>|(?P<run>`++)(?:[^`\n]++|(?!(?P=run)(?!`))`++)++(?P=run)(?!`)"
    r"|\[(?:[^\[\]{`$<\\\n]++|\[[^\[\]{`$<\\\n]*+\])*+\](?:\((?:[^()\n]++|\([^()\n]*+\))*+\))?+"
    rf"|(?:.|\n(?![ \t\r]*+\n|[ \t>]*+(?:{_ITEM}[ \t]*+)*+(?:```|~~~|\$\$)))++",
    re.MULTILINE,
)
_LONGEST_ADDRESS = 2_000  # characters


class Citations:
    """Puts a tag behind each marker `[n]` of a source in an answer's prose, and has the source's annotation sent."""

    def __init__(self, send: Callable[[BaseChunk], None], sources: Sources) -> None:
        self._send, self._sources, self._read, self._kept = send, sources, 0, ""
        self._annotated = list[int]()

    def tagged(self, said: Sequence[str]) -> str:
        """The last piece of what was `said` so far, with tags."""
        piece, shown, done, start = said[-1], "", 0, 0
        if len(self._kept) > _LONGEST:
            return piece
        before, self._read = self._kept + "".join(said[self._read : -1]), len(said)
        text = before + piece
        for unit in _UNIT.finditer(text):
            start = unit.end() if unit["end"] else start
            place = unit.end() - len(before)
            if unit["marker"] and place > 0 and not _is_in_address(text[start : unit.start()][-_LONGEST_ADDRESS:]):
                shown, done = shown + piece[done:place] + self._tags(unit["marker"]), place
        self._kept = text[start:]
        return shown + piece[done:]

    def _tags(self, marker: str) -> str:
        cited = self._sources.named(marker)[:_MOST]
        for number, source in cited:
            if number not in self._annotated:
                self._send(_annotation(len(self._annotated), number, source))
                self._annotated.append(number)
        return "".join(f'<cit id="c{number}" data-id="c{number}"></cit>' for number, _ in cited)


def _is_in_address(text: str) -> bool:
    word = "" if text[-1:].isspace() else "".join(text.rsplit(maxsplit=1)[-1:])
    return "://" in word or "www." in word


def _annotation(index: int, number: int, source: Attachment) -> ArbitraryChunk:
    title, url = plain_title(source), source.reference_url or ""
    file = {"type": source.reference_type or guess_type(url)[0] or "text/html", "url": url, "title": title}
    quote = (source.data or "")[:_QUOTE]
    body = {"title": title, "quote": quote, "source": {"type": "attachment", "attachment": file}}
    target = {"selector": {"type": "html_tag", "tag": "cit", "id": f"c{number}"}}
    delta = {"custom_fields": {"annotations": [{"index": index, "body": body, "target": target}]}}
    return ArbitraryChunk({"choices": [{"index": 0, "finish_reason": None, "delta": delta}], "usage": None})
