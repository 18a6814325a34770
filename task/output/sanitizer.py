"""Defang a text piece by piece: images and links that the model made up become plain text."""

import html
import re
from typing import ClassVar
from urllib.parse import quote

from task.output.code import EFFORT, LONGEST, SLOT, CodeReader
from task.output.links import Suspicion, Tag, decoded, defused, inert, tag_at

# Possessive quantifiers (`*+`) in all of these: no text makes a match go back. Every spot begins with a character of
# its own, so that the search skips all others.
_SPOT = re.compile(
    r"\n|\r\n?+|!\[|\]\(|\]\[|\[\^|\]:|<(?=[a-zA-Z/!?])|``*+"
    r"|\$\$*+|&#?+[a-zA-Z0-9]{1,31}+;?+|:\\?/\\?/|w[wW]{0,2}\\?\.|W[wW]{0,2}\\?\.|\\(?:<(?=[a-zA-Z/!?])|`++|:\\?/\\?/|[()\[\]])"
)
_SCHEME = re.compile(r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]*+\Z")
_UNDECIDED = re.compile(r"(?:[!\]\[<$]|&#?|\\?:\\?(?:/\\?)?|\\|(?<![a-zA-Z0-9])[wW]{1,3}\\?)\Z")
_LONGEST_SCHEME, _UNDECIDED_CHARS = 40, 6
_DECIDING = re.compile(r"[\s<>()\[\]`~]")  # one of these completes what has been waiting for long
_SHORT = 64
# What ends an address or a label: backquotes before it belong to it.
_WORD_END, _LABEL_END = re.compile(r"[\s<]"), re.compile(r"\](?!\[)")
# No text in which something else than a bracket could end it: code, a tag, a formula.
_IMAGE_TEXT = re.compile(r"!\[((?>(?:[^\[\]\\`<$]++|\[[^\[\]\\`<$]*+\])*))\]")
_GAP = r"[ \t]*+(?>(?:(?:\r\n|[\n\r])[ \t]*+)?)"
_PART = r"(?>(?:[^\x00-\x20\x7f()\\]++|\\.)*)"
_DESTINATION = re.compile(
    rf"\({_GAP}(<[^<>\n\r\\]*+>|(?!<){_PART}(?>(?:\({_PART}\){_PART})*))"
    rf"(?>(?:(?=[ \t\n\r]){_GAP}(?>(?:\"[^\"\n\r\\]*+\"|'[^'\n\r\\]*+')?){_GAP})?)\)"
)
# An address of a definition other than https://…, which is looked at as any in a text.
_TARGET = re.compile(rf"\]:{_GAP}(?:[<\\&]|/[\\/]|[a-zA-Z][\w+.-]*+(?:[\\&]|:(?!//)))")
_TARGET_SO_FAR = re.compile(rf"\]:{_GAP}(?:/|[a-zA-Z][\w+.-]*+(?::/?)?)?\Z")
_OPEN = re.compile(r"\((?>(?:[^()]++|\([^()]*+(?:\)|\Z))*)\Z")
_PLAIN, _SAFE = re.compile(r"<([\w./:?=%+~#,@ ()-]*+)>"), "/:?=%+~#,@"
_WWW = re.compile(r"(?<![a-zA-Z0-9])[wW]{3}")
_ADDRESS_END = re.compile(r"[ \t\r\n<]|\]\(")
_TRAILING = "?!.,:;*_~\"')]}|>`\u00a0\u202f"
_AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\x00-\x20<>`]*+|[\w.+-]++@[\w.-]++)>")
_TAG_SO_FAR = re.compile(r"</?[\w.+-]*+(?>(?:[:@ ][^\x00-\x1f<>`]*+)?)/?\Z")
_LABEL = re.compile(r"\[[^\[\]`<\\\n\r]*+\Z")
_NO_LABEL = re.compile(r"[\[\]`<\\\n\r]")


class Defanger(CodeReader):
    """Takes an answer piece by piece and returns it defanged; an incomplete construct is held back.

    Fenced code stays as it is: nothing in it is loaded or followed. The time is linear: a text made to be
    examined repeatedly is defanged unseen.
    """

    def __init__(self, suspicion: Suspicion) -> None:
        super().__init__()
        self._suspicion = suspicion
        self._held = ""
        self.quiet = False  # whether an unmarked piece can pass unchecked
        self._paused = False
        self._label = False  # whether the text so far ends with a link's label

    def feed(self, piece: str, *, last: bool = False) -> str:
        """What may be shown now; with `last` nothing is held back."""
        if not (piece or self._held):
            return ""
        if self._paused and piece:
            piece = piece if piece[0].isspace() else f" {piece}"  # what was shown must not become part of a construct
            self._paused = False
        text, held, self._held = self._held + piece, len(self._held), ""
        decides = self._decides or (_DECIDING if held > _SHORT else None)
        if decides and not last and len(text) <= LONGEST and decides.search(piece) is None:
            self._held = text
            return ""
        self._decides = None
        self._patience += EFFORT * len(piece) - (held if held > _SHORT else 0)
        shown = SLOT.sub("<< ", "".join(self._shown(text, last)))
        self.quiet = not (self._held or self._line_begins or self._swallows)
        return shown

    def pause(self) -> str:
        """The mark that is held back at the end of a sentence, if nothing else is."""
        if self._held not in (":", "!", "]", "[", "$"):
            return ""
        mark, self._held, self._paused, self.quiet = self._held, "", True, False
        return mark

    def _shown(self, text: str, last: bool) -> list[str]:
        shown: list[str] = []
        position = 0
        while position < len(text):
            decided = self._code(text, position, last) if self._fence[0] else None
            if decided is None and self._line_begins:
                decided = self._head(text, position, last)
            if decided is None:
                spot = _SPOT.search(text, position)
                start = spot.start() if spot else len(text)
                if spot is None and not last:
                    undecided = _UNDECIDED.search(text, max(position, start - _UNDECIDED_CHARS))
                    start = undecided.start() if undecided else start
                elif (
                    spot is not None and spot[0][-1] == "/" and self._suspicion.tainted()
                ):  # the scheme of an address belongs to it
                    scheme = _SCHEME.search(text, max(position, start - _LONGEST_SCHEME), start)
                    start = scheme.start() if scheme else start
                if start > position:
                    shown.append(text[position:start])
                    self._passed(shown[-1])
                if spot is None:
                    self._held = text[start:]
                    break
                position, decided = start, self._construct(text, start, spot, last)
            after, part = decided
            if after == position:  # not decided yet
                self._held = text[position:]
                break
            shown.append(part)
            self._passed(part)
            position = after
        return shown

    def _passed(self, part: str) -> None:
        if _NO_LABEL.search(part):
            self._label = _LABEL.search(part) is not None
        if self._swallows and self._swallows.search(part):
            self._swallows = None

    def _construct(self, text: str, start: int, spot: re.Match[str], last: bool) -> tuple[int, str]:
        mark = spot[0]
        if mark == "\n":
            self._line_begins = True
            return spot.end(), mark
        if check := self._CHECKS.get(mark if mark[0] in "!]" else mark[mark[0] == "\\"]):
            return check(self, text, start, last)
        match mark[-1]:
            case "\r" if spot.end() == len(text) and not last:
                return start, ""
            case "\n" | "\r":
                self._line_begins = True
            case "$" | "(" | ")" | "]":
                self._formula = True
            case "[" | "^":
                self._formula, self._swallows = True, _LABEL_END
            case _ if mark[0] == "&":
                # A character written as a number or a name could form an address where none is visible.
                if mark[-1] != ";":
                    return (start, "") if spot.end() == len(text) and not last else (spot.end(), mark)
                meant = html.unescape(mark)
                hides = meant.isascii() and (meant.isalnum() or meant in ":/.\\") and self._suspicion.tainted()
                return spot.end(), f"&amp;{mark[1:]}" if hides else mark
            case _:
                self._swallows = _WORD_END
                return self._bare(text, start, spot, last) if self._suspicion.tainted() else (spot.end(), mark)
        # What stands behind a backslash could be a mark of its own.
        return (start + 1, mark[0]) if mark[0] == "\\" else (spot.end(), mark)

    def _image(self, text: str, start: int, last: bool) -> tuple[int, str]:
        found = _IMAGE_TEXT.match(text, start, start + LONGEST)
        destination = _DESTINATION.match(text, found.end(), start + LONGEST) if found else None
        if found is None or destination is None:  # an address that is elsewhere, or not there yet
            waits = found is None or found.end() == len(text) or _OPEN.match(text, found.end())
            return (start, "") if waits and self._may_wait(text, start, last) else (start + 2, "!\\[")
        url = decoded(destination[1])
        self._unpaired = self._unpaired or "`" in destination[0]
        if not self._suspicion.harmful(url, "load"):
            return start + 2, "!["
        words = " ".join(re.sub(r"[^\w\s,-]", " ", found[1]).split()) or "image"
        self._formula = True  # as some renderers take brackets behind backslashes for a formula
        return destination.end(), f"\\[{words}\\] ({inert(url)})"

    def _link(self, text: str, start: int, last: bool) -> tuple[int, str]:
        destination = _DESTINATION.match(text, start + 1, start + LONGEST)
        if destination is None:  # not a link in any dialect, or not yet
            waits = _OPEN.match(text, start + 1) and self._may_wait(text, start, last)
            return (start, "") if waits else (start + 2, "] (")
        url, end = decoded(destination[1]), destination.end()
        if self._suspicion.harmful(url, "follow"):
            return end, f"] ({inert(url)})"
        self._unpaired = self._unpaired or "`" in destination[0]
        if destination[1].startswith("<"):  # which could be a tag
            plain = _PLAIN.fullmatch(destination[1]) if self._label else None
            return (end, f"]({quote(plain[1], safe=_SAFE)})") if plain else (start + 2, "] (")
        # Without a label it is not a link, and the address would extend into the text after it.
        whole = self._label and "://" in url and "<" not in destination[0]
        return (end, text[start:end]) if whole else (start + 2, "](")

    def _reference(self, text: str, start: int, last: bool) -> tuple[int, str]:
        begun = _TARGET_SO_FAR.match(text, start)
        if begun and self._may_wait(text, start, last, lines=2):
            return start, ""
        return start + 2, "] :" if _TARGET.match(text, start) or (begun and not last) else "]:"

    def _tag(self, text: str, start: int, last: bool) -> tuple[int, str]:
        angle = start + (text[start] == "\\")
        link = None if self._html else _AUTOLINK.match(text, angle, angle + LONGEST)
        tag: Tag | None = (1, [(link[1], "follow")]) if link else tag_at(text, angle, angle + LONGEST)
        if tag is None and _TAG_SO_FAR.match(text, angle) and self._may_wait(text, start, last):
            return start, ""
        if tag is None or any(self._suspicion.harmful(url, use) for url, use in tag[1]):
            # As an entity, or so that it reads well in code and formulas, too.
            return angle + 1, "< " if self._formula or self._unpaired or self._doubt or self._lost else "&lt;"
        return angle + tag[0], text[start : angle + tag[0]]

    def _bare(self, text: str, start: int, spot: re.Match[str], last: bool) -> tuple[int, str]:
        # At the start of a piece it may have started in the piece before.
        if spot[0][-1] == "." and start > 0 and _WWW.match(text, start) is None:
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

    _CHECKS: ClassVar = {"![": _image, "](": _link, "]:": _reference, "<": _tag, "`": CodeReader._backquotes}


def defanged(text: str, suspicion: Suspicion) -> str:
    """A whole text as a `Defanger` shows it."""
    if _SPOT.search(text) is None:
        return text
    return Defanger(suspicion).feed(text, last=True)
