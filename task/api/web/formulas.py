"""The Markdown rules for formulas: `$…$` and `\\(…\\)` in a line, `$$…$$` and `\\[…\\]` displayed.

Prices stay text: the dollar signs of a formula touch it, and no letter or digit touches them from outside. A formula
has no empty line and at most MOST_CHARACTERS characters and MOST_LINES lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

MOST_CHARACTERS = 4000  # the bounds also keep the search for closing marks linear
MOST_LINES = 100
_CLOSING = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}
_DISPLAYED = ("$$", "\\[")
_AMOUNT = re.compile(r"\d[\d.,]*[kKMB]?[\s(]+[A-Za-z]{2,}\b")


def formula_rules(reader: MarkdownIt) -> None:
    """Add the rules; a formula becomes a `span` of the class `math` or `math display` that holds its TeX."""
    reader.inline.ruler.before("escape", "formula", _inline)
    reader.block.ruler.before("fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    reader.add_render_rule("formula", _rendered)


def _inline(state: StateInline, silent: bool) -> bool:
    start = state.pos
    opening = next((mark for mark in _CLOSING if state.src.startswith(mark, start)), None)
    if opening is None:
        return False
    end = _closed(state.src, start + len(opening), state.posMax, _CLOSING[opening])
    tex = state.src[start + len(opening) : max(end, 0)]
    if not tex.strip() or (opening == "$" and not _is_formula(state.src, start, end)):
        return False
    if not silent:
        _add(state.push("formula", "span", 0), tex, opening)
    state.pos = end + len(opening)
    return True


def _closed(text: str, start: int, stop: int, closing: str) -> int:
    limit = min(stop, start + MOST_CHARACTERS)
    end = text.find(closing, start, limit)
    while end >= 0 and closing[0] == "$" and _is_escaped(text, end):
        end = text.find(closing, end + 1, limit)
    return end


def _is_escaped(text: str, place: int) -> bool:
    return (place - len(text[max(0, place - 16) : place].rstrip("\\")) - max(0, place - 16)) % 2 == 1


def _is_formula(text: str, start: int, end: int) -> bool:
    outside = (text[start - 1 : start] if start else "") + text[end + 1 : end + 2]
    touches = not text[start + 1].isspace() and not text[end - 1].isspace()
    return touches and not any(map(str.isalnum, outside)) and not _AMOUNT.match(text, start + 1, end)


def _block(state: StateBlock, first: int, stop: int, silent: bool) -> bool:
    start = state.bMarks[first] + state.tShift[first]
    opening = next((mark for mark in _DISPLAYED if state.src.startswith(mark, start)), None)
    if opening is None or state.is_code_block(first):
        return False
    end = _closed(state.src, start + 2, state.eMarks[stop - 1], _CLOSING[opening])
    last = _line_with(state, first, stop, end) if end >= 0 else stop - 1
    if last is None or last - first > MOST_LINES or not _is_one_piece(state, first, last):
        return False
    if end >= 0 and state.src[end + 2 : state.eMarks[last]].strip():
        return False
    if not silent:
        state.line = last + 1
        token = state.push("formula", "p", 0)
        # Without its end more of it may follow; until then it is text, and its lines do not become lists or headings.
        token.block, token.map, token.hidden = True, [first, last + 1], end < 0
        _add(token, _unmarked(state, first, last, opening), opening)
    return True


def _is_one_piece(state: StateBlock, first: int, last: int) -> bool:
    inside = range(first + 1, last + 1)
    return not any(state.isEmpty(line) or state.sCount[line] < state.blkIndent for line in inside)


def _line_with(state: StateBlock, first: int, stop: int, place: int) -> int | None:
    lines = range(first, min(stop, first + MOST_LINES + 1))
    return next((line for line in lines if place <= state.eMarks[line]), None)


def _unmarked(state: StateBlock, first: int, last: int, opening: str) -> str:
    text = state.getLines(first, last + 1, state.blkIndent, False).strip()
    return text.removeprefix(opening).removesuffix(_CLOSING[opening])


def _add(token: Token, tex: str, opening: str) -> None:
    token.content, token.markup = tex.strip(), opening


def _rendered(_: Any, tokens: Sequence[Token], place: int, *__: Any) -> str:
    token = tokens[place]
    if token.hidden:
        return f"<p>{escape(token.markup + token.content)}</p>\n"
    kind = "math display" if token.markup in _DISPLAYED else "math"
    made = f'<span class="{kind}">{escape(token.content)}</span>'
    return f"<p>{made}</p>\n" if token.block else made
