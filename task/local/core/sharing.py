"""Automatic sharing: the files that a request attaches, and the files that its response attaches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import orjson

from task.local.core.responses import Refusal
from task.local.core.urls import InvalidUrl, canonical

FOLDER_TYPE = "application/vnd.dial.metadata+json"

_ABSOLUTE = re.compile(r"data:|[A-Za-z][A-Za-z0-9+.-]*://")
_DATA_LINE = b"data:"
_WORD = b'"attachments"'


def request_files(document: dict[str, Any]) -> list[str]:
    """Canonical URLs of all files and folders that a completion or embedding request attaches, folders with a `/`.

    Raises: Refusal 400 for a relative URL that is not a well-formed one.
    """
    found = dict.fromkeys(_canonical_file(url, kind) for url, kind in _request_urls(document) if not is_absolute(url))
    return list(found)


def is_absolute(url: str) -> bool:
    """Whether an attachment's URL is none of Core's: `data:` or `scheme://`."""
    return _ABSOLUTE.match(url) is not None


def _canonical_file(url: str, kind: str | None) -> str:
    prefix = "metadata/files/" if kind == FOLDER_TYPE else "files/"
    folder = url.endswith("/")
    if not url.startswith(prefix) or "?" in url or "#" in url or folder != (kind == FOLDER_TYPE):
        raise Refusal(400)
    try:
        return canonical(url).removeprefix("metadata/")
    except InvalidUrl:
        raise Refusal(400) from None


def _request_urls(document: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    for message in _objects(document.get("messages")):
        for part in _objects(message.get("content")):
            image = part.get("image_url")
            if part.get("type") == "image_url" and isinstance(image, dict) and isinstance(image.get("url"), str):
                yield image["url"], None
        yield from _content_urls(message.get("custom_content"))
    yield from _attachment_urls(_flat(document.get("custom_input")))


def _content_urls(content: Any) -> Iterator[tuple[str, str | None]]:
    if not isinstance(content, dict):
        return
    yield from _attachment_urls(_objects(content.get("attachments")))
    for stage in _objects(content.get("stages")):
        yield from _attachment_urls(_objects(stage.get("attachments")))


def _attachment_urls(attachments: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str | None]]:
    for attachment in attachments:
        url, kind = attachment.get("url"), attachment.get("type")
        if isinstance(url, str):
            yield url, kind if isinstance(kind, str) else None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _flat(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)


class ResponseWatch:
    """Reads a response while it passes and reports the attached files below `prefix`.

    `share` gets the canonical URLs as soon as the event that names them is complete; a body that is not an event stream
    is read in `finish`. An event without attachments costs one search for its end and one for the word.
    """

    def __init__(self, prefix: str, share: Callable[[list[str]], None], *, events: bool) -> None:
        self._prefix = prefix
        self._share = share
        self._events = events
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1 if self._events else 0
        if not end:
            self._rest += data
            return
        block = bytes(self._rest) + data[:end] if self._rest else data[:end]
        self._rest = bytearray(data[end:])
        if _WORD in block:
            self._read_events(block)

    def finish(self) -> None:
        if _WORD in self._rest:
            (self._read_events if self._events else self._read)(bytes(self._rest))

    def _read_events(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            if line.startswith(_DATA_LINE) and _WORD in line:
                self._read(line[len(_DATA_LINE) :])

    def _read(self, text: bytes) -> None:
        try:
            document = orjson.loads(text)
        except ValueError:
            return
        shared: list[str] = []
        for url in _response_urls(document):
            with suppress(InvalidUrl):
                shared.append(canonical(url))
        shared = [url for url in shared if url.startswith(self._prefix)]
        if shared:
            self._share(shared)


def _response_urls(document: Any) -> Iterator[str]:
    for choice in _objects(document.get("choices") if isinstance(document, dict) else None):
        for side in ("delta", "message"):
            answer = choice.get(side)
            if isinstance(answer, dict):
                yield from (url for url, _ in _content_urls(answer.get("custom_content")) if not is_absolute(url))
