"""Defang a text piece by piece: images and links that the model made up become plain text."""

import html
import re
from typing import ClassVar

from task.output.links import Suspicion, decoded, defused, inert, tag_at

LONGEST = 2_000  # characters that are held back at most until a construct is complete
EFFORT, PATIENCE = 8, 20_000  # characters that are looked at again at most: for each character, and once

# A piece without any of these neither begins nor ends anything that must be checked, except "www."
MARKED = re.compile(r"[\[\]<`~/:$!&\\\n\rW]").search
# Possessive quantifiers (`*+`) in all of these: no text makes a match go back. Every spot begins with a character of
# its own, so that the search skips all others.
_SPOT = re.compile(
    r"[\n\r]++|!\[|\]\(|\]:(?=[ \t]*+(?:[\n\r][ \t]*+)?+(?:[<\\/&a-zA-Z]|\Z))|<(?=[a-zA-Z])|\$\$|&(?=[#a-zA-Z])"
    r"|\\?:\\?/\\?/|[wW]{1,3}\\?\."
)
_SCHEME = re.compile(r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]*+\Z")
_UNDECIDED = re.compile(r"(?:[!\]<$&]|\\?:\\?(?:/\\?)?|\\|(?<![a-zA-Z0-9])[wW]{1,3}\\?)\Z")
_LONGEST_SCHEME, _UNDECIDED_CHARS = 40, 6
_DECIDING = re.compile(r"[\s<>()\[\]`~]")  # one of these completes what has been waiting for long
_SHORT = 64
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_ENTITY_SO_FAR = re.compile(r"&#?[a-zA-Z0-9]{0,31}\Z")
_IMAGE_TEXT = re.compile(r"!\[((?:[^\[\]\\]++|\\.|\[(?:[^\[\]\\]++|\\.)*+\])*+)\]", re.DOTALL)
_GAP = r"[ \t]*+(?:(?:\r\n|[\n\r])[ \t]*+)?+"
_PART = r"(?:[^\x00-\x20\x7f()\\]++|\\.)*+"
_DESTINATION = re.compile(
    rf"\({_GAP}(<[^<>\n\r\\]*+>|(?!<){_PART}(?:\({_PART}\){_PART})*+)"
    rf"(?:(?=[ \t\n\r]){_GAP}(?:\"[^\"\n\r\\]*+\"|'[^'\n\r\\]*+')?+{_GAP})?+\)"
)
_DESTINATION_SO_FAR = re.compile(
    rf"\({_GAP}(?:<[^<>\n\r\\]*+|(?:<[^<>\n\r\\]*+>|{_PART}(?:\({_PART}\){_PART})*+)"
    rf"(?:\({_PART}\\?+|\\|{_GAP}(?:\"[^\"\n\r\\]*+\"?+|'[^'\n\r\\]*+'?+)?+{_GAP}))"
)
_TARGET = r"\]:[ \t]*+(?:[\n\r][ \t]*+)?+(<[^<>\n]*+>|[^\s<]\S*+)"
_DEFINITION, _LAST_DEFINITION = re.compile(rf"{_TARGET}(?=\s)"), re.compile(rf"{_TARGET}(?=\s|\Z)")
_ADDRESS_END = re.compile(r"[ \t\r\n<]|\]\(")
_TRAILING = "?!.,:;*_~\"')]}|>`\u00a0\u202f"
_TAG_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9-]*+)(?=[\s/>])")
_AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\x00-\x20<>]*+)>")
_AUTOLINK_SO_FAR = re.compile(r"<[a-zA-Z][a-zA-Z0-9+.-]{0,31}(?::[^\x00-\x20<>]*+)?+")
_TAG_SO_FAR = re.compile(
    r"<[a-zA-Z][\w-]*+(?:\s++(?:[\w:.-]++(?:\s*+=\s*+(?:\"[^\"]*+\"?+|'[^']*+'?+|[^\s\"'=<>`]*+))?+)?+)*+\s*+/?"
)
_LOADING = frozenset(
    {"applet", "audio", "base", "body", "embed", "form", "frame", "iframe", "image", "img", "input", "link", "meta"}
    | {"object", "picture", "script", "source", "style", "svg", "table", "td", "th", "tr", "track", "use", "video"}
)
_LABEL = re.compile(r"\[[^\[\]`<\\\n\r]*+\Z")
_NO_LABEL = re.compile(r"[\[\]`<\\\n\r]")
# A text without any of these can be shown as it is, and leaves nothing open that the next piece could continue.
_SUSPECT = re.compile(
    r"!\[|\]\(|\]:|:\\?/|<[a-zA-Z!/?]|&[#a-zA-Z]|[wW]{2}|\A[wW.]|[wW]\Z|\\|```|~~~|\$\$|[!\]<:&$`~]\Z|\A[`~]"
)
_LINE_END = re.compile(r"\r\n|[\n\r]")
_FENCE = re.compile(r"(`{3,}+|~{3,}+)([^\n\r]*+)")
_LONGEST_FENCE = 100
_CLOSING = re.compile(r" {0,3}+(`*+|~*+)[ \t]*+")
_MAY_CLOSE = re.compile(r"[\n\r](?= {0,3}(?:[`~]|\Z))")
_SPACES = re.compile(r" ++")
_BEGUN = frozenset({"`", "``", "~", "~~"})


class Defanger:
    """Takes an answer piece by piece and returns it defanged; an incomplete construct is held back.

    Fenced code stays as it is: nothing in it is loaded or followed. The time is linear: a text made to be
    examined repeatedly is defanged unseen.
    """

    def __init__(self, suspicion: Suspicion) -> None:
        self._suspicion = suspicion
        self._held = ""
        self._line_begins = True
        self._indented = False  # whether only spaces precede the text on its line
        self._fence = ""  # the mark that opened the code the text is in
        self._fences_hold = True  # until a construct in which a renderer would not recognise a fence
        self._paused = False
        self._label = False  # whether the text so far ends with a link's label
        self._patience = PATIENCE
        self._last_angle = -1  # where the last ">" of the text at hand is

    @property
    def quiet(self) -> bool:
        """Whether an unmarked piece can pass unchecked."""
        return not self._held and not self._line_begins and not self._paused

    def feed(self, piece: str, *, last: bool = False) -> str:
        """What may be shown now; with `last` nothing is held back."""
        if self._paused and piece:
            piece = piece if piece[0].isspace() else f" {piece}"  # what was shown must not become part of a construct
            self._paused = False
        text, held, self._held = self._held + piece, len(self._held), ""
        if held > _SHORT and not last and len(text) <= LONGEST and _DECIDING.search(piece) is None:
            self._held = text
            return ""
        self._patience += EFFORT * len(piece) - (held if held > _SHORT else 0)
        if not self._fence and _SUSPECT.search(f"{text} " if last else text) is None:  # what ends it is complete
            self._passed(text)
            # Where the text has ended: at the beginning of a line, after its indentation, or within it.
            before = text.rstrip(" ")
            if before:
                self._line_begins, self._indented = self._fences_hold and before[-1] in "\n\r", False
            self._indented = self._line_begins and (self._indented or len(before) < len(text))
            return text
        return self._defanged(text, last)

    def pause(self) -> str:
        """The mark that is held back at the end of a sentence, if nothing else is."""
        if self._held not in (":", "!", "]", "$"):
            return ""
        mark, self._held, self._paused = self._held, "", True
        return mark

    def _defanged(self, text: str, last: bool) -> str:
        shown: list[str] = []
        position, tainted, self._last_angle = 0, self._suspicion.tainted(), text.rfind(">")
        while position < len(text):
            decided = self._code(text, position, last) if self._fence else self._line(text, position, last)
            if decided is None:
                spot = _SPOT.search(text, position)
                start = spot.start() if spot else len(text)
                if spot is None and not last:
                    undecided = _UNDECIDED.search(text, max(position, start - _UNDECIDED_CHARS))
                    start = undecided.start() if undecided else start
                elif spot is not None and tainted and spot[0][-1] == "/":  # the scheme of an address belongs to it
                    scheme = _SCHEME.search(text, max(position, start - _LONGEST_SCHEME), start)
                    start = scheme.start() if scheme else start
                if start > position:
                    shown.append(text[position:start])
                    self._passed(shown[-1])
                if spot is None:
                    self._held = text[start:]
                    break
                position, decided = start, self._construct(text, start, spot, tainted, last)
            after, part = decided
            if after == position:  # not decided yet
                self._held = text[position:]
                break
            shown.append(part)
            self._passed(part)
            position = after
        return "".join(shown)

    def _passed(self, part: str) -> None:
        if _NO_LABEL.search(part):
            self._label = _LABEL.search(part) is not None

    def _line(self, text: str, position: int, last: bool) -> tuple[int, str] | None:
        # The position up to which a line's beginning is decided, and what to show for it; None: it is nothing special.
        if not self._line_begins:
            return None
        if spaces := _SPACES.match(text, position):
            self._indented = True
            return spaces.end(), spaces[0]
        mark, self._line_begins = text[position], False
        self._fences_hold = self._fences_hold and mark != "<"
        if mark not in "`~" or self._indented or not self._fences_hold:
            return None
        line_end = _LINE_END.search(text, position)
        end, complete = (line_end.end(), True) if line_end else (len(text), False)
        opening = _FENCE.match(text, position)
        if not complete and not last and (opening or text[position:end] in _BEGUN):
            self._line_begins = self._fences_hold = end - position <= LONGEST
            return (position, "") if self._line_begins else None
        if opening is None or (mark == "`" and "`" in opening[2]):
            return None
        self._fences_hold = len(opening[1]) <= _LONGEST_FENCE
        if not self._fences_hold:
            return None
        self._fence, self._line_begins = opening[1], complete
        return end, text[position:end]

    def _code(self, text: str, position: int, last: bool) -> tuple[int, str]:
        # The line that closes the code, or the lines up to the next that might.
        if self._line_begins and (line := _CLOSING.match(text, position)):
            end, ends = line.end(), line.end() == len(text)
            if ends and not last and end - position <= LONGEST:
                return position, ""
            self._line_begins = False
            if ends and not last:
                self._fences_hold = False
            if not self._fences_hold or ((ends or text[end] in "\n\r") and line[1].startswith(self._fence)):
                self._fence = ""
                return end, text[position:end]
        found = _MAY_CLOSE.search(text, position)
        self._line_begins = found is not None
        end = found.end() if found else len(text)
        return end, text[position:end]

    def _construct(self, text: str, start: int, spot: re.Match[str], tainted: bool, last: bool) -> tuple[int, str]:
        if check := self._CHECKS.get(spot[0]):
            return check(self, text, start, last)
        match spot[0][0]:
            case "\n" | "\r":
                self._line_begins, self._indented = self._fences_hold, False
                return spot.end(), spot[0]
            case "$":
                self._fences_hold = False
                return spot.end(), spot[0]
            case "&":
                # A character written as a number or a name could form an address where none is visible.
                found = _ENTITY.match(text, start)
                if found is None:
                    waits = not last and _ENTITY_SO_FAR.match(text, start)
                    return (start, "") if waits else (start + 1, "&")
                meant = html.unescape(found[0])
                hides = tainted and (meant.isalnum() or meant in ":/.\\") and meant.isascii()
                return found.end(), f"&amp;{found[0][1:]}" if hides else found[0]
            case _:
                return self._bare(text, start, spot, last) if tainted else (spot.end(), spot[0])

    def _image(self, text: str, start: int, last: bool) -> tuple[int, str]:
        found = _IMAGE_TEXT.match(text, start, start + LONGEST)
        if found is None or (found.end() == len(text) and not last):
            return (start, "") if self._may_wait(text, start, last) else (start + 2, "!\\[")
        if text[found.end() : found.end() + 1] != "(":
            return start + 2, "!\\["  # a picture whose address is elsewhere
        destination = _DESTINATION.match(text, found.end(), start + LONGEST)
        if destination is None:
            return (start, "") if self._target_waits(text, start, found.end(), last) else (start + 2, "!\\[")
        url = decoded(destination[1])
        if not self._suspicion.harmful(url, "load"):
            return start + 2, "!["
        words = " ".join(re.sub(r"[^\w\s,-]", " ", found[1]).split()) or "image"
        return destination.end(), f"\\[{words}\\] ({inert(url)})"

    def _link(self, text: str, start: int, last: bool) -> tuple[int, str]:
        destination = _DESTINATION.match(text, start + 1, start + LONGEST)
        if destination is None:  # not a link in any dialect, or not yet
            return (start, "") if self._target_waits(text, start, start + 1, last) else (start + 2, "] (")
        url, end = decoded(destination[1]), destination.end()
        if self._suspicion.harmful(url, "follow"):
            return end, f"] ({inert(url)})"
        # Without a label it is not a link, and the address would extend into the text after it.
        whole = self._label and "://" in url
        return (end, text[start:end]) if whole else (start + 2, "](")

    def _target_waits(self, text: str, start: int, parenthesis: int, last: bool) -> bool:
        return self._may_wait(text, start, last) and _DESTINATION_SO_FAR.fullmatch(text, parenthesis) is not None

    def _reference(self, text: str, start: int, last: bool) -> tuple[int, str]:
        pattern = _LAST_DEFINITION if last and len(text) - start <= LONGEST else _DEFINITION
        found = pattern.match(text, start, start + LONGEST) if self._patience > 0 else None
        self._patience -= (found.end() if found else min(len(text), start + LONGEST)) - start
        if found is None:
            if self._may_wait(text, start, last, lines=2):
                return start, ""
            return start + 2, "] :" if self._patience < 0 or len(text) - start > LONGEST else "]:"
        url = decoded(found[1])
        return (found.end(), f"] : {inert(url)}") if self._suspicion.harmful(url, "follow") else (start + 2, "]:")

    def _tag(self, text: str, start: int, last: bool) -> tuple[int, str]:
        if link := _AUTOLINK.match(text, start, start + LONGEST):
            return start + 1, "&lt; " if self._suspicion.harmful(link[1], "follow") else "<"
        name = _TAG_NAME.match(text, start)
        loads = name is not None and name[1].lower() in _LOADING
        ends = start < self._last_angle
        tag = tag_at(text, start, start + LONGEST) if ends and self._patience > 0 else None
        if tag is None:
            self._patience -= min(len(text) - start, LONGEST) if ends else 0
            begun = loads or _TAG_SO_FAR.fullmatch(text, start) or _AUTOLINK_SO_FAR.fullmatch(text, start)
            if begun and self._may_wait(text, start, last, lines=9):
                return start, ""
            # Without any ">" after it, it is no tag.
            return start + 1, "&lt; " if loads or (name and (ends or not last)) else "<"
        length, urls = tag
        self._patience -= length
        harmful = any(self._suspicion.harmful(url, use) for url, use in urls)
        return start + 1, "&lt; " if harmful else "<"

    def _bare(self, text: str, start: int, spot: re.Match[str], last: bool) -> tuple[int, str]:
        if spot[0][-1] == ".":
            letters = len(spot[0].rstrip("\\."))
            before = text[spot.start() - 1 : spot.start()]
            # At the start of a piece it may have started in the piece before.
            if spot.start() > 0 and (letters < 3 or (before.isascii() and before.isalnum())):
                return spot.end(), spot[0]
        stop = _ADDRESS_END.search(text, spot.end())
        if stop is None and self._may_wait(text, start, last):
            return start, ""
        rest = text[spot.end() : stop.start() if stop else len(text)].rstrip(_TRAILING)
        end = spot.end() + len(rest)
        scheme = text[start : spot.start()]
        if start == 0 and ("https".endswith(scheme) or "http".endswith(scheme)):
            scheme = ""  # its beginning may have been shown already
        address = f"www.{rest}" if spot[0][-1] == "." else rest
        continues = stop is None and not last  # too long to wait for its end
        # An address without a scheme is harmful only if it is so with each of the two.
        urls = [f"{name}://{address}" for name in ([scheme] if scheme else ["https", "http"])]
        harmful = continues or all(self._suspicion.harmful(url, "follow") for url in urls)
        return end, defused(text[start:end]) if rest and harmful else text[start:end]

    def _may_wait(self, text: str, start: int, last: bool, lines: int = 3) -> bool:
        decided = last or self._patience < 0 or len(text) - start > LONGEST
        return not decided and text.count("\n", start) < lines

    _CHECKS: ClassVar = {"![": _image, "](": _link, "]:": _reference, "<": _tag}


def defanged(text: str, suspicion: Suspicion) -> str:
    """A whole text as a `Defanger` shows it."""
    return text if _SUSPECT.search(f"{text} ") is None else Defanger(suspicion).feed(text, last=True)
