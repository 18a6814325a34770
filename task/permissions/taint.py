"""The conversation as the gate sees it: its text from outside, its addresses, and the URLs it vouches for."""

from __future__ import annotations

import asyncio
import html
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, takewhile
from unicodedata import is_normalized, normalize
from urllib.parse import unquote

from task.conversation.messages import CUT, SHOWN_AGAIN, Message, Role, ToolCall
from task.permissions.arguments import addresses, named_values
from task.permissions.hosts import host_of, is_usual
from task.permissions.names import names_of, own_name

# Browsers and HTTP libraries treat a backslash as a slash, and one slash as two.
_IN_TEXT = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+:[/\\]{1,3}\S*+", re.IGNORECASE)
# Fetchers drop blanks, control and invisible characters in front; browsers need no slash after their own schemes.
_BEGINS = re.compile(
    r"[\s\x00-\x20\x7f-\xa0\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]*+"
    r"(?:[a-z][a-z0-9+.-]*+:[/\\]|(?:https?|wss?|ftp|file):\S|[/\\]{2}[^\s/\\.]*+\.\w)",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"(?ai:(?:[a-z][a-z0-9+.-]*+://|//)?"
    r"(?:[a-z0-9_-]++(?>(?:\.[a-z0-9_-]++)*)|\[[0-9a-f:.]++\])(?>(?::[0-9]{1,5}+)?))"
    r"(?>(?:[/?#](?>(?:[\w.~!$&()*+,;=:@/?#-]|%[0-9a-fA-F]{2})*))?)"
)
_DIAL_FILE = re.compile(r"(?:v1/)?(?:files|metadata)/\S+")
_DIAL_FILE_IN_TEXT = re.compile(r"(?<![\w/.-])(?:v1/)?(?:files|metadata)/[^\s<>\"'`]+")
_FILES_BEGIN = ("files/", "metadata/", "v1/")
_BETWEEN_FILES = re.compile(r"\s++|,(?=(?:files/|https?://))")
_NAMES = re.compile(r"ur[il]|link|href|endpoint|host|domain|site|webhook|callback", re.IGNORECASE)
_SCHEME = re.compile(r"\Ahttps?://", re.IGNORECASE)
_TRAILING = ".,:;!?)]}*_|\"'`>"
_CLOSING = {'"': '"', "'": "'", "`": "`", "<": ">", "“": "”", "«": "»"}
_PUNYCODE = re.compile(r"xn--([a-z0-9-]{1,59})")
_UNSEEN = re.compile(r"[^\w!-~]|[\u115f\u1160\u17b4\u17b5\u3164]")  # what is no letter, digit or mark of ASCII; fillers
# Marks that no address contains part words. In a word an address may begin behind any mark that could not belong to it,
# and end at a bracket, an anchor, or the end of a sentence.
_WORD = re.compile(r"[^\s<>\"'`|]++")
_STARTS = re.compile(
    r"\A|(?<![\w+.%/@?&-])(?=[\w\[])|(?<![\w+.%-])(?=[a-z][a-z0-9+.-]*+:/|(?:v1/)?(?:files|metadata)/)", re.IGNORECASE
)
_ENDS = re.compile(r"[#)\]}*]|[.,:;!?](?=\Z|[)\]}*])")
_ENDS_TRIED, _LONGEST = 3, 4_096  # ends of one start, and characters of an address
_ROOM, _LEAST = 12, 16  # characters kept for each that is read, and what an address counts at least
_ROUNDS = 5  # of percent-encoding and entities inside each other


def urls_in(arguments: object, *, fetched: bool = True) -> Iterator[str]:
    """The URLs in a call's arguments.

    A text that begins with a scheme, or whose name says that it is a URL, is one URL to its end. In other texts a URL
    ends at a blank; also at a closing quotation mark if the tool fetches nothing.
    """
    for name, text in named_values(arguments, str):
        marked = ":" in text or "/" in text or "\\" in text  # most texts are not
        files = [part for part in _BETWEEN_FILES.split(text) if part] if text.startswith(_FILES_BEGIN) else []
        if files and all(is_dial_file(part) or _BEGINS.match(part) for part in files):
            yield from files  # of a text that consists of DIAL files and URLs only
        elif (marked and _BEGINS.match(text)) or (_NAMES.search(name) and text.strip()):
            yield text
        elif marked:
            for found in _IN_TEXT.finditer(text):
                closing = "" if fetched else _CLOSING.get(text[found.start() - 1 : found.start()], "")
                yield (found[0].partition(closing)[0] if closing else found[0]).rstrip(_TRAILING)
            yield from (found[0] for found in _DIAL_FILE_IN_TEXT.finditer(text))


def is_dial_file(url: str) -> bool:
    return _DIAL_FILE.fullmatch(url) is not None


def is_plain(url: str) -> bool:
    """Whether all parsers find the same scheme, host and path in the URL.

    Not in one with blanks, quotes, backslashes, invisible characters or a user name, nor with a host beyond ASCII or
    one in another spelling than browsers show.
    """
    return _PLAIN.fullmatch(url) is not None and is_normalized("NFKC", url) and is_usual(url)


def hosts_of(url: str) -> tuple[str, ...]:
    """The hosts that readers may find in the URL; of one that is not plain also the whole, which no host allows."""
    if is_plain(url):
        return (host_of(url),)
    return tuple(dict.fromkeys((host_of(url.strip()), host_of(url.replace("\\", "%5c").strip()), url)))


def bare(url: str) -> str:
    """The URL as a text may write it that vouches for it: without `http://` and the slash at its end."""
    return _SCHEME.sub("", url).rstrip("/")


def folded(text: str) -> str:
    """The text as its addresses are compared: no case, blanks, invisible characters or other spellings."""
    plainer = _UNSEEN.sub("", text)
    for _ in range(_ROUNDS):
        text = plainer
        plainer = _UNSEEN.sub("", html.unescape(unquote(normalize("NFKC", text))))
        if plainer == text:
            break
    return _PUNYCODE.sub(lambda label: label[1].encode().decode("punycode", "replace"), plainer.casefold())


def addresses_in(text: str) -> set[str]:
    """Every address, name or word that stands in the text as a whole, `bare`.

    Takes linear time and memory; of a text that is made of beginnings, not all are found.
    """
    found, room = set[str](), _ROOM * len(text) + _LONGEST
    for word in dict.fromkeys(_WORD.findall(text)):
        if word.isalnum():
            found.add(word)
            continue
        ends = [end.start() for end in _ENDS.finditer(word)]
        for start in (begin.start() for begin in _STARTS.finditer(word)):
            place = bisect_left(ends, start)
            for end in (*ends[place : place + _ENDS_TRIED], len(word)):
                if end - start <= _LONGEST:
                    found.add(bare(word[start:end]))
                    room -= max(end - start, _LEAST)
            if room < 0:
                return found
    return found


class Origin(StrEnum):
    """Who wrote a tool's result: computed by us, made by code or a model, or copied from outside."""

    OWN = "own"
    MADE = "made"
    OUTSIDE = "outside"


LARGE = 200_000  # characters; a conversation beyond it is read off the event loop
LONGEST_CALL = 20_000  # characters; the result of a longer call vouches for nothing


class ContextView:
    """A conversation as it is now, also while messages are added to it; its addresses are read once, when needed.

    `origins` maps tool names to the origin of their results; results of other tools count as made by code or a model.
    A sub-agent's conversation is `within` the one of its agent: what taints that taints this too, and an address that
    it vouches for is known here. The `given` messages at its beginning are the prompt and the task, in which the model
    may have written any address: they vouch for none. `recalled`: its model also gets facts from earlier conversations,
    which are text from outside.
    """

    def __init__(
        self,
        messages: Sequence[Message] = (),
        origins: Mapping[str, Origin] | None = None,
        within: ContextView | None = None,
        given: int = 0,
        *,
        recalled: bool = False,
    ) -> None:
        self.messages = messages
        self._origins, self._within, self._recalled = origins or {}, within, recalled
        self._clean = given  # messages at the beginning of which none is from outside
        self._read = given  # messages whose addresses are known
        self._places: dict[str, list[int]] = {}  # of messages of the user and results from outside
        self._asked: dict[int, str] = {}  # the folded arguments of the calls behind results that may vouch
        self._calls: dict[str, str] = {}

    @property
    def tainted(self) -> bool:
        """Whether text from outside is in the conversation: from the web, a file, a server, a picture.

        An answer whose tool results are unknown may contain any of it.
        """
        return self.tainted_before(None)

    def tainted_before(self, place: int | None) -> bool:
        """Whether it was in the conversation before the message at `place`."""
        if self._recalled or (self._within is not None and self._within.tainted):
            return True
        end = len(self.messages) if place is None else place
        while self._clean < end and not self._foreign(self.messages[self._clean]):
            self._clean += 1
        return self._clean < end

    def tainted_beyond(self, tool: str) -> bool:
        """Whether text from outside is in the conversation, apart from its prompt and from the results of `tool`."""
        names = names_of(tool)
        others = (item for item in self.messages if item.name not in names and item.role is not Role.SYSTEM)
        beyond = self._recalled or any(map(self._foreign, others))
        return beyond or (self._within is not None and self._within.tainted_beyond(tool))

    @property
    def prompted(self) -> bool:
        """Whether text from outside is in the prompt: an application's instructions, or a project's notes."""
        return any(item.unsourced for item in self.messages if item.role is Role.SYSTEM)

    def of_turn(self) -> list[Message]:
        """The messages after the newest of the user's."""
        newer = list(takewhile(lambda message: message.role is not Role.USER, reversed(self.messages)))
        return [*(self._within.of_turn() if self._within is not None else ()), *reversed(newer)]

    @property
    def tainted_in_conversation(self) -> bool:
        """Whether text from outside is in it, apart from what earlier conversations have left; a sub-agent's task is
        the model's words, not the user's."""
        return self._within is not None or any(map(self._foreign, self.messages))

    async def prepare(self) -> None:
        """Read the addresses of a large conversation in a thread, so that nothing waits for it later."""
        contents = (message.content for message in self.messages)
        if sum(len(text if isinstance(text, str) else str(text)) for text in contents) > LARGE:
            await asyncio.to_thread(self.knows, "")

    def knows(self, url: str, before: int | None = None) -> bool:
        """Whether the whole URL occurs in a message of the user or in a result that only the outside can have made.

        A result that repeats the arguments of its call, or was read from an address that only the model named, would
        let the model vouch for its own URL; so would one whose call's arguments are not there in full. Only messages
        in front of the one at `before` count.
        """
        if self._within is not None and self._within.knows(url):
            return True
        end = len(self.messages) if before is None else before
        while self._read < end:
            self._read_next()
        places = [place for place in self._places.get(bare(url), ()) if place < end]
        if any(place not in self._asked for place in places):  # the user's
            return True
        # A file counts only if the user has named it: the model's own code may have made any other.
        if not places or is_dial_file(url):
            return False
        sought = folded(bare(url))
        return any(sought not in self._asked[place] for place in places)

    def text_beside(self, call: ToolCall) -> str:
        """The text of the model's message that contains the call."""
        for message in reversed(self.messages):
            if any(call.id == made.id for made in message.tool_calls):
                return message.text()
        return ""

    def _origin(self, name: str | None) -> Origin:
        name = name or ""  # a tool that has the name of an alias is itself
        return self._origins.get(name if name in self._origins else own_name(name), Origin.MADE)

    def _foreign(self, message: Message) -> bool:
        if message.role is Role.TOOL:
            own = self._origin(message.name) is Origin.OWN and not message.unsourced
            return not own and not message.interim
        if message.unsourced:
            return True
        return (
            message.role is Role.USER
            and isinstance(message.content, list)
            and any(part.get("type") == "image_url" for part in message.content)
        )

    def _read_next(self) -> None:
        place, message = self._read, self.messages[self._read]
        self._calls |= {call.id: call.function.arguments for call in message.tool_calls}
        outside = message.role is Role.TOOL and self._origin(message.name) is Origin.OUTSIDE
        if message.role is Role.USER or (outside and self._is_sourced(place)):
            text = message.text() if outside else message.text().partition(SHOWN_AGAIN)[0]
            for address in addresses_in(text):
                self._places.setdefault(address, []).append(place)
        self._read += 1

    def _is_sourced(self, place: int) -> bool:
        # Whether the call behind the result at `place` is there in full, and named no address of the model's own.
        raw = self._calls.get(self.messages[place].tool_call_id or "", "")
        if CUT in raw or len(raw) > LONGEST_CALL:
            return False
        try:
            asked = json.loads(raw)
        except ValueError:
            asked = raw
        self._asked[place] = folded("\n".join(text for _, text in named_values(asked, str)))
        urls = ((url, is_dial_file(url) or is_plain(url)) for url in urls_in(asked))
        named = chain(urls, ((word, True) for word in addresses(asked)))
        return all(is_read and self.knows(name, place) for name, is_read in named)
