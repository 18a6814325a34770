"""Check an answer against its sources: quotes must appear literally, statements must be supported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from task.search.ranking import folded, tokens

COVERAGE = 0.6  # the share of a statement's content words that its source must contain
_FEW_WORDS = 2  # shorter statements ("Yes.", "In short:") cannot be checked
_STEM_CHARS = 5
_MARKER = re.compile(r"(?<!\s)\s*+\[(\d{1,3}(?:\s*+[,;]\s*+\d{1,3})*+)\]")
_NUMBER = re.compile(r"\d+(?:[.,:/\u00a0\u202f' ]\d+)*%?")
_SENTENCE = re.compile(r"(?<=[.!?…])(?:\s*\[\d[\d,; ]*\])*\s+(?=[^\s\[])|\n+")
_CLAUSE = re.compile(r"[,;:()–—]\s|\s(?:but|sondern|mais|sino|но|але)\s", re.IGNORECASE)
# A long line that ends within a sentence, and no list, table or heading after it.
_WRAPPED = re.compile(r"(?<=[^\n]{50}[^\s.!?…:;|])\n(?=[^\W\d_])")
_LACKED_WORDS = 2
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|approx|No|Art|Sec|vs|z\.B|bzw|ca|p)\.|^\W*\d+\.)\s*$")
_ABBREVIATION_CHARS = 40
_ALIKE = str.maketrans({**dict.fromkeys("“”„«»″", '"'), **dict.fromkeys("‘’‚`´", "'"), **dict.fromkeys("‐‑‒–—−", "-")})
_IGNORED = "\u00ad\u200b\u200c\u200d\ufeff"
_FUNCTION_WORDS = """
a an and are as at be been being by can could did do does for from had has have he her his how i if in into is it its
may might more most must of on or our she should so such than that the their them then there these they this those to
was we were what when where which who why will with would you your also any all each both about between
according document excerpt page section states says mentioned stated
der die das den dem des ein eine einer und ist sind wird werden von zu mit auf für im am als auch
le la les du un une et est sont dans pour par sur que qui au aux
el los las una y es son en con por para del al
и в на с по что это как для из от до он она они
"""
_NEGATIONS = """
not no never none nobody nothing neither nor cannot isn't aren't doesn't don't won't can't mustn't wasn't
weren't didn't nicht kein keine keinen keiner nie niemals ne pas jamais no nunca не нет никогда ні ніколи
"""
_LACKING = "without ohne sans sin без senza sem bez"
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())  # they state nothing by themselves
LACKING = frozenset(_LACKING.split())
NEGATIONS = frozenset(_NEGATIONS.split()) | LACKING


def statements(text: str) -> list[str]:
    """The text's sentences and lines, each with the markers that follow it; together they are the whole text."""
    pieces: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(text):
        if _ABBREVIATION.search(text[max(start, match.start() - _ABBREVIATION_CHARS) : match.start()]):
            continue
        pieces.append(text[start : match.end()])
        start = match.end()
    return [piece for piece in (*pieces, text[start:]) if piece]


def markers(statement: str) -> list[int]:
    """The numbers of the sources that a statement names, as in `[1]` or `[2, 3]`."""
    return [int(number) for group in _MARKER.findall(statement) for number in re.findall(r"\d+", group)]


def without_markers(statement: str) -> str:
    return _MARKER.sub("", statement)


def is_checkable(statement: str) -> bool:
    """Whether sources can support the statement at all."""
    plain = without_markers(statement)
    return len(_content(plain)) > _FEW_WORDS or bool(_numbers(plain))


def is_supported(statement: str, sources: Sequence[str]) -> bool:
    """Whether one source contains the statement's numbers and most of its content words, and denies what it denies."""
    plain = without_markers(statement)
    words, numbers = _content(plain), _numbers(plain)
    for source in sources:
        if not _numbers(source).keys() >= numbers.keys():
            continue
        stems = {_stem(word) for word in tokens(source)}
        contained = sum(_stem(word) in stems for word in words)
        if contained >= COVERAGE * len(words) and not _denied(plain, source, words):
            return True
    return False


def _denied(statement: str, source: str, words: Sequence[str]) -> bool:
    # Whether the nearest sentence of the source denies what the statement affirms, or the reverse.
    wanted = {_stem(word) for word in words}
    nearest = max(
        statements(_WRAPPED.sub(" ", source)),
        key=lambda sentence: len(wanted & set(map(_stem, tokens(sentence)))),
        default="",
    )
    return NEGATIONS.isdisjoint(tokens(statement)) == _denies(nearest, wanted)


def _denies(sentence: str, wanted: set[str]) -> bool:
    # Whether a denied part of the sentence has wanted words that no other part has.
    denied, affirmed = set[str](), set[str]()
    for clause in _CLAUSE.split(sentence):
        found = tokens(clause)
        stems = set(map(_stem, found))
        if not NEGATIONS.isdisjoint(found) and LACKING.isdisjoint(found):
            denied |= stems
        else:
            # The few words after each "without".
            places = [place for place, word in enumerate(found) if word in LACKING]
            lacked = {_stem(word) for place in places for word in found[place + 1 : place + 1 + _LACKED_WORDS]}
            denied |= lacked
            affirmed |= stems - lacked
    return bool(wanted & denied - affirmed)


def _content(text: str) -> list[str]:
    return [
        word
        for word in dict.fromkeys(tokens(text))
        if word not in FUNCTION_WORDS and word not in NEGATIONS and not word[0].isdigit() and len(word) > 1
    ]


def _numbers(text: str) -> dict[str, None]:
    return dict.fromkeys(re.sub(r"[,\u00a0\u202f' ](?=\d{3}\b)", "", number) for number in _NUMBER.findall(text))


def _stem(word: str) -> str:
    return word[:_STEM_CHARS] if word.isalpha() and word.isascii() else word[: _STEM_CHARS + 1]


def literal(quote: str, source: str) -> str | None:
    """The words of the source that match the quote, ignoring white space, letter case and forms of quotation marks.

    Of a quote with gaps (`…`) the longest part is searched.
    """
    parts = re.split(r"…|\.\.\.|\[…\]", quote.strip().strip("\"'“”„«»‘’ "))
    wanted = max((part.strip() for part in parts), key=len)
    if not any(map(str.isalnum, wanted)):
        return None
    flat, places = _flat(source)
    sought, _ = _flat(wanted)
    at = flat.find(sought.strip())
    if at < 0:
        return None
    return source[places[at] : places[at + len(sought.strip()) - 1] + 1]


def nearest_words(statement: str, source: str, limit: int = 300) -> str:
    """The sentence or row of the source that shares most words with the statement."""
    wanted = {_stem(word) for word in _content(statement)} | set(_numbers(statement))
    pieces = statements(_WRAPPED.sub(" ", source))
    ends = list(accumulate(map(len, pieces)))  # only line ends were replaced, so positions are the same in both texts
    lines = [source[end - len(piece) : end].strip() for piece, end in zip(pieces, ends, strict=True)]

    def shared(line: str) -> tuple[int, int]:
        found = {_stem(word) for word in tokens(line)} | set(_numbers(line))
        return len(wanted & found), -len(line)

    return max(filter(None, lines), key=shared, default=source.strip())[:limit].strip()


def _flat(text: str) -> tuple[str, list[int]]:
    letters: list[str] = []
    places: list[int] = []
    for place, letter in enumerate(text):
        if letter in _IGNORED:
            continue
        shown = " " if letter.isspace() else folded(letter.translate(_ALIKE))
        if shown == " " and letters and letters[-1] == " ":
            continue
        letters += shown
        places += [place] * len(shown)
    return "".join(letters), places
