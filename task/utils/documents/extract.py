"""Find the reader for a file and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from mimetypes import MimeTypes
from pathlib import PurePosixPath
from types import MappingProxyType

from task.utils.documents.model import Extraction, NotText, UnsupportedFile
from task.utils.documents.tables import read_csv, read_tsv
from task.utils.documents.text import read_json, read_text

Reader = Callable[[bytes], Extraction]

# A new format is a reader and its lines here.
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        ".txt": read_text,
        ".md": read_text,
        ".markdown": read_text,
        ".json": read_json,
        ".csv": read_csv,
        ".tsv": read_tsv,
        ".tab": read_tsv,
    }
)
BY_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "text/plain": ".txt",
        "text/markdown": ".md",
        "application/json": ".json",
        "text/json": ".json",
        "text/csv": ".csv",
        "application/csv": ".csv",
        "text/tab-separated-values": ".tsv",
    }
)
SUPPORTED = "TXT, MD, JSON, CSV, TSV"
_NAMED_TYPES = MimeTypes()  # Python's own table, the same on every machine


def extract(name: str, content: bytes, content_type: str | None = None) -> Extraction:
    """Read a file by its extension, else its content type, else as text if it looks like text.

    Raises:
        UnsupportedFile: no reader is made for it, or it is not what its name says.
    """
    reader = _reader_for(name, content_type)
    try:
        found = reader(content)
    except NotText as error:
        raise UnsupportedFile(f"{name!r} is not supported: {error}. Supported are {SUPPORTED}.") from error
    return Extraction(notes=found.notes) if found.is_empty else found


def _reader_for(name: str, content_type: str | None) -> Reader:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in READERS:
        return READERS[suffix]
    media = (content_type or "").partition(";")[0].strip().lower()
    if media in BY_TYPE:
        return READERS[BY_TYPE[media]]
    named, _ = _NAMED_TYPES.guess_type(f"file{suffix}")
    if named == "application/octet-stream":
        raise UnsupportedFile(f"{name!r} is not supported. Supported are {SUPPORTED}.")
    return read_text
