"""Check an answer against its sources: quotes must stand there literally, statements must be borne out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from task.tools.rag.lexical import folded, tokens
from task.tools.rag.words import FUNCTION_WORDS, LACKING, NEGATIONS

COVERAGE = 0.6  # the share of a statement's content words that its source must hold
_FEW_WORDS = 2  # shorter statements ("Yes.", "In short:") say nothing that could be checked
_STEM_CHARS = 5
_MARKER = re.compile(r"\s*\[(\d{1,3}(?:\s*[,;]\s*\d{1,3})*)\]")
_NUMBER = re.compile(r"\d+(?:[.,:/\u00a0\u202f' ]\d+)*%?")
_SENTENCE = re.compile(r"(?<=[.!?…])(?:\s*\[\d[\d,; ]*\])*\s+(?=[^\s\[])|\n+")
_CLAUSE = re.compile(r"[,;:()–—]\s|\s(?:but|sondern|mais|sino|но|але)\s", re.IGNORECASE)
# A long line that ends within a sentence, and no list, table or heading after it.
_WRAPPED = re.compile(r"(?<=[^\n]{50}[^\s.!?…:;|])\n(?=[^\W\d_])")
_LACKED_WORDS = 2
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|approx|No|Art|Sec|vs|z\.B|bzw|ca|p)\.|^\W*\d+\.)\s*$")
_ALIKE = str.maketrans({**dict.fromkeys("“”„«»″", '"'), **dict.fromkeys("‘’‚`´", "'"), **dict.fromkeys("‐‑‒–—−", "-")})
_IGNORED = "\u00ad\u200b\u200c\u200d\ufeff"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether the sources bear a statement out; `missing` are its words and numbers that they do not hold."""

    supported: bool
    coverage: float
    missing: tuple[str, ...] = ()


def statements(text: str) -> list[str]:
    """The text's sentences and lines, each with the markers that follow it; together they are the whole text."""
    pieces: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(text):
        piece = text[start : match.end()]
        if _ABBREVIATION.search(text[start : match.start()]):
            continue
        pieces.append(piece)
        start = match.end()
    return [piece for piece in (*pieces, text[start:]) if piece]


def markers(statement: str) -> list[int]:
    """The numbers of the sources that a statement names, as in `[1]` or `[2, 3]`."""
    return [int(number) for group in _MARKER.findall(statement) for number in re.findall(r"\d+", group)]


def without_markers(statement: str) -> str:
    return _MARKER.sub("", statement)


def is_checkable(statement: str) -> bool:
    """Whether the statement says something that sources can bear out."""
    plain = without_markers(statement)
    return len(_content(plain)) > _FEW_WORDS or bool(_numbers(plain))


def support(statement: str, sources: Sequence[str]) -> Support:
    """Whether one of the sources holds the statement's numbers, most of its content words, and its negation or none."""
    plain = without_markers(statement)
    found = [_borne_out(plain, source) for source in sources]
    return max(found, key=lambda item: (item.supported, item.coverage), default=Support(False, 0.0))


def _borne_out(statement: str, source: str) -> Support:
    words, numbers = _content(statement), _numbers(statement)
    held, stems = _numbers(source), {_stem(word) for word in tokens(source)}
    missing_numbers = [number for number in numbers if number not in held]
    missing = [word for word in words if _stem(word) not in stems]
    coverage = 1 - len(missing) / len(words) if words else 1.0
    supported = not missing_numbers and coverage >= COVERAGE and not _denied(statement, source, words)
    return Support(supported, coverage, (*missing_numbers, *missing))


def _denied(statement: str, source: str, words: Sequence[str]) -> bool:
    """Whether the source's sentence that is nearest to the statement says no where the statement says yes, or not."""
    wanted = {_stem(word) for word in words}
    nearest = max(
        statements(_unwrapped(source)), key=lambda sentence: len(wanted & set(map(_stem, tokens(sentence)))), default=""
    )
    return NEGATIONS.isdisjoint(tokens(statement)) == _says_no(nearest, wanted)


def _says_no(sentence: str, wanted: set[str]) -> bool:
    """Whether the sentence denies what is wanted: one of its denied parts has wanted words that no other part has."""
    denied, said = set[str](), set[str]()
    for clause in _CLAUSE.split(sentence):
        found = tokens(clause)
        stems = set(map(_stem, found))
        if not NEGATIONS.isdisjoint(found) and LACKING.isdisjoint(found):
            denied |= stems
        else:
            lacked = _lacked(found)
            denied |= lacked
            said |= stems - lacked
    return bool(wanted & denied - said)


def _lacked(found: Sequence[str]) -> set[str]:
    """The stems of the few words behind each "without"."""
    places = [place for place, word in enumerate(found) if word in LACKING]
    return {_stem(word) for place in places for word in found[place + 1 : place + 1 + _LACKED_WORDS]}


def _unwrapped(text: str) -> str:
    """The text without the line ends that a page's width has put into its sentences."""
    return _WRAPPED.sub(" ", text)


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
    """The source's own words that the quote repeats, but for white space, letter case and shapes of quotation marks.

    Of a quote with gaps (`…`) the longest part counts.
    """
    parts = re.split(r"\s*(?:…|\.\.\.|\[…\])\s*", quote.strip().strip("\"'“”„«»‘’ "))
    wanted = max(parts, key=len).strip()
    if not any(map(str.isalnum, wanted)):
        return None
    flat, places = _flat(source)
    sought, _ = _flat(wanted)
    at = flat.find(sought.strip())
    if at < 0:
        return None
    return source[places[at] : places[at + len(sought.strip()) - 1] + 1]


def nearest_words(statement: str, source: str, limit: int = 300) -> str:
    """The source's sentence or row that shares most with the statement, literally."""
    wanted = {_stem(word) for word in _content(statement)} | set(_numbers(statement))
    pieces = statements(_unwrapped(source))
    ends = list(accumulate(map(len, pieces)))  # nothing but line ends was replaced: places in both texts are the same
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
