"""Read which parts of a Markdown text are code for every renderer, piece by piece."""

import re

LONGEST = 2_000  # characters that are held back at most until a construct is complete
EFFORT, PATIENCE = 8, 20_000  # characters that are looked at again at most: for each character, and once

_LINE_END = re.compile(r"\r\n|[\n\r]")
_WORDS = re.compile(r" *+(?:[^\W\d_]|#|\*\*)")
_HEAD = re.compile(r"(?>(?:[ \t>\ufeff]|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])|\[\^(?>(?:[^\]\\\n\r]|\\.)*)\]:)*)")
_TAG = re.compile(r"<(?![a-zA-Z][a-zA-Z0-9+.-]*+[:@])")
_FENCE = re.compile(r"(`{3,}+(?![^\n\r]*`)|~{3,}+)[^\n\r]*+(?:\r\n|[\n\r])")
_ITEM = re.compile(r"( *+)(?:[-*+]|1[.)]) {1,3}")  # what begins an item of a list in the middle of a paragraph, too
# What does nothing in a formula, also where formulas are not recognised.
_TEX = r"(?:(?!www)[^\n\r`~$<&:!\]\\]|[<&:!](?![\w#/!?\[\\])|\](?![(:])|\\[^\n\r`~$<&:!\[\]()])"
_FORMULA = re.compile(
    rf"(?:\$\$|\\\[)(?:(?>{_TEX}+)(?:\$\$|\\\])|[ \t]*+\n(?>(?:(?>{_TEX}*)\n)+)(?:\$\$|\\\])[ \t]*+(?=\n))",
    re.IGNORECASE,
)
_HEAD_SO_FAR = re.compile(
    r"(?:\r|<[\w+.-]*+|[-*+]|\d{1,9}[.)]?|\[(?:\^(?>(?:[^\]\\\n\r]|\\.)*)\\?\]?)?|`++[^`\n\r]*+|~++[^\n\r]*+|\$|\\"
    rf"|(?:\$\$|\\\[)(?>(?:{_TEX}|\n)*)(?:\$\$?|\\\]?)?[ \t]*+)?\Z"
)
_CODE_LINE = re.compile(r"( *+)(`++|~*+)[ \t]*+")
_MAY_CLOSE = re.compile(r"[\n\r](?= {0,3}(?:[`~]|\Z))")
_RUN, _DECIDES = re.compile(r"\\?`++"), re.compile(r"[`\n\r]")
# DIAL Chat shows its cursor as code: behind more than one backquote something else must come first.
_INLINE = re.compile(r"(`++)(?>(?:[^`\n\r]++|(?!\1(?!`))`++)+)\1(?!`)(?:(?<=[^`]`)|(?=[ \t\n.,;)]))")
_DOLLARS = re.compile(r"\$|\\[()\[\]]")
# In a table a bar ends a cell, in code too. A table has a line of bars and dashes behind its first one.
_BAR = re.compile(r"(?<!\\)\|")
_NO_TABLE = re.compile(r"[^\n\r]*+(?:(?:\r\n|[\n\r])(?:[ \t>]*+[\n\r]|[|:\- \t>]*+[^|:\- \t>\n\r])|\Z)")
# DIAL Chat writes code and formulas in the place of these before it reads the Markdown.
SLOT, _SLOT_SO_FAR = re.compile(r"<<(?=CODE_BLOCK_|LATEX_)"), re.compile(r"<(?:<[A-Z_]{0,11})?\Z")


class CodeReader:
    """What of a text is code, as far as it is certain; all other text counts as if it were not.

    Certain is what renderers with and without formulas and tables, and DIAL Chat, which rewrites formulas before it
    reads the Markdown, take for code alike: fences whose place is certain, and backquotes that end on their line.
    """

    def __init__(self) -> None:
        self._patience = PATIENCE
        self._decides: re.Pattern[str] | None = None  # what must come before the text that is held back is complete
        self._line_begins = True
        self._fence = ("", 0)  # the mark and the column of the code that the text is in
        self._columns: range | tuple[int, ...] = range(4)  # in which a fence behind spaces is certain
        self._doubt = False  # whether code could have begun in a list or a quotation,
        self._lost = False  # or anywhere
        self._begin_paragraph()

    def _begin_paragraph(self) -> None:
        self._html = False  # whether this could be a block of HTML
        self._unpaired = False  # whether backquotes could be the end of code that began before them
        self._formula = False  # whether a formula could have begun
        self._table = False
        self._swallows: re.Pattern[str] | None = None  # the end of an address or label that backquotes would belong to

    def _head(self, text: str, position: int, last: bool) -> tuple[int, str] | None:
        # The position up to which a line's beginning is decided, and what to show for it; None: it is nothing special.
        if words := _WORDS.match(text, position):  # as most lines begin
            self._line_begins, self._columns = False, range(4)
            self._doubt = self._doubt and words[0][0] == " "
            return None
        if text[position] == "\n":
            self._columns = range(LONGEST)
            self._begin_paragraph()
            return position + 1, "\n"
        head = _HEAD.match(text, position)
        assert head is not None
        start, column = head.end(), len(head[0])
        if _HEAD_SO_FAR.match(text, start):
            if self._may_wait(text, position, last, lines=30):
                return position, ""
            self._lost = True
        columns, self._columns = self._columns, range(4)
        if (line_end := _LINE_END.match(text, start)) and not head[0].strip(" \t"):
            self._columns = range(LONGEST)
            self._begin_paragraph()
            return line_end.end(), text[position : line_end.end()]
        self._line_begins, self._doubt = False, self._doubt and column > 0  # code in a list ends with it
        item, behind_spaces = _ITEM.fullmatch(head[0]), not head[0].strip(" ")
        certain = len(item[1] if item else head[0]) in columns and (behind_spaces or item is not None)
        if fence := _FENCE.match(text, start):
            self._doubt = self._doubt or not certain
            self._lost = self._lost or self._html or (self._doubt and behind_spaces and column <= 3)
            if not (self._doubt or self._lost):
                self._fence, self._line_begins = (fence[1], column), True
                self._begin_paragraph()
                return fence.end(), text[position : fence.end()]
        if item and certain:
            self._columns = (*range(4), *range(column, column + 4))
        self._html = self._html or _TAG.match(text, start) is not None or "\ufeff" in head[0]
        self._table = self._table or text.startswith(("|", ":", "-"), start)
        if not text.startswith(("$$", "\\[", "\\]"), start):
            return None
        formula, self._formula = _FORMULA.match(text, start), True
        if formula is None or (column and "\n" in formula[0]):
            self._lost = True  # as it might end anywhere
            return None
        return formula.end(), text[position : formula.end()]

    def _code(self, text: str, position: int, last: bool) -> tuple[int, str] | None:
        # The line that closes the code, or the lines up to the next that might; None: it may have ended before.
        mark, column = self._fence
        line = _CODE_LINE.match(text, position) if self._line_begins else None
        if line is not None:
            end, indented = line.end(), len(line[1])
            if end == len(text) and self._may_wait(text, position, last):
                return position, ""
            self._line_begins, waits = False, end == len(text) and not last
            complete = end == len(text) or text[end] in "\n\r"
            closes = complete and line[2].startswith(mark)
            if closes and not waits and (indented == column or (not column and indented <= 3)):
                self._fence = ("", 0)
                return end, text[position:end]
            outside = indented < column and not (complete and not line[2])
            if waits or outside or (column and closes and indented <= column + 3):
                self._fence, self._lost, self._html = ("", 0), True, True
                return None
        found = (_LINE_END if column else _MAY_CLOSE).search(text, position)
        self._line_begins, end = found is not None, found.end() if found else len(text)
        slot = None if found or last else _SLOT_SO_FAR.search(text, max(position, end - 14))
        return (slot.start(), text[position : slot.start()]) if slot else (end, text[position:end])

    def _backquotes(self, text: str, start: int, last: bool) -> tuple[int, str]:
        # Code that ends on its line, or backquotes that might be the beginning or the end of some.
        run, code = _RUN.match(text, start), None
        assert run is not None
        waits = run.end() == len(text)
        if not (self._html or self._unpaired or self._swallows or text[start] == "\\"):
            code = _INLINE.match(text, start, start + LONGEST)
            if code is None and _LINE_END.search(text, run.end()) is None:
                waits, self._decides = True, _DECIDES
            elif code and (_BAR.search(code[0]) or -1 < code[0].find("\\\\") < code[0].rfind("|")):
                rest = _NO_TABLE.match(text, code.end())
                waits = rest is None or rest.end() == len(text)
                code = None if self._table or rest is None else code
            if code and self._formula and _DOLLARS.search(code[0]):
                code = None
        if (waits or (code and code.end() == len(text))) and self._may_wait(text, start, last):
            return start, ""
        if code and (code.end() < len(text) or last):
            return code.end(), code[0]
        self._unpaired, self._doubt = True, self._doubt or len(run[0]) > 2
        return run.end(), run[0]

    def _may_wait(self, text: str, start: int, last: bool, lines: int = 3) -> bool:
        decided = last or self._patience < 0 or len(text) - start > LONGEST
        return not decided and text.count("\n", start) < lines
