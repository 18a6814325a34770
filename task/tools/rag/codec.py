"""An indexed document as bytes for a store, and back; bytes that were damaged are noticed."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

from task.tools.rag.chunks import Chunk, ChunkedDocument, Place
from task.tools.rag.search import DocumentIndex, build_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAGIC = b"DRI2"
_LENGTHS = struct.Struct("!III")  # bytes of the packed text, bytes of the packed places, dimensions of a vector
_DIGEST_BYTES = 32


class Damaged(ValueError):
    """Bytes that are no indexed document."""


def packed(index: DocumentIndex) -> bytes:
    document = index.document
    # Line by line: one call for all of a long document would hold up the answers that stream meanwhile.
    lines = (json.dumps(told) for told in (document.notes, *(_told(chunk, document.text) for chunk in index.chunks)))
    text = zlib.compress(document.text.encode(errors="surrogatepass"), 1)
    places = zlib.compress("\n".join(lines).encode(), 1)
    vectors: NDArray[np.float32] = index.dense.reconstruct_n(0, index.dense.ntotal)
    body = _LENGTHS.pack(len(text), len(places), index.dense.d) + text + places + vectors.astype("<f4").tobytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpacked(content: bytes) -> DocumentIndex:
    """The index that was packed; its document has no name.

    Raises:
        Damaged: the bytes are cut, changed, or of another version.
    """
    body = memoryview(content)[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != content[len(_MAGIC) :][:_DIGEST_BYTES]:
        raise Damaged("these bytes are no indexed document")
    import numpy as np

    text_bytes, places_bytes, dimensions = _LENGTHS.unpack_from(body)
    packed_text, rest = body[_LENGTHS.size :][:text_bytes], body[_LENGTHS.size + text_bytes :]
    text = zlib.decompress(packed_text).decode(errors="surrogatepass")
    notes, *told = (json.loads(line) for line in zlib.decompress(rest[:places_bytes]).split(b"\n"))
    chunks = tuple(_chunk(item, text) for item in told)
    vectors = np.frombuffer(rest[places_bytes:], dtype="<f4").reshape(-1, dimensions)
    return build_index(ChunkedDocument("", text, chunks, tuple(notes)), vectors)


def _told(chunk: Chunk, text: str) -> list[Any]:
    place = chunk.place
    own = None if chunk == _usual(place, text) else str(chunk)
    return [place.start, place.end, place.page, place.headings, place.header, place.rows, own]


def _chunk(told: list[Any], text: str) -> Chunk:
    start, end, page, headings, header, rows, own = told
    place = Place(start, end, page, tuple(headings), header, (rows[0], rows[1]) if rows else None)
    return Chunk(_usual(place, text) if own is None else own, place)


def _usual(place: Place, text: str) -> str:
    body = text[place.start : place.end]
    return f"{place.header}\n{body}" if place.header else body
