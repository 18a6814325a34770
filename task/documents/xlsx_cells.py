"""The cells of a workbook: shared strings, formats, and what one cell shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from task.documents.office import Element, Package, attribute, child, each, local, whole_number
from task.documents.xlsx_formats import Shown, built_in, general, shown_as

_COLUMNS = 16_384
_PLAIN_NUMBER = re.compile(r"-?\d{1,15}")
_HEX = re.compile(r"_x([0-9A-Fa-f]{4})_")  # ECMA-376 22.9.2.19: how a workbook writes control characters


@dataclass
class Cells:
    """Renders cells as Excel shows them; counts the formulas that were never calculated."""

    strings: Sequence[str]
    formats: Sequence[Shown]
    uncalculated: int = 0
    _general: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._general = frozenset(index for index, shown in enumerate(self.formats) if shown is general)

    def row(self, element: Element) -> list[str]:
        """The row's cells from column A on, as text."""
        texts: list[str] = []
        for cell in element:
            if (reference := cell.get("r")) is not None:
                column = column_of(reference)
                if column > len(texts):
                    texts += [""] * (column - len(texts))
            texts.append(self._text(cell))
        return texts

    def _text(self, cell: Element) -> str:
        kind, raw, formula = cell.get("t", "n"), None, None
        for part in cell:
            name = local(part)
            if name == "v":
                raw = part.text
            elif name == "f":
                formula = part
            elif name == "is":
                return string_of(part)
        if raw is None:
            if formula is None:
                return ""
            self.uncalculated += 1
            return f"={formula.text or ''}"
        return self._value(kind, raw, cell.get("s", "0"))

    def _value(self, kind: str, raw: str, style: str) -> str:
        if kind == "s":
            index = whole_number(raw, len(self.strings))
            return self.strings[index] if index < len(self.strings) else ""
        if kind == "b":
            return "TRUE" if raw == "1" else "FALSE"
        if kind != "n":
            return _unescaped(raw)
        index = whole_number(style, 0)
        if index in self._general or index >= len(self.formats):
            return raw if _PLAIN_NUMBER.fullmatch(raw) else _number(raw, general)
        return _number(raw, self.formats[index])


def strings_of(package: Package, part: str | None) -> list[str]:
    """The strings that the cells share, in their order."""
    return [] if part is None else [string_of(element) for element in package.elements(part, ("si",))]


def formats_of(root: Element | None, *, from_1904: bool) -> list[Shown]:
    """How the numbers of each cell style are shown."""
    codes = {
        attribute(element, "numFmtId"): attribute(element, "formatCode")
        for element in each(root, "{*}numFmts/{*}numFmt")
    }

    @cache
    def shown(number: str) -> Shown:
        code = codes.get(number) or built_in(whole_number(number, 0))
        return general if code in ("General", "@") else shown_as(code, from_1904=from_1904)

    return [shown(attribute(element, "numFmtId") or "0") for element in each(root, "{*}cellXfs/{*}xf")]


def string_of(element: Element) -> str:
    """The text of a string, its runs joined, without the reading aids of East Asian scripts."""
    texts = [
        part.text or "" if local(part) == "t" else "".join(run.text or "" for run in part.iterfind("{*}t"))
        for part in element
        if local(part) in ("t", "r")
    ]
    return _unescaped("".join(texts))


def column_of(reference: str) -> int:
    """The column of a reference like `AB12`, counted from 0 and at most the last one that Excel has."""
    return _column(reference.rstrip("0123456789"))


def letters_of(column: int) -> str:
    """The letters of a column counted from 0."""
    before, last = divmod(column, 26)
    return (letters_of(before - 1) if before else "") + chr(ord("A") + last)


@cache
def _column(letters: str) -> int:
    column = 0
    for letter in letters[:3]:
        column = column * 26 + ord(letter) % 32
    return min(max(column, 1), _COLUMNS) - 1


def is_1904(workbook: Element) -> bool:
    return attribute(child(workbook, "workbookPr"), "date1904") in ("1", "true")


def _number(raw: str, shown: Shown) -> str:
    try:
        return shown(float(raw))
    except (ValueError, OverflowError):
        return raw


def _unescaped(text: str) -> str:
    return _HEX.sub(_character, text).replace("\r\n", "\n") if "_x" in text else text


def _character(match: re.Match[str]) -> str:
    letter = chr(int(match.group(1), 16))
    return letter if letter.isprintable() or letter in "\t\r\n" else ""
