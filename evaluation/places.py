"""Where an answer is in a document, and which chunks hold it."""

from task.search.answers import literal
from task.search.chunks import Chunk, ChunkedDocument

Span = tuple[int, int]


def span_of(words: str, text: str) -> Span:
    """The characters of the text where the words occur, ignoring white space and letter case.

    Raises:
        ValueError: they do not occur exactly once.
    """
    found = words if words in text else literal(words, text)
    if not found or text.count(found) != 1:
        raise ValueError(f"{words!r} occurs in the document {text.count(found) if found else 0} times, not once")
    start = text.index(found)
    return start, start + len(found)


def holds(chunk: Chunk, span: Span) -> bool:
    """Whether the chunk has at least half of the span: a cut may go through an answer."""
    return shared(chunk, span) * 2 >= span[1] - span[0]


def shared(chunk: Chunk, span: Span) -> int:
    """How many characters of the span the chunk has."""
    return max(min(chunk.place.end, span[1]) - max(chunk.place.start, span[0]), 0)


def chunk_at(document: ChunkedDocument, words: str) -> int:
    """The number of the chunk that has most of the words."""
    span = span_of(words, document.text)
    return max(range(len(document.chunks)), key=lambda number: shared(document.chunks[number], span))
