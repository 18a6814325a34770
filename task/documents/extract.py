"""Find the reader for a file and read it.

A format is one line in `FORMATS`: its name, the extensions and MIME types it goes by (DIAL Chat offers files by the
type that the browser reports), the bytes it begins with where no other format does, and its reader as `module:function`
in this package. The module is imported when the first file of the format comes, in the process that reads it. Only text
files are also read in the server's own process, so their readers import large libraries inside functions; so do others
for what few files need.

A reader takes the content and Core's content type ("" where there was none; it may carry a charset) and returns an
`Extraction`: blocks in reading order, tables as Markdown (`model.as_markdown`), and notes on what was unreadable,
repaired or cut off. It raises `NotText` for bytes that are not of its format, and `Unreadable` for a file that is
encrypted or too damaged to give anything. Memory and time are limited from outside (`worker`), so a reader limits only
what it can report in a note: rows, pages, characters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from mimetypes import MimeTypes
from pathlib import PurePosixPath
from types import MappingProxyType

from task.documents.model import Extraction, NotText, Unreadable, UnsupportedFile

Reader = Callable[[bytes, str], Extraction]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file; `reader` is `module:function` in this package, `opening` the bytes that no other format has."""

    name: str
    reader: str
    suffixes: tuple[str, ...]
    types: tuple[str, ...]
    opening: bytes | None = None

    @property
    def is_plain_text(self) -> bool:
        return self.reader == "text:read_text"


_MICROSOFT = "application/vnd.ms"


def _office_types(language: str, documents: Sequence[str], program: str, with_macros: Sequence[str]) -> tuple[str, ...]:
    plain = (f"application/vnd.openxmlformats-officedocument.{language}.{name}" for name in documents)
    return (*plain, *(f"{_MICROSOFT}-{program}.{name}.macroenabled.12" for name in with_macros))


_WORD = _office_types("wordprocessingml", ("document", "template"), "word", ("document", "template"))
_EXCEL = _office_types("spreadsheetml", ("sheet", "template"), "excel", ("sheet", "template"))
_SLIDES = ("presentation", "slideshow", "template")
_POWERPOINT = _office_types("presentationml", _SLIDES, "powerpoint", ("presentation",))
# A new format is a reader and its line here.
FORMATS = (
    Format("PDF", "pdf:read_pdf", (".pdf",), ("application/pdf", "application/x-pdf"), b"%PDF-"),
    Format("TXT", "text:read_text", (".txt",), ("text/plain",)),
    Format("MD", "text:read_text", (".md", ".markdown"), ("text/markdown", "text/x-markdown")),
    Format("HTML", "html:read_html", (".html", ".htm", ".xhtml"), ("text/html", "application/xhtml+xml")),
    Format("DOCX", "office_readers:read_docx", (".docx", ".docm", ".dotx", ".dotm"), _WORD),
    Format("XLSX", "xlsx:read_xlsx", (".xlsx", ".xlsm", ".xltx", ".xltm"), _EXCEL),
    Format("PPTX", "office_readers:read_pptx", (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"), _POWERPOINT),
    Format("JSON", "text:read_json", (".json",), ("application/json", "text/json")),
    # Browsers on Windows report a CSV file as one of Excel, where Excel is installed.
    Format("CSV", "tables:read_csv", (".csv",), ("text/csv", "application/csv", f"{_MICROSOFT}-excel")),
    Format("TSV", "tables:read_tsv", (".tsv", ".tab"), ("text/tab-separated-values", "text/tsv")),
)
SUPPORTED = ", ".join(format.name for format in FORMATS)
READERS: Mapping[str, Format] = MappingProxyType({suffix: format for format in FORMATS for suffix in format.suffixes})
BY_TYPE: Mapping[str, Format] = MappingProxyType({media: format for format in FORMATS for media in format.types})
_NAMED_TYPES = MimeTypes()  # Python's own table, the same on every machine
_BLANK = b"\xef\xbb\xbf \t\r\n"


def extract(name: str, content: bytes, content_type: str | None = None) -> Extraction:
    """Read a file by its first bytes or extension, else its content type, else as text if it looks like text.

    Raises:
        UnsupportedFile: there is no reader for it, or it is not what its name indicates.
        Unreadable: it is encrypted or damaged; the text says which.
    """
    module, _, function = format_of(name, content, content_type).reader.partition(":")
    read: Reader = getattr(import_module(f"task.documents.{module}"), function)
    try:
        found = read(content, content_type or "") if content.strip(_BLANK) else Extraction()
    except NotText as error:
        raise UnsupportedFile(f"{name!r} is not supported: {error}. Supported are {SUPPORTED}.") from error
    except Unreadable as error:
        raise Unreadable(f"{name!r} cannot be read: {error}") from error
    return Extraction(notes=found.notes) if found.is_empty else found


def is_readable(name: str, content_type: str | None) -> bool:
    """Whether there is a reader for files of this name or content type."""
    return PurePosixPath(name).suffix.lower() in READERS or _media(content_type) in BY_TYPE


def format_of(name: str, content: bytes, content_type: str | None = None) -> Format:
    """The format a file will be read as; text, unless its first bytes, name or content type indicate another.

    Raises:
        UnsupportedFile: its name is that of a program or of other binary data.
    """
    for format in FORMATS:
        if format.opening and content.startswith(format.opening):
            return format
    suffix = PurePosixPath(name).suffix.lower()
    known = READERS.get(suffix) or BY_TYPE.get(_media(content_type))
    if known is None and _NAMED_TYPES.guess_type(f"file{suffix}")[0] == "application/octet-stream":
        raise UnsupportedFile(f"{name!r} is not supported. Supported are {SUPPORTED}.")
    return known or READERS[".txt"]


def _media(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()
