"""Defang a text piece by piece: images and links that the model made up become plain text."""

from __future__ import annotations

import html
import re

from task.conversation.links import Suspicion, decoded, defused, inert, urls_of_tag

LONGEST = 2_000  # characters that are held back at most until a construct is complete
# A piece without any of these neither begins nor ends anything that must be checked, except "www."
MARKED = re.compile(r"[\[\]<`~/:$!&\\\n\rW]").search
_SPOT = re.compile(
    r"(?P<line>[\n\r])|(?P<image>!\[)|(?P<link>\]\()|(?P<reference>\]:)|(?P<tag><(?=[a-zA-Z]))|(?P<math>\$\$)"
    r"|(?P<entity>&(?=[#a-zA-Z]))|(?P<bare>(?:(?<![a-zA-Z0-9+.-])(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*))?\\?:\\?/\\?/"
    r"|(?:(?<![a-zA-Z0-9])[wW]{3}|\A[wW]{1,2})\\?\.)"
)
_UNDECIDED = re.compile(r"(?:[!\]<$&]|\\?:\\?(?:/\\?)?|\\|(?<![a-zA-Z0-9])[wW]{1,3}\\?)\Z")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_ENTITY_SO_FAR = re.compile(r"&(?:#?[a-zA-Z0-9]{0,31})\Z")
_IMAGE_TEXT = re.compile(r"!\[((?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*)\]", re.DOTALL)
_GAP = r"[ \t]*(?:\r\n|[\n\r])?[ \t]*"
_PART = r"(?:[^\x00-\x20\x7f()\\]|\\.)*"
_DESTINATION = re.compile(
    rf"\({_GAP}(<[^<>\n\r\\]*>|(?!<){_PART}(?:\({_PART}\){_PART})*)"
    rf"(?:(?=[ \t\n\r]){_GAP}(?:\"[^\"\n\r\\]*\"|'[^'\n\r\\]*'))?{_GAP}\)"
)
_DEFINITION = re.compile(r"\]:[ \t]*(?:[\n\r][ \t]*)?(<[^<>\n]*>|[^\s<]\S*)(?=\s)")
_ADDRESS_END = re.compile(r"[ \t\r\n<]|\]\(")
_TRAILING = "?!.,:;*_~\"')]}|>`\u00a0\u202f"
_TAG_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9-]*)(?=[\s/>])")
_TAG_SO_FAR = re.compile(
    r"<[a-zA-Z][\w-]*(?:\s+(?:[\w:.-]+(?:\s*=\s*(?:\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|[^\s\"'=<>`]*))?)?)*\s*/?"
)
_AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\x00-\x20<>]*)>")
_AUTOLINK_SO_FAR = re.compile(r"<[a-zA-Z][a-zA-Z0-9+.-]{0,31}(?::[^\x00-\x20<>]*)?")
_LOADING = frozenset(
    {"applet", "audio", "base", "body", "embed", "form", "frame", "iframe", "image", "img", "input", "link", "meta"}
    | {"object", "picture", "script", "source", "style", "svg", "table", "td", "th", "tr", "track", "use", "video"}
)
_LABEL = re.compile(r"\[[^\[\]`<\\\n\r]*\Z")
_NO_LABEL = re.compile(r"[\[\]`<\\\n\r]")
# A text without any of these can be shown as it is, and leaves nothing open that the next piece could continue.
_SUSPECT = re.compile(
    r"!\[|\]\(|\]:|:\\?/|<[a-zA-Z!/?]|&[#a-zA-Z]|[wW]{2}|\A[wW.]|[wW]\Z|\\|```|~~~|\$\$|[!\]<:&$`~]\Z|\A[`~]"
)
_LINE_END = re.compile(r"\r\n|[\n\r]")
_FENCE = re.compile(r"(`{3,}|~{3,})([^\n\r]*)")
_CLOSING = re.compile(r" {0,3}(`+|~+)[ \t]*")


class Defanger:
    """Takes an answer piece by piece and returns it defanged; an incomplete construct is held back.

    Fenced code stays as it is: nothing in it is loaded or followed.
    """

    def __init__(self, suspicion: Suspicion) -> None:
        self._suspicion = suspicion
        self._held = ""
        self._line_begins = True
        self._fence = ""  # the mark that opened the code the text is in
        self._fences_hold = True  # until a construct in which a renderer would not recognise a fence
        self._paused = False
        self._label = False  # whether the text so far ends with a link's label

    @property
    def quiet(self) -> bool:
        """Whether an unmarked piece can pass unchecked."""
        return not self._held and not self._line_begins and not self._paused

    def feed(self, piece: str, *, last: bool = False) -> str:
        """What may be shown now; with `last` nothing is held back."""
        if self._paused and piece:
            piece = piece if piece[0].isspace() else f" {piece}"  # what was shown must not become part of a construct
            self._paused = False
        text, self._held = self._held + piece, ""
        if not self._fence and _SUSPECT.search(text) is None:
            self._passed(text)
            self._line_begins = text[-1] in "\n\r" if text else self._line_begins
            return text
        shown: list[str] = []
        position = 0
        while position < len(text):
            after, part = self._step(text, position, last)
            shown.append(part)
            self._passed(part)
            if after == position:  # not decided yet
                self._held = text[position:]
                break
            position = after
        return "".join(shown)

    def _passed(self, part: str) -> None:
        if _NO_LABEL.search(part):
            self._label = _LABEL.search(part) is not None

    def pause(self) -> str:
        """The mark that is held back at the end of a sentence, if nothing else is."""
        if self._held not in (":", "!", "]", "$"):
            return ""
        mark, self._held, self._paused = self._held, "", True
        return mark

    def _step(self, text: str, position: int, last: bool) -> tuple[int, str]:
        # The position up to which the text is decided, and what to show for it.
        if self._line_begins:
            decided = self._line(text, position, last)
            if decided is not None:
                return decided
        self._line_begins = False
        if self._fence:
            end = _line_end(text, position)
            self._line_begins = end > position and text[end - 1] in "\n\r"
            return end, text[position:end]
        spot = _SPOT.search(text, position)
        if spot is None:
            return self._plain(text, position, last)
        if spot.start() > position:
            return spot.start(), text[position : spot.start()]
        return self._construct(text, spot, last)

    def _plain(self, text: str, position: int, last: bool) -> tuple[int, str]:
        undecided = None if last else _UNDECIDED.search(text, position)
        end = undecided.start() if undecided else len(text)
        return end, text[position:end]

    def _line(self, text: str, position: int, last: bool) -> tuple[int, str] | None:
        # A line that opens or closes a fence; None: it does neither.
        end = _line_end(text, position)
        complete = end > position and text[end - 1] in "\n\r"
        line = text[position:end].rstrip("\n\r")
        if self._fence:
            closing = _CLOSING.fullmatch(line)
            if not complete and not last and (closing or _CLOSING.fullmatch(f"{line}{self._fence}")):
                return position, ""
            if closing and closing[1].startswith(self._fence):
                self._fence = ""
            self._line_begins = complete
            return (end, text[position:end]) if closing else None
        if line.lstrip(" ").startswith("<"):
            self._fences_hold = False
        opening = _FENCE.fullmatch(line)
        if not complete and not last and (opening or line in ("`", "``", "~", "~~")):
            return position, ""
        if opening is None or not self._fences_hold or (line[0] == "`" and "`" in opening[2]):
            return None
        self._fence, self._line_begins = opening[1], complete
        return end, text[position:end]

    def _construct(self, text: str, spot: re.Match[str], last: bool) -> tuple[int, str]:
        start = spot.start()
        match spot.lastgroup:
            case "line":
                self._line_begins = True
                return spot.end(), spot[0]
            case "math":
                self._fences_hold = False
                return spot.end(), spot[0]
            case "image":
                return self._image(text, start, last)
            case "link":
                return self._link(text, start, last)
            case "reference":
                return self._reference(text, start, last)
            case "tag":
                return self._tag(text, start, last)
            case "entity":
                return self._entity(text, start, last)
            case _:
                return self._bare(text, spot, last)

    def _image(self, text: str, start: int, last: bool) -> tuple[int, str]:
        found = _IMAGE_TEXT.match(text, start)
        if found is None or (found.end() == len(text) and not last):
            return (start, "") if _may_wait(text, start, last) else (start + 2, "!\\[")
        if text[found.end() : found.end() + 1] != "(":
            return start + 2, "!\\["  # a picture whose address is elsewhere
        end = _balanced(text, found.end())
        if end is None and _may_wait(text, start, last):
            return start, ""
        destination = _DESTINATION.fullmatch(text, found.end(), end) if end is not None else None
        if end is None or destination is None:
            return start + 2, "!\\["
        url = decoded(destination[1])
        if not self._suspicion.harmful(url, "load"):
            return start + 2, "!["
        return end, f"\\[{_plain_words(found[1])}\\] ({inert(url)})"

    def _link(self, text: str, start: int, last: bool) -> tuple[int, str]:
        end = _balanced(text, start + 1)
        if end is None and _may_wait(text, start, last):
            return start, ""
        destination = _DESTINATION.fullmatch(text, start + 1, end) if end is not None else None
        if end is None or destination is None:
            return start + 2, "] ("  # not a link in any dialect
        url = decoded(destination[1])
        if self._suspicion.harmful(url, "follow"):
            return end, f"] ({inert(url)})"
        # Without a label it is not a link, and the address would extend into the text after it.
        whole = self._label and "://" in url
        return (end, text[start:end]) if whole else (start + 2, "](")

    def _reference(self, text: str, start: int, last: bool) -> tuple[int, str]:
        found = _DEFINITION.match(f"{text}\n" if last else text, start)
        if found is None:
            return (start, "") if _may_wait(text, start, last, lines=2) else (start + 2, "]:")
        url = decoded(found[1])
        return (found.end(), f"] : {inert(url)}") if self._suspicion.harmful(url, "follow") else (start + 2, "]:")

    def _tag(self, text: str, start: int, last: bool) -> tuple[int, str]:
        if link := _AUTOLINK.match(text, start):
            harmful = self._suspicion.harmful(link[1], "follow")
            return start + 1, "&lt; " if harmful else "<"
        name = _TAG_NAME.match(text, start)
        loads = name is not None and name[1].lower() in _LOADING
        end = text.find(">", start) + 1
        if not end:
            so_far = loads or _TAG_SO_FAR.fullmatch(text, start) or _AUTOLINK_SO_FAR.fullmatch(text, start)
            if so_far and _may_wait(text, start, last, lines=9):
                return start, ""
            return start + 1, "&lt; " if loads else "<"
        urls = urls_of_tag(text[start + 1 : end - 1])
        harmful = any(self._suspicion.harmful(url, "load" if loads else "follow") for url in urls)
        return (start + 1, "&lt; ") if name is not None and harmful else (start + 1, "<")

    def _entity(self, text: str, start: int, last: bool) -> tuple[int, str]:
        # A character written as a number or a name could form an address where none is visible.
        found = _ENTITY.match(text, start)
        if found is None:
            waits = not last and _ENTITY_SO_FAR.match(text, start)
            return (start, "") if waits else (start + 1, "&")
        meant = html.unescape(found[0])
        hides = self._suspicion.tainted() and (meant.isalnum() or meant in ":/.\\") and meant.isascii()
        return found.end(), f"&amp;{found[0][1:]}" if hides else found[0]

    def _bare(self, text: str, spot: re.Match[str], last: bool) -> tuple[int, str]:
        if not self._suspicion.tainted():
            return spot.end(), spot[0]
        stop = _ADDRESS_END.search(text, spot.end())
        if stop is None and _may_wait(text, spot.start(), last):
            return spot.start(), ""
        rest = text[spot.end() : stop.start() if stop else len(text)].rstrip(_TRAILING)
        end = spot.end() + len(rest)
        scheme = spot["scheme"] or ""
        if spot.start() == 0 and ("https".endswith(scheme) or "http".endswith(scheme)):
            scheme = ""  # its beginning may have been shown already
        address = f"www.{rest}" if spot[0][-1] == "." else rest
        if not rest or not self._suspicion.harmful_bare(scheme, address):
            return end, text[spot.start() : end]
        return end, defused(text[spot.start() : end])


def _line_end(text: str, position: int) -> int:
    found = _LINE_END.search(text, position)
    return found.end() if found else len(text)


def _balanced(text: str, start: int) -> int | None:
    # The end of the parenthesis that opens at `start`; None while it is open.
    depth, position = 0, start
    while position < len(text):
        mark = text[position]
        if mark == "\\":
            position += 1
        elif mark in "()":
            depth += 1 if mark == "(" else -1
            if depth == 0:
                return position + 1
        position += 1
    return None


def _may_wait(text: str, start: int, last: bool, lines: int = 3) -> bool:
    return not last and len(text) - start <= LONGEST and text.count("\n", start) < lines


def _plain_words(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s,-]", " ", text).split()) or "image"
