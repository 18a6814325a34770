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
# Tags stand in plain prose. A unit is code, an address, a link or a short text in brackets as a whole, text without any
# of them, or a marker; from what could begin code, a formula, JSON or HTML, the rest of the paragraph has no tags.
_UNIT = re.compile(
    rf"(?P<end>\n)|^(?: {{0,3}}\t| {{4}})(?![ \t]*+{_ITEM}).*+"
    rf"|^[ \t>]*+(?>(?:{_ITEM}[ \t]*+)*)(?P<fence>`{{3,}}+(?!.*`)|~{{3,}}+|\$\$(?!.*\$)).*+(?:\n.*+)*?"
    r"(?:\n[ >]{0,3}(?P=fence)[`~$]*+[ \t\r]*+$|\Z)"
    rf"|(?P<marker>{MARKER.pattern}(?![(:]))|(?:://|www\.)\S*+|(?>(?:(?!://|www\.)[^\[{{`$<\\\n])+)|\$(?=\d)"
    r"|(?<!`)`[^`\n]++`(?!`)|\[[^\[\]{`$<\\\n]*+\](?>(?:\([^()\s]*+\))?)"
    rf"|(?>(?:.|\n(?![ \t\r]*+\n|[ \t>]*+(?>(?:{_ITEM}[ \t]*+)*)(?:```|~~~|\$\$)))+)",
    re.MULTILINE,
)


class Citations:
    """Puts a tag behind each marker `[n]` of a source in an answer's prose, and has the source's annotation sent."""

    def __init__(self, send: Callable[[BaseChunk], None], sources: Sources) -> None:
        self._send, self._sources, self._read, self._kept = send, sources, 0, ""
        self._annotated = list[int]()

    def tagged(self, said: Sequence[str]) -> str:
        """The last piece of what was `said` so far, with tags."""
        piece, shown, done, start = said[-1], list[str](), 0, 0
        if len(self._kept) > _LONGEST:
            return piece
        before, self._read = self._kept + "".join(said[self._read : -1]), len(said)
        text = before + piece
        for unit in _UNIT.finditer(text):
            start = unit.end() if unit["end"] else start
            place = unit.end() - len(before)
            if unit["marker"] and place > 0:
                shown += (piece[done:place], self._tags(unit["marker"]))
                done = place
        self._kept = text[start:]
        return "".join([*shown, piece[done:]])

    def _tags(self, marker: str) -> str:
        cited = self._sources.named(marker)[:_MOST]
        for number, source in cited:
            if number not in self._annotated:
                self._send(_annotation(len(self._annotated), number, source))
                self._annotated.append(number)
        return "".join(f'<cit id="c{number}" data-id="c{number}"></cit>' for number, _ in cited)


def _annotation(index: int, number: int, source: Attachment) -> ArbitraryChunk:
    title, url = plain_title(source), source.reference_url or ""
    file = {"type": source.reference_type or guess_type(url)[0] or "text/html", "url": url, "title": title}
    quote = (source.data or "")[:_QUOTE]
    body = {"title": title, "quote": quote, "source": {"type": "attachment", "attachment": file}}
    target = {"selector": {"type": "html_tag", "tag": "cit", "id": f"c{number}"}}
    delta = {"custom_fields": {"annotations": [{"index": index, "body": body, "target": target}]}}
    return ArbitraryChunk({"choices": [{"index": 0, "finish_reason": None, "delta": delta}], "usage": None})
