"""Read a body with a bound on what comes out of it, not on what goes in."""

import zlib
from collections.abc import AsyncIterator

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ACCEPTED = "gzip, deflate"


class Unreadable(Exception):
    """A body that cannot be decoded."""


async def bounded(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    """The decoded body, at most `limit` bytes of it, and whether it was cut there.

    Raises:
        Unreadable: its encoding was not requested, or it is damaged.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return await _plain(chunks, limit)
    if encoding not in _WINDOW:
        raise Unreadable("the page is compressed in a way that cannot be read")
    return await _inflated(chunks, encoding, limit)


async def _plain(chunks: AsyncIterator[bytes], limit: int) -> tuple[bytes, bool]:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False


async def _inflated(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    body, inflate, first = bytearray(), zlib.decompressobj(_WINDOW[encoding]), True
    async for chunk in chunks:
        if first and encoding == "deflate" and chunk[:1] and chunk[0] & 0x0F != 8:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # many servers send bare deflate without zlib's header
        first = False
        try:
            body += inflate.decompress(chunk, limit + 1 - len(body))
        except zlib.error as error:
            raise Unreadable("the page is damaged") from error
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False
