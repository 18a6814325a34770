"""Give a truncated or damaged PDF a new catalogue, made from the pages that are left in it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

_OBJECT = re.compile(rb"(?<!\d)(\d{1,9})\s+\d{1,5}\s+obj\b")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_CATALOG = re.compile(rb"/Type\s*/Catalog(?![A-Za-z])")
_PAGES = re.compile(rb"/Pages\s+(\d+)\s+\d+\s+R")
_PARENT = re.compile(rb"/Parent\s+(\d+)\s+\d+\s+R")
_PACKED = re.compile(rb"/Type\s*/ObjStm(?![A-Za-z])")
_NUMBERS = {key: re.compile(rb"/" + key + rb"\s+(\d+)") for key in (b"N", b"First")}
_MOST_UNPACKED = 64 * 2**20
_MOST_PAGES = 20_000


def salvaged(content: bytes) -> bytes | None:
    """The content with a new catalogue of its pages at the end; None when no page is left."""
    unpacked = b"".join(b"%d 0 obj\n%s\nendobj\n" % found for found in _unpacked(content))
    whole = content + b"\nendstream\nendobj\n" + unpacked
    objects = {int(found[1]): found.end() for found in _OBJECT.finditer(whole)}
    pages: list[int] = []
    catalog = parent = None
    for number, start in objects.items():
        head = _head(whole, start)
        if _CATALOG.search(head) and (tree := _PAGES.search(head)) and int(tree[1]) in objects:
            catalog = number
        elif _PAGE.search(head) and len(pages) < _MOST_PAGES:
            pages.append(number)
            parent = parent or (int(above[1]) if (above := _PARENT.search(head)) else None)
    if not pages:
        return None
    if catalog is None:
        tree = parent or max(objects) + 1
        catalog = max(*objects, tree) + 1
        kids = b" ".join(b"%d 0 R" % number for number in pages)
        whole += b"%d 0 obj\n<</Type/Pages/Kids[%s]/Count %d>>\nendobj\n" % (tree, kids, len(pages))
        whole += b"%d 0 obj\n<</Type/Catalog/Pages %d 0 R>>\nendobj\n" % (catalog, tree)
    size = max(*objects, catalog) + 1
    return whole + b"trailer\n<</Root %d 0 R/Size %d>>\nstartxref\n0\n%%%%EOF\n" % (catalog, size)


def _head(content: bytes, start: int) -> bytes:
    end = content.find(b"endobj", start)
    head = content[start : end if end >= 0 else len(content)]
    return head.partition(b"stream")[0][:65_536]


def _unpacked(content: bytes) -> Iterator[tuple[int, bytes]]:
    room = _MOST_UNPACKED
    for found in _PACKED.finditer(content):
        start = content.rfind(b" obj", 0, found.start())
        head, marker, body = content[start:][:1_048_576].partition(b"stream")
        numbers = {key: pattern.search(head) for key, pattern in _NUMBERS.items()}
        count, first = numbers[b"N"], numbers[b"First"]
        if not marker or count is None or first is None:
            continue
        data = _inflated(body.lstrip(b"\r\n"), room)
        room -= len(data)
        yield from _split(data, int(count[1]), int(first[1]))


def _inflated(data: bytes, room: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, max(1, room))
    except zlib.error:
        return b""


def _split(data: bytes, count: int, first: int) -> Iterator[tuple[int, bytes]]:
    header = data[:first].split()
    if not all(map(bytes.isdigit, header)):
        return
    numbers = list(map(int, header))
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))[:count]
    ends = [*(offset for _, offset in pairs[1:]), len(data) - first]
    for (number, offset), end in zip(pairs, ends, strict=False):
        yield number, data[first + offset : first + end]
