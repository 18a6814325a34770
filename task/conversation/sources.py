"""The sources of an answer: each has one number in the whole conversation, and the answer carries those it cites."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import count

from task.conversation.messages import Attachment, Message, Role, attached

MARKER = re.compile(r"\[(\d{1,4}+(?>(?:\s*+[,;–-]\s*+\d{1,4}+)*))\]")
# The agent's own in DIAL, which are no part of what a model wrote.
TAGS = re.compile(r'(?<=\])(?:<cit id="c\d{1,4}" data-id="c\d{1,4}"></cit>)+')
_RANGE = re.compile(r"(\d+)(?:\s*[–-]\s*(\d+))?")
_TITLE = re.compile(r"\A\s*+\[(\d{1,4})\]\s*+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_PAGES = ("http://", "https://")
_URL_ENDS = r"(?![\w/?&=#%~-]|\.\w)"
_LONGEST_RANGE = 50
_ACTIVE = re.compile(r"[\[\]<]")  # what would be a link or a picture in the chat, which shows a citation as Markdown
_LONGEST_TITLE, _LONGEST_QUOTE = 200, 600


class Sources:
    """Numbers what the tools of a turn find; `messages` are the conversation before, whose sources keep their numbers.

    Equal keys have equal numbers: a page that two searches find is one source. `citations` are the sources so far.
    """

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.citations: dict[int, Attachment] = {}
        self._own: set[Attachment] = set()
        self._quotes: set[int] = set()  # the numbers of this turn's sources that are no pages
        for message in messages if any(attached(messages)) else ():
            if message.role is Role.USER:
                self._quotes.clear()
            for item in message.attachments if message.role is Role.TOOL else ():
                if (number := number_of(item)) is not None:
                    self._add(number, item)
        self._free = count(max(self.citations, default=0) + 1)

    def named(self, marker: str) -> list[tuple[int, Attachment]]:
        """The sources that a marker such as `[1, 3]` names, with their numbers."""
        return [(number, self.citations[number]) for number in dict.fromkeys(_in(marker)) if number in self.citations]

    def number(self, key: Hashable) -> int:
        if key not in self._numbers:
            self._numbers[key] = next(self._free)
        return self._numbers[key]

    def citation(
        self, number: int, title: str, *, data: str, reference_url: str, reference_type: str | None = None
    ) -> Attachment:
        """The attachment with which an answer cites the source that has the number."""
        shown = f"[{number}] {title}"
        return self._own_citation(number, Attachment("text/markdown", shown, data, None, reference_url, reference_type))

    def of_others(self, url: str, title: str, quote: str) -> tuple[int, Attachment]:
        """The number and the citation of a source that a server or a deployment names, whose words are from outside."""
        number = self.number(url := url.partition("#")[0])
        title, quote = " ".join(title.split())[:_LONGEST_TITLE], _ACTIVE.sub(r"\\\g<0>", quote[:_LONGEST_QUOTE])
        return number, self.citation(number, title, data=quote, reference_url=url)

    def adopted(self, message: Message) -> Message:
        """A tool's result; where the tool numbered its sources by itself, they have numbers of this conversation."""
        moved, attachments = dict[int, int](), list[Attachment]()
        for item in message.attachments:
            number = number_of(item)
            if number is not None and item not in self._own:
                title = plain_title(item)
                if number not in moved:
                    moved[number] = self.number(_key(item) or (item.reference_url, title, item.data))
                item = replace(item, type="text/markdown", title=f"[{moved[number]}] {title}")
                self._own_citation(moved[number], item)
            attachments.append(item)
        if not moved:
            return message

        def marker(found: re.Match[str]) -> str:
            numbers = _in(found[1])  # of years, indexes and the like none is a source's
            if moved.keys().isdisjoint(numbers):
                return found[0]
            return f"[{', '.join(map(str, dict.fromkeys(moved.get(number, number) for number in numbers)))}]"

        text = MARKER.sub(marker, message.text())
        return replace(message, content=text, attachments=tuple(attachments))

    def cited(self, text: str) -> list[Attachment]:
        """The citations for an answer: what its text names by number or address, else the quotes that were found.

        Pages that the text does not name are results that were not used.
        """
        prose = _CODE.sub("", text)
        named = {number for found in MARKER.findall(prose) for number in _in(found)}
        items = sorted(self.citations.items())
        cited = [
            item
            for number, item in items
            if number in named
            or ((url := _key(item)) is not None and url in text and re.search(re.escape(url) + _URL_ENDS, text))
        ]
        return cited or [item for number, item in items if number in self._quotes and text.strip()]

    def _own_citation(self, number: int, item: Attachment) -> Attachment:
        self._own.add(item)
        self._add(number, item)
        return item

    def _add(self, number: int, item: Attachment) -> None:
        if (key := _key(item)) is not None:
            self._numbers[key] = number
        else:
            self._quotes.add(number)
        before = self.citations.setdefault(number, item)
        if (item.data or "") not in (before.data or ""):
            self.citations[number] = replace(before, data=f"{before.data}\n\n{item.data}")


def number_of(item: Attachment) -> int | None:
    """The number of a citation, `[n] title`; None for any other attachment."""
    found = _TITLE.match(item.title or "") if item.data is not None and item.reference_url else None
    return int(found[1]) if found else None


def plain_title(item: Attachment) -> str:
    """The title of a citation without its number."""
    return _TITLE.sub("", item.title or "", count=1)


def marker_of(number: int, text: str) -> tuple[int, int] | None:
    """Where the text first cites the number: start and end of the marker."""
    return next((found.span() for found in MARKER.finditer(text) if number in _in(found[1])), None)


def _key(item: Attachment) -> str | None:
    url = item.reference_url or ""
    return url.partition("#")[0] if url.startswith(_PAGES) else None


def _in(marker: str) -> list[int]:
    numbers: list[int] = []
    for found in _RANGE.finditer(marker):
        first, last = int(found[1]), int(found[2] or found[1])
        numbers += range(first, min(last, first + _LONGEST_RANGE) + 1)
    return numbers
