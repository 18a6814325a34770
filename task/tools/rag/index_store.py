"""An index as bytes, checked when they are read; the document's text is kept once, by `Readings`."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from task.tools.rag.chunks import ChunkedDocument
from task.tools.rag.search import DocumentIndex, build_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAGIC = b"DRI3"
_DIMENSIONS = struct.Struct("!I")
_DIGEST_BYTES = 32


class Damaged(ValueError):
    """The bytes are not the index of this document."""


def packed(index: DocumentIndex) -> bytes:
    """The vectors of an index; the rest of it is made from the document."""
    vectors: NDArray[np.float32] = index.dense.reconstruct_n(0, index.dense.ntotal)
    body = _DIMENSIONS.pack(index.dense.d) + vectors.astype("<f4").tobytes()
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpacked(content: bytes, document: ChunkedDocument) -> DocumentIndex:
    """The index of the document from its vectors.

    Raises:
        Damaged: the bytes are cut, changed, of another version, or belong to another document.
    """
    body = memoryview(content)[len(_MAGIC) + _DIGEST_BYTES :]
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != content[len(_MAGIC) :][:_DIGEST_BYTES]:
        raise Damaged("these bytes are not an index")
    import numpy as np

    (dimensions,) = _DIMENSIONS.unpack_from(body)
    vectors = np.frombuffer(body[_DIMENSIONS.size :], dtype="<f4").reshape(-1, dimensions)
    if len(vectors) != len(document.chunks):
        raise Damaged("this index belongs to another document")
    return build_index(document, vectors)
