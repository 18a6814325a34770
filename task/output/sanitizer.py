"""Defang a text piece by piece: images and links that the model made up become plain text."""

import html
import re
from typing import ClassVar
from urllib.parse import quote

from task.output.code import LONGEST, SLOT, CodeReader
from task.output.links import TAG_SO_FAR, Suspicion, decoded, defused, inert, tag_at

EFFORT = 8  # characters that are looked at again at most, for each character

# Possessive quantifiers (`*+`) in all of these: no text makes a match go back. Every spot begins with a character of
# its own, so that the search skips all others.
_SPOT = re.compile(
    r"\n|\r\n?+|!\[|\]\(|\]\[|\[\^|\]:(?=[ \t]*+(?:[\n\r][ \t]*+)?+(?:[<\\/&a-zA-Z]|\Z))|<(?=[a-zA-Z/!?])|``*+|~~~++"
    r"|\$\$*+|&(?=[#a-zA-Z])|:\\?/\\?/|w[wW]{0,2}\\?\.|W[wW]{0,2}\\?\.|\\(?:<(?=[a-zA-Z/!?])|`++|:\\?/\\?/|[()\[\]])"
)
_SCHEME = re.compile(r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]*+\Z")
_UNDECIDED = re.compile(r"(?:[!\]\[<$&]|~~?|\\?:\\?(?:/\\?)?|\\|(?<![a-zA-Z0-9])[wW]{1,3}\\?)\Z")
_LONGEST_SCHEME, _UNDECIDED_CHARS = 40, 6
_DECIDING = re.compile(r"[\s<>()\[\]`~]")  # one of these completes what has been waiting for long
_SHORT = 64
# What ends an address or a label: backquotes before it belong to it.
_WORD_END, _LABEL_END = re.compile(r"[\s<]"), re.compile(r"\](?!\[)")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
_ENTITY_SO_FAR = re.compile(r"&#?[a-zA-Z0-9]{0,31}\Z")
# No text in which something else than a bracket could end it: code, a tag, a formula.
_IMAGE_TEXT = re.compile(r"!\[((?:[^\[\]\\`<$]++|\[[^\[\]\\`<$]*+\])*+)\]")
_GAP = r"[ \t]*+(?:(?:\r\n|[\n\r])[ \t]*+)?+"
_PART = r"(?:[^\x00-\x20\x7f()\\]++|\\.)*+"
_DESTINATION = re.compile(
    rf"\({_GAP}(<[^<>\n\r\\]*+>|(?!<){_PART}(?:\({_PART}\){_PART})*+)"
    rf"(?:(?=[ \t\n\r]){_GAP}(?:\"[^\"\n\r\\]*+\"|'[^'\n\r\\]*+')?+{_GAP})?+\)"
)
_DEFINITION = re.compile(r"\]:[ \t]*+(?:[\n\r][ \t]*+)?+(<[^<>\n]*+>|[^\s<]\S*+)(\s|\Z)")
_PLAIN, _SAFE = re.compile(r"<([\w./:?=%+~#,@ ()-]*+)>"), "/:?=%+~#,@"
_ADDRESS_END = re.compile(r"[ \t\r\n<]|\]\(")
_TRAILING = "?!.,:;*_~\"')]}|>`\u00a0\u202f"
_AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\x00-\x20<>`]*+|[\w.+-]++@[\w.-]++)>")
_AUTOLINK_SO_FAR = re.compile(r"<[\w.+-]*+(?:[:@][^\x00-\x20<>`]*+)?+\Z")
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
        self._paused = False
        self._label = False  # whether the text so far ends with a link's label

    @property
    def quiet(self) -> bool:
        """Whether an unmarked piece can pass unchecked."""
        return not (self._held or self._line_begins or self._paused or self._swallows)

    def feed(self, piece: str, *, last: bool = False) -> str:
        """What may be shown now; with `last` nothing is held back."""
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
        return SLOT.sub("<< ", "".join(self._shown(text, last)))

    def pause(self) -> str:
        """The mark that is held back at the end of a sentence, if nothing else is."""
        if self._held not in (":", "!", "]", "[", "$"):
            return ""
        mark, self._held, self._paused = self._held, "", True
        return mark

    def _shown(self, text: str, last: bool) -> list[str]:
        shown: list[str] = []
        position, self._tainted = 0, self._suspicion.tainted()
        while position < len(text):
            decided = self._code(text, position, last) if self._fence else None
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
        if check := self._CHECKS.get(mark if mark[0] in "!]" else mark[mark[0] == "\\"]):
            return check(self, text, start, last)
        match mark[-1]:
            case "\r" if spot.end() == len(text) and not last:
                return start, ""
            case "\n" | "\r":
                self._line_begins = True
            case "~":
                self._doubt = True
            case "$" | "(" | ")" | "]":
                self._formula = True
            case "[" | "^":
                self._formula = self._formula or mark == "\\["
                self._swallows = _LABEL_END
            case "&":
                # A character written as a number or a name could form an address where none is visible.
                found = _ENTITY.match(text, start)
                if found is None:
                    waits = not last and _ENTITY_SO_FAR.match(text, start)
                    return (start, "") if waits else (start + 1, "&")
                meant = html.unescape(found[0])
                hides = meant.isascii() and (meant.isalnum() or meant in ":/.\\") and self._tainted
                return found.end(), f"&amp;{found[0][1:]}" if hides else found[0]
            case _:
                self._swallows = _WORD_END
                return self._bare(text, start, spot, last) if self._tainted else (spot.end(), mark)
        # What stands behind a backslash could be a mark of its own.
        return (start + 1, mark[0]) if mark[0] == "\\" else (spot.end(), mark)

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
        self._unpaired = self._unpaired or "`" in destination[0]
        if not self._suspicion.harmful(url, "load"):
            return start + 2, "!["
        words = " ".join(re.sub(r"[^\w\s,-]", " ", found[1]).split()) or "image"
        self._formula = True  # as some renderers take brackets behind backslashes for a formula
        return destination.end(), f"\\[{words}\\] ({inert(url)})"

    def _link(self, text: str, start: int, last: bool) -> tuple[int, str]:
        destination = _DESTINATION.match(text, start + 1, start + LONGEST)
        if destination is None:  # not a link in any dialect, or not yet
            return (start, "") if self._target_waits(text, start, start + 1, last) else (start + 2, "] (")
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

    def _target_waits(self, text: str, start: int, parenthesis: int, last: bool) -> bool:
        return text.count("(", parenthesis) > text.count(")", parenthesis) and self._may_wait(text, start, last)

    def _reference(self, text: str, start: int, last: bool) -> tuple[int, str]:
        found = _DEFINITION.match(text, start, start + LONGEST) if self._patience > 0 else None
        self._patience -= (found.end() if found else min(len(text), start + LONGEST)) - start
        if (found is None or not found[2]) and self._may_wait(text, start, last, lines=2):
            return start, ""
        if found is None or (not found[2] and not last):
            return start + 2, "]:" if last else "] :"
        url = decoded(found[1])
        return (found.end(1), f"] : {inert(url)}") if self._suspicion.harmful(url, "follow") else (start + 2, "]:")

    def _tag(self, text: str, start: int, last: bool) -> tuple[int, str]:
        angle = start + (text[start] == "\\")
        if not self._html and (link := _AUTOLINK.match(text, angle, angle + LONGEST)):
            harmful, length = self._suspicion.harmful(link[1], "follow"), 1
        elif tag := tag_at(text, angle, angle + LONGEST):
            harmful, length = any(self._suspicion.harmful(url, use) for url, use in tag[1]), tag[0]
        else:
            begun = TAG_SO_FAR.match(text, angle) or _AUTOLINK_SO_FAR.match(text, angle)
            if begun and self._may_wait(text, start, last):
                return start, ""
            harmful, length = True, 1
        if harmful:  # as an entity, or so that it reads well in code and formulas, too
            return angle + 1, "< " if self._formula or self._unpaired or self._doubt or self._lost else "&lt;"
        return angle + length, text[start : angle + length]

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

    _CHECKS: ClassVar = {"![": _image, "](": _link, "]:": _reference, "<": _tag, "`": CodeReader._backquotes}


def defanged(text: str, suspicion: Suspicion) -> str:
    """A whole text as a `Defanger` shows it."""
    return Defanger(suspicion).feed(text, last=True)
