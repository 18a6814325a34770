"""Recover the pages of a PDF whose list of objects is damaged or missing."""

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress

_OBJECT = re.compile(rb"(?<!\d)(\d{1,9})\s+\d{1,5}\s+obj\b")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_CATALOG = re.compile(rb"/Type\s*/Catalog(?![A-Za-z])")
_PAGES = re.compile(rb"/Pages\s+(\d+)\s+\d+\s+R")
_PARENT = re.compile(rb"/Parent\s+(\d+)\s+\d+\s+R")
_PACKED = re.compile(rb"/Type\s*/ObjStm(?![A-Za-z])")
_COUNT, _FIRST = re.compile(rb"/N\s+(\d+)"), re.compile(rb"/First\s+(\d+)")
_MOST_PAGES, _MOST_UNPACKED = 20_000, 64 * 2**20


def salvaged(content: bytes) -> bytes | None:
    """The content with a new catalogue of its pages at the end; None when no page is left."""
    unpacked = b"".join(b"%d 0 obj\n%s\nendobj\n" % found for found in _unpacked(content))
    whole = content + b"\nendstream\nendobj\n" + unpacked
    objects = {int(found[1]): found.end() for found in _OBJECT.finditer(whole)}
    pages: list[int] = []
    catalog = parent = None
    for number, start in objects.items():
        end = whole.find(b"endobj", start)
        head = whole[start : end if end >= 0 else len(whole)].partition(b"stream")[0][:65_536]
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


def _unpacked(content: bytes) -> Iterator[tuple[int, bytes]]:
    # The objects in compressed streams, each with its number.
    room = _MOST_UNPACKED
    for found in _PACKED.finditer(content):
        start = content.rfind(b" obj", 0, found.start())
        head, marker, body = content[start : start + 1_048_576].partition(b"stream")
        counted, first_at = _COUNT.search(head), _FIRST.search(head)
        if not marker or counted is None or first_at is None:
            continue
        data, first = b"", int(first_at[1])
        with suppress(zlib.error):
            data = zlib.decompressobj().decompress(body.lstrip(b"\r\n"), max(1, room))
        room -= len(data)
        header = data[:first].split()
        if not all(map(bytes.isdigit, header)):
            continue
        numbers = list(map(int, header))
        pairs = list(zip(numbers[::2], numbers[1::2], strict=False))[: int(counted[1])]
        ends = [*(offset for _, offset in pairs[1:]), len(data) - first]
        for (number, offset), end in zip(pairs, ends, strict=False):
            yield number, data[first + offset : first + end]
