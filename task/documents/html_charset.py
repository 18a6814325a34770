"""The text of an HTML file, whichever of its several statements about its encoding is true."""

from __future__ import annotations

import codecs
import re

from task.documents.encoding import Decoded, decode

_DECLARED = re.compile(rb"""<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_IN_HEADER = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_HEAD = 4096
_WEB_NAMES = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""What browsers read instead. Source: WHATWG Encoding Standard, Names and labels."""


def decode_html(content: bytes, content_type: str = "") -> Decoded:
    """Decode by byte order mark, by being UTF-8, by what the page says, by what the header says, by its bytes.

    Raises:
        NotText: it is binary data.
    """
    found = decode(content)
    if not any(note.startswith("encoding ") for note in found.notes) or _has_mark(content):
        return found
    for name in (*_DECLARED.findall(content[:_HEAD]), *_IN_HEADER.findall(content_type)):
        if (read := _decoded(content, name if isinstance(name, str) else name.decode("ascii", "replace"))) is not None:
            return read
    return found


def _has_mark(content: bytes) -> bool:
    return content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)) or b"\0" in content[:_HEAD]


def _decoded(content: bytes, name: str) -> Decoded | None:
    try:
        known = codecs.lookup(name).name
        encoding = _WEB_NAMES.get(known, known)
        text = content.decode(encoding)
    except (LookupError, UnicodeDecodeError):
        return None
    return Decoded(text.replace("\r\n", "\n").replace("\r", "\n"), (f"encoding {encoding}",))
