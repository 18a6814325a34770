"""Read the one file of a multipart request into an upload, never more of it in memory than a chunk."""

from __future__ import annotations

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from task.local_core.refusal import Refusal
from task.local_core.uploads import Upload

_CHUNK_BYTES = 1 << 16
# aiohttp's reader reports a body without its closing boundary by an assertion.
_MALFORMED = (ValueError, AssertionError, BadHttpMessage, web.RequestPayloadError)


async def receive_file(request: web.Request, upload: Upload, max_size: int) -> str | None:
    """Write the request's one part that has a file name into `upload`; returns the part's own content type.

    The name of the form field does not matter, parts without a file name are passed over.

    Raises:
        Refusal: there is not exactly one file, it is larger than `max_size` bytes, or the body is malformed.
    """
    if request.content_type != "multipart/form-data":
        raise Refusal(400, "Request must have a valid content-type header to decode a multipart request")
    try:
        return await _receive(request, upload, max_size)
    except _MALFORMED as error:
        raise Refusal(400, "Failed to decode a multipart request") from error


async def _receive(request: web.Request, upload: Upload, max_size: int) -> str | None:
    content_types: list[str | None] = []
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.filename is None:
            continue
        if content_types:
            raise Refusal(400, "Exactly one file is expected")
        given = part.headers.get("Content-Type", "")
        content_types.append(given if given.isascii() else None)
        await _write(part, upload, max_size)
    if not content_types:
        raise Refusal(400, "No file is found in the request")
    await upload.finish()
    return content_types[0]


async def _write(part: BodyPartReader, upload: Upload, max_size: int) -> None:
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        await upload.write(chunk)
        if upload.size > max_size:
            raise Refusal(413, "Request body is too large")
