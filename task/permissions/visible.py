"""Show what a text really holds: hidden, reordering and look-alike characters spelt out."""

from __future__ import annotations

import re
import unicodedata

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")
_WORDS = re.compile(r"\w+")
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "MATHEMATICAL", "SMALL CAPITAL")
_EMOJI_STYLE = "\ufe0f"
# Letters of other scripts that look like Latin ones in most fonts. Source: Unicode UTS #39, confusables.
_LOOK_ALIKE = frozenset("аеорсухіјѕһԁԛԝɡАВЕКМНОРСТХІЈЅοανικΑΒΕΖΗΙΚΜΝΟΡΤΥΧѵ")


def visible(text: str) -> str:
    """The text with control, format, private and odd space characters as `\\u202e`; letters of all scripts stay."""
    return text if _PLAIN.fullmatch(text) else "".join(map(_shown, text))


def spelt_out(text: str) -> str:
    """Like `visible`, and letters that look like Latin ones but are not are spelt out too: for commands and hosts."""
    shown = visible(text)
    return _WORDS.sub(lambda word: _told_apart(word[0]), shown) if not shown.isascii() else shown


def tricks(text: str) -> list[str]:
    """What in the text a reader cannot see or would take for something else; empty where nothing is."""
    if _PLAIN.fullmatch(text):
        return []
    found: list[str] = []
    if visible(text) != text:
        found.append("hidden or reordering characters")
    if any(_disguised(word) for word in _WORDS.findall(text)):
        found.append("look-alike letters of another alphabet")
    return found


def _shown(mark: str) -> str:
    if mark in "\n\t " or mark == _EMOJI_STYLE:
        return mark
    kind = unicodedata.category(mark)
    if kind[0] == "C" or kind in ("Zs", "Zl", "Zp") or 0xE0100 <= ord(mark) <= 0xE01EF or 0xFE00 <= ord(mark) <= 0xFE0E:
        return f"\\x{ord(mark):02x}" if ord(mark) < 256 else f"\\u{ord(mark):04x}"
    return mark


def _told_apart(word: str) -> str:
    if not _disguised(word):
        return word
    return "".join(mark if mark.isascii() else f"\\u{ord(mark):04x}" for mark in word)


def _disguised(word: str) -> bool:
    """A word of two alphabets, or one of another alphabet whose every letter looks Latin."""
    if word.isascii():
        return False
    scripts = {_script(mark) for mark in word if mark.isalpha()} - {""}
    return len(scripts) > 1 or bool(scripts & {"FULLWIDTH", "MATHEMATICAL"}) or all(m in _LOOK_ALIKE for m in word)


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), "")
