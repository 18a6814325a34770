"""Text files: the encoding of bytes, and the readers of plain text and JSON.

Byte order marks, UTF-8, UTF-16 and UTF-32 without marks, old code pages, and what HTML declares are recognised.
"""

import codecs
import json
import re
from dataclasses import replace

from task.documents.model import Block, Extraction, NotText

_SAMPLE = 65_536
_MARKS = (  # the mark of UTF-32 LE begins with that of UTF-16 LE
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CODE_PAGES = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
_CONTROLS = bytes(code for code in range(32) if code not in b"\0\t\n\v\f\r\x1b") + b"\x7f"
_MOST_CONTROLS = 0.01
_MOST_NULS = 0.3
_LOST = "\N{REPLACEMENT CHARACTER}"
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_NOT_IN_TEXT = (*_CONTROLS.decode(), _LOST)
_DECLARED = re.compile(
    r"""<(?:meta|\?xml)[^<>]{0,500}?(?:charset|encoding)\s*+=\s*+["']?+\s*+([\w.:-]+)""", re.IGNORECASE | re.ASCII
)
_IN_HEADER = re.compile(r"""charset\s*+=\s*+["']?+\s*+([\w.:-]+)""", re.I)
_HEAD = 4096
_WEB_NAMES = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""What browsers use instead. Source: WHATWG Encoding Standard, Names and labels."""
_MARKED_NUMBER = re.compile(r'"\\u0000([-+.\dEe]+)"')
_HALF_LETTER = re.compile("[\ud800-\udfff]")


def read_text(content: bytes, content_type: str = "") -> Extraction:
    return decode(content)


def read_json(content: bytes, content_type: str = "") -> Extraction:
    """JSON indented by two spaces, its numbers exactly as they were; text with a note where it is invalid."""
    decoded = decode(content)
    if not decoded.text.strip():
        return Extraction(notes=decoded.notes)
    pieces, room = list[str](), 4 * len(decoded.text) + 10_000
    try:
        # Numbers travel as marked strings, so that no digit is lost.
        found = json.loads(decoded.text, parse_float="\0{}".format, parse_int="\0{}".format)
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(found):
            pieces.append(piece)
            room -= len(piece) - 8 * ("\\u0000" in piece)  # of a number's mark
            if room < 0:  # the indentation of deep nesting would fill the memory
                return decoded
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        return replace(decoded, notes=(*decoded.notes, f"not valid JSON ({reason}), given as it is"))
    text = _MARKED_NUMBER.sub(r"\1", "".join(pieces))
    whole = _HALF_LETTER.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    return Extraction((Block(whole),), decoded.notes)


def decode(content: bytes) -> Extraction:
    """The text in one block, with `\\n` line ends and without NULs; the notes say what was not plain UTF-8.

    Raises:
        NotText: it is binary data.
    """
    mark, encoding = next((each for each in _MARKS if content.startswith(each[0])), (b"", _wide(content[:_SAMPLE])))
    if not encoding:
        controls = len(content) - len(content.translate(None, _CONTROLS))
        if controls > max(1, len(content) * _MOST_CONTROLS) or content.count(0) > len(content) * _MOST_NULS:
            raise NotText("this is binary data, not text")
        encoding = "utf-8" if _is_utf8(content) else _code_page(content)
    raw = content[len(mark) :].decode(encoding, errors="replace")
    if encoding in _WIDE and sum(map(raw.count, _NOT_IN_TEXT)) > max(2, len(raw) * _MOST_CONTROLS):
        raise NotText("this is binary data, not text")
    notes: list[str] = []
    if encoding.startswith("utf") and encoding != "utf-8":
        notes.append(f"encoding {encoding.upper().replace('-LE', ' LE').replace('-BE', ' BE')}")
    elif encoding != "utf-8":
        notes.append(f"encoding {encoding.replace('cp125', 'Windows-125').replace('_', '-')}")
    if lost := raw.count(_LOST):
        notes.append(f"unreadable characters replaced: {lost}")
    if nuls := raw.count("\0"):
        notes.append(f"NUL characters removed: {nuls}")
        raw = raw.replace("\0", "")
    if "\r" in raw:
        both, returns, feeds = raw.count("\r\n"), raw.count("\r"), raw.count("\n")
        if sum(count > 0 for count in (both, returns - both, feeds - both)) > 1:
            notes.append("mixed line ends")
    return Extraction((Block(_with_line_feeds(raw)),), tuple(notes))


def _wide(sample: bytes) -> str:
    if 0 not in sample or not any(sample):
        return ""
    for encoding, zeros in (("utf-32-le", (2, 3)), ("utf-32-be", (0, 1))):
        if len(sample) >= 4 and not any(any(sample[place::4]) for place in zeros):
            return encoding
    for encoding, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        high, low = sample[place::2], sample[1 - place :: 2]
        # A script's letters share few high bytes; stray NULs in one-byte text leave the others as they were.
        if high.count(0) >= max(1, len(high) // 20) > low.count(0) and len(set(high)) <= min(8, len(set(low))):
            return encoding
    return ""


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        # One broken letter in a UTF-8 file must not turn all the others into another alphabet.
        tried = content.decode(errors="replace")
        lost = tried.count(_LOST)
        return lost * 10 <= sum(not letter.isascii() for letter in tried) - lost
    return True


def _code_page(content: bytes) -> str:
    from charset_normalizer import from_bytes

    if len(content) > _SAMPLE:
        content = content[:_SAMPLE].rpartition(b"\n")[0] or content[:_SAMPLE]
    matches = list(from_bytes(content, cp_isolation=list(_CODE_PAGES)))
    if not matches:
        return "cp1252"
    best = matches[0]
    # Short texts fit many code pages equally well; the one of western Windows is by far the commonest.
    western = [match for match in matches if "cp1252" in match.could_be_from_charset]
    if western and western[0].chaos <= best.chaos + 0.1 and western[0].coherence >= best.coherence:
        return "cp1252"
    return best.encoding


def decode_html(content: bytes, content_type: str = "") -> Extraction:
    """Decode by byte order mark, as UTF-8, or by the first true of the encodings that page and header declare.

    Raises:
        NotText: it is binary data.
    """
    found = decode(content)
    is_marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8))
    is_utf8 = not any(note.startswith("encoding ") for note in found.notes)
    if is_utf8 or is_marked or b"\0" in content[:_HEAD]:
        return found
    head = content[:_HEAD].decode("latin-1")
    for name in (*_DECLARED.findall(head), *_IN_HEADER.findall(content_type)):
        try:
            known = codecs.lookup(name).name
            encoding = _WEB_NAMES.get(known, known)
            text = content.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            continue
        return Extraction((Block(_with_line_feeds(text)),), (f"encoding {encoding}",))
    return found


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
