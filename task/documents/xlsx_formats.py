"""Render a number as Excel shows it: decimals, thousands, percent, currency, dates, times. Source: ECMA-376 18.8.31."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

Shown = Callable[[float], str]

DATE = "yyyy-mm-dd"
BUILT_IN = {
    **dict(enumerate(("0", "0.00", "#,##0", "#,##0.00"), 1)),
    **dict(enumerate(("0%", "0.00%", "0.00E+00"), 9)),
    **dict(enumerate((DATE, "d-mmm-yy", "d-mmm", "mmm-yy"), 14)),
    **dict(enumerate(("h:mm AM/PM", "h:mm:ss AM/PM", "h:mm", "h:mm:ss", f"{DATE} h:mm"), 18)),
    **dict.fromkeys((37, 38), "#,##0;(#,##0)"),
    **dict.fromkeys((39, 40), "#,##0.00;(#,##0.00)"),
    **dict(enumerate(("#,##0", "#,##0", "#,##0.00", "#,##0.00", "mm:ss", "[h]:mm:ss", "mm:ss.0", "0.0E+00"), 41)),
    **dict.fromkeys((*range(27, 37), *range(50, 59)), DATE),
}
"""The format codes that files only refer to by number; dates in the reader's local form become ISO dates."""

_LONGEST_CODE = 255  # Excel takes no longer ones
_SECTION_PIECE = re.compile(r'"[^"]*"|\\.|;|[^";\\]+|.')
_TOKEN = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|[_*].|\[\$(?P<currency>[^\[\]-]*+)[^\[\]]*+\]|\[(?P<elapsed>h+|m+|s+)\]|\[[^\[\]]*+\]'
    r"|(?P<half>AM/PM|A/P)|(?P<date>y+|m+|d+|h+|s+(?:\.0+)?)|(?P<power>E[+-]0+)|(?P<digits>General|[0#?][0#?,]*(?:\.[0#?]*)?|\.[0#?]+)"
    r"|(?P<percent>%)|(?P<other>.)",
    re.IGNORECASE,
)
_LITERALS = ("quoted", "escaped", "currency", "other")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCHS = {False: datetime(1899, 12, 30), True: datetime(1904, 1, 1)}
_LAST_DAY = 2_958_465


class _Token(NamedTuple):
    kind: str
    text: str


def shown_as(code: str, *, from_1904: bool = False) -> Shown:
    """The function that renders a number with the format code, as English Excel does."""
    parts = [""]
    for piece in _SECTION_PIECE.findall(code[:_LONGEST_CODE]):
        if piece == ";":
            parts.append("")
        else:
            parts[-1] += piece
    sections: list[list[_Token]] = []
    for section in parts:
        kinds = ((match.lastgroup or "", match) for match in _TOKEN.finditer(section) if match.lastgroup)
        sections.append([_Token("literal" if kind in _LITERALS else kind, match[kind]) for kind, match in kinds])
    if any(token.kind in ("date", "elapsed") for token in sections[0]):
        return lambda number: _date(number, sections[0], from_1904)
    if not any(token.kind == "digits" for tokens in sections for token in tokens):
        return general
    return lambda number: _number(number, sections)


def general(number: float) -> str:
    """A number with the fifteen digits that Excel keeps, without trailing zeros."""
    if number == int(number) and abs(number) < 1e15:
        return str(int(number))
    return f"{number:.15g}"


def _number(number: float, sections: Sequence[list[_Token]]) -> str:
    tokens, size = sections[0], number
    if number < 0 and len(sections) > 1:
        tokens, size = sections[1], -number
    elif number == 0 and len(sections) > 2:
        tokens = sections[2]
    kinds = [token.kind for token in tokens]
    if kinds.count("digits") > 1:  # fractions, telephone numbers
        return general(number)
    size *= 100 ** kinds.count("percent")
    texts: list[str] = []
    for token in tokens:
        if token.kind == "digits" and "power" in kinds:
            decimals = len(token.text.partition(".")[2])
            digits, _, exponent = f"{abs(size):.{decimals}E}".partition("E")
            texts.append(f"{digits}E{exponent[0]}{exponent[1:]:0>2}")
        elif token.kind == "digits":
            texts.append(_digits(abs(size), token.text))
        elif token.kind != "power":
            texts.append(token.text)
    return "-" * (size < 0) + "".join(texts).strip()


def _digits(size: float, mask: str) -> str:
    if mask.lower() == "general":
        return general(size)
    whole, point, decimals = mask.partition(".")
    thousands = "," in whole.rstrip(",")
    scaled = Decimal(repr(size)).scaleb(-3 * (len(whole) - len(whole.rstrip(","))))
    try:
        rounded = scaled.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    except ArithmeticError:  # more digits than a decimal keeps
        return general(size)
    left, _, right = f"{rounded:,f}".partition(".") if thousands else f"{rounded:f}".partition(".")
    least = sum(mark in "0?" for mark in whole)
    left = "" if left == "0" and not least else left.zfill(least)
    kept = len(decimals.rstrip("#"))
    right = right[:kept] + right[kept:].rstrip("0")
    return f"{left}{point}{right}" if right else left


def _date(number: float, tokens: Sequence[_Token], from_1904: bool) -> str:
    if not 0 <= number <= _LAST_DAY:
        return general(number)
    early = not from_1904 and number < 60  # Excel counts a 29 February 1900
    moment = _EPOCHS[from_1904] + timedelta(days=number + early, milliseconds=0.5)
    parts = [(index, token.text[0].lower()) for index, token in enumerate(tokens) if token.kind in ("date", "elapsed")]
    halves = any(token.kind == "half" for token in tokens)
    texts: list[str] = []
    for index, token in enumerate(tokens):
        if token.kind == "elapsed":
            units = {"h": 24, "m": 24 * 60, "s": 24 * 3600}[token.text[0].lower()]
            texts.append(str(int(number * units + 1e-6)).zfill(len(token.text)))
        elif token.kind == "half":
            texts.append("AM" if moment.hour < 12 else "PM")
        elif token.kind == "date":
            # An "m" is minutes after hours and before seconds, else months.
            before = next((letter for place, letter in reversed(parts) if place < index), "")
            after = next((letter for place, letter in parts if place > index), "")
            texts.append(_moment(moment, token.text.lower(), halves, before == "h" or after == "s"))
        else:
            texts.append(token.text)
    return "".join(texts).strip()


def _moment(moment: datetime, text: str, halves: bool, is_minute: bool) -> str:
    letter, length = text[0], len(text)
    if letter == "y":
        return f"{moment.year % 100:02d}" if length < 3 else str(moment.year)
    if letter == "d" or (letter == "m" and not is_minute):
        number, name = moment.month, _MONTHS[moment.month - 1]
        if letter == "d":
            number, name = moment.day, _DAYS[moment.weekday()]
        if length <= 2:
            return str(number).zfill(length)
        return name[:3] if length == 3 else name[: 1 if length == 5 else None]
    if letter == "s":
        seconds, _, fraction = text.partition(".")
        return f"{moment.second:0{len(seconds)}d}" + (
            f".{moment.microsecond:06d}"[: len(fraction) + 1] if fraction else ""
        )
    hour = (moment.hour - 1) % 12 + 1 if halves else moment.hour
    return str(moment.minute if letter == "m" else hour).zfill(min(length, 2))
