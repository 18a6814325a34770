"""Word's styles and lists: which paragraphs are headings or list entries, and their numbers."""

from __future__ import annotations

from dataclasses import dataclass

from task.documents.office import Element, attribute, child, each, value, whole_number

_DEEPEST_CHAIN = 20
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Style:
    """A paragraph style; `level` is a heading's, else 0; `number` is the list and its level, if it has one."""

    level: int = 0
    number: tuple[str, int] | None = None


class Styles:
    """Styles by id, each with what it inherits from the styles it is based on."""

    def __init__(self, root: Element | None) -> None:
        self._elements = {attribute(element, "styleId"): element for element in each(root, "{*}style")}
        self._known: dict[str, Style] = {}

    def named(self, style_id: str) -> Style:
        if style_id not in self._known:
            self._known[style_id] = self._read(style_id)
        return self._known[style_id]

    def _read(self, style_id: str) -> Style:
        level, number = 0, None
        for _ in range(_DEEPEST_CHAIN):
            element = self._elements.get(style_id)
            if element is None:
                break
            level = level or _heading_level(element)
            number = number or _listed(element)
            style_id = value(element, "basedOn")
        return Style(level, number)


def number_of(properties: Element | None) -> tuple[str, int] | None:
    """The list a paragraph belongs to and its level in it; None outside of lists."""
    found = child(properties, "numPr")
    list_id = value(found, "numId")
    return (list_id, whole_number(value(found, "ilvl"), 0)) if list_id else None


def outline_level(properties: Element | None) -> int:
    """A heading's level, counted from 1; 0 for body text."""
    level = whole_number(value(properties, "outlineLvl"), 9)
    return level + 1 if level < 9 else 0


def _listed(element: Element) -> tuple[str, int] | None:
    number = number_of(child(element, "pPr"))
    depth = value(element, "name").rpartition(" ")[2]  # "List Bullet 2" is the first level of a list of its own
    return (number[0], int(depth) - 1) if number and number[1] == 0 and depth in ("2", "3", "4", "5") else number


def _heading_level(element: Element) -> int:
    name = value(element, "name").lower()
    if name == "title":
        return 1
    word, _, level = name.partition(" ")
    if word == "heading" and whole_number(level, 0):
        return whole_number(level, 0)
    return outline_level(child(element, "pPr"))


class Numbering:
    """Counts the entries of every list and renders their numbers as Word shows them."""

    def __init__(self, root: Element | None) -> None:
        abstract = {attribute(item, "abstractNumId"): item for item in each(root, "{*}abstractNum")}
        self._levels: dict[str, list[Element]] = {}
        self._counts: dict[str, list[int]] = {}
        for item in each(root, "{*}num"):
            found = abstract.get(value(item, "abstractNumId"))
            self._levels[attribute(item, "numId")] = list(each(found, "{*}lvl"))

    def marker(self, list_id: str, level: int) -> str:
        """The marker of the next entry: "-", or a number such as `2.1.`; "" when the list shows none."""
        levels = self._levels.get(list_id, [])
        level = min(level, len(levels) - 1)
        if level < 0:
            return "-" if list_id != "0" else ""
        shape = value(levels[level], "numFmt")
        if shape in ("bullet", "none", ""):
            return "-" if shape == "bullet" else ""
        counts = self._counts.setdefault(list_id, [])
        del counts[level + 1 :]
        while len(counts) <= level:
            start = whole_number(value(levels[len(counts)], "start"), 1)
            counts.append(start - (len(counts) == level))
        counts[level] += 1
        text = value(levels[level], "lvlText") or f"%{level + 1}."
        for index, count in enumerate(counts):
            text = text.replace(f"%{index + 1}", _counted(count, value(levels[index], "numFmt")))
        return text.strip()


def _counted(count: int, shape: str) -> str:
    if shape in ("lowerLetter", "upperLetter") and count > 0:
        letters = chr(97 + (count - 1) % 26) * ((count - 1) // 26 + 1)
        return letters.upper() if shape == "upperLetter" else letters
    if shape in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        numeral = _roman(count)
        return numeral.upper() if shape == "upperRoman" else numeral
    return str(count)


def _roman(count: int) -> str:
    numeral = ""
    for size, letters in _ROMAN:
        numeral += letters * (count // size)
        count %= size
    return numeral
