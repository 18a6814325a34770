"""Open an Office file safely: bombs are refused before anything is unpacked, and nothing is written to disk."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from task.documents.model import NotText, Unreadable

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

MOST_PARTS = 10_000
MOST_BYTES = 2**30
MOST_TREE_BYTES = 64 * 2**20
"""The largest part that is read as a whole; sheets and shared strings are streamed."""
_SMALL, _MOST_RATIO = 50 * 2**20, 200  # deflate reaches 1,032; a sheet of a million rows stays below 50
_COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1")
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_DAMAGED = "it is damaged or was cut off; save or download it again"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Relation:
    """Where a part points: the last word of the relation's type, and a part's name or an address outside."""

    kind: str
    target: str
    is_external: bool


class Package:
    """The parts of an Office file, by their names in lower case and without a leading slash."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.damaged: list[str] = []
        self._parts = {_key(info.filename): info for info in archive.infolist() if not info.is_dir()}

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._parts

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parts)

    @contextmanager
    def stream(self, name: str) -> Generator[IO[bytes]]:
        """The bytes of a part.

        Raises:
            Unreadable: the part is missing or damaged.
        """
        if name not in self:
            raise Unreadable(_DAMAGED)
        try:
            with self._archive.open(self._parts[_key(name)]) as part:
                yield part
        except _BROKEN as error:
            raise Unreadable(_DAMAGED) from error

    def xml(self, name: str) -> Element:
        """The root of a part.

        Raises:
            Unreadable: the part is missing, damaged, far too large, or declares entities.
        """
        from lxml import etree

        with self.stream(name) as part:
            if self._parts[_key(name)].file_size > MOST_TREE_BYTES:
                raise Unreadable(f"its part {name} is larger than {MOST_TREE_BYTES >> 20} MiB when unpacked")
            try:
                root = etree.parse(part, etree.XMLParser(**parser_options())).getroot()
            except etree.XMLSyntaxError as error:
                raise Unreadable(_DAMAGED) from error
        refuse_declarations(root)
        return root

    def side(self, name: str) -> Element | None:
        """The root of a part that the document can be read without; None, and a note, where it is damaged.

        Raises:
            Harmful: the part declares entities.
        """
        try:
            return self.xml(name)
        except Harmful:
            raise
        except Unreadable:
            self.damaged.append(name)
            return None

    def elements(self, name: str, tags: tuple[str, ...]) -> Iterator[Element]:
        """The elements of these names, one at a time; each is emptied when the next one is asked for.

        Raises:
            Unreadable: the part is missing, damaged, or declares entities.
        """
        from lxml import etree

        wanted = [f"{{*}}{tag}" for tag in tags]
        options: dict[str, Any] = {**parser_options(), "events": ("end",), "tag": wanted}
        with self.stream(name) as part:
            try:
                for _, element in etree.iterparse(part, **options):
                    refuse_declarations(element)
                    yield element
                    element.clear()
                    while element.getprevious() is not None and (parent := element.getparent()) is not None:
                        del parent[0]
            except etree.XMLSyntaxError as error:
                raise Unreadable(_DAMAGED) from error

    def relations(self, name: str) -> Mapping[str, Relation]:
        """What a part (or the package itself, named "") points to, by relation id; nothing where that is not said."""
        folder, _, own = name.rpartition("/")
        listing = posixpath.join(folder, "_rels", f"{own}.rels")
        if listing not in self:
            return {}
        found: dict[str, Relation] = {}
        for element in self.xml(listing).iterfind("{*}Relationship"):
            is_external = attribute(element, "TargetMode") == "External"
            target = attribute(element, "Target")
            kind = attribute(element, "Type").rpartition("/")[2]
            found[attribute(element, "Id")] = Relation(
                kind, target if is_external else _resolved(folder, target), is_external
            )
        return found

    @cached_property
    def main(self) -> str:
        """The name of the part that holds the document itself.

        Raises:
            NotText: it is a zip file of another kind.
        """
        for relation in self.relations("").values():
            if relation.kind == "officeDocument" and relation.target in self:
                return relation.target
        raise NotText("this is not an Office file")

    def notes(self) -> list[str]:
        """What the file holds beside its text."""
        found = ["contains macros; they were not run"] if self._count("vbaproject.bin") else []
        if self.damaged:
            found.append(f"damaged parts left out: {', '.join(dict.fromkeys(self.damaged))}")
        if embedded := self._count("/embeddings/"):
            found.append(f"embedded files not read: {embedded}")
        if pictures := self._count("/media/"):
            found.append(f"pictures not read: {pictures}")
        return found

    def _count(self, word: str) -> int:
        return sum(word in name for name in self._parts)


def open_package(content: bytes) -> Package:
    """The parts of an Office file.

    Raises:
        NotText: it is no Office file.
        Unreadable: it is protected, damaged, in the old binary format, or would unpack to far more than it is.
    """
    if content.startswith(_COMPOUND):
        raise Unreadable(_compound_reason(content))
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _BROKEN as error:
        if content.startswith(b"PK\x03\x04"):
            raise Unreadable(_DAMAGED) from error
        raise NotText("this is not an Office file") from error
    infos = archive.infolist()
    if len(infos) > MOST_PARTS:
        raise Unreadable(f"it packs {len(infos):,} files; at most {MOST_PARTS:,} are unpacked")
    size = sum(info.file_size for info in infos)
    if size > MOST_BYTES or (size > _SMALL and size > _MOST_RATIO * len(content)):
        raise Unreadable(f"{len(content):,} bytes of it would unpack to {size:,}, which no document needs")
    if any(info.flag_bits & 1 for info in infos):
        raise Unreadable("it is protected with a password; remove the password and attach it again")
    return Package(archive)


def _compound_reason(content: bytes) -> str:
    if _ENCRYPTED in content:
        return "it is protected with a password; remove the password and attach it again"
    return "it is in the old binary format of Office; save it as DOCX, XLSX or PPTX and attach it again"


def _resolved(folder: str, target: str) -> str:
    path = unquote(target.replace("\\", "/"))
    return posixpath.normpath(path.lstrip("/") if path.startswith("/") else posixpath.join(folder, path))


def _key(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()


class Harmful(Unreadable):
    """A file that was made to do harm; nothing of it is read."""


def parser_options() -> dict[str, Any]:
    """Options that leave a parser nothing to expand or to fetch; depth (256) and texts (10 MB) stay limited."""
    return {
        "resolve_entities": False,
        "load_dtd": False,
        "no_network": True,
        "huge_tree": False,
        "remove_comments": True,
        "remove_pis": True,
    }


def refuse_declarations(element: Element) -> None:
    """No Office program writes a document type; one that is there declares entities.

    Raises:
        Harmful: there is one.
    """
    docinfo: Any = element.getroottree().docinfo  # the stubs call an absent DTD impossible
    if docinfo.internalDTD is not None:
        raise Harmful("it declares XML entities, as only files made to do harm do")


def local(element: Element) -> str:
    """The element's name without its namespace: files of the strict and the common kind differ in nothing else."""
    return element.tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    """The attribute of this name in any namespace, "" where there is none."""
    value = element.get(name)
    if value is not None:
        return value
    end = "}" + name
    return next((str(found) for key, found in element.items() if str(key).endswith(end)), "")


def child(element: Element | None, *names: str) -> Element | None:
    """The element found by following these names downwards."""
    for name in names:
        element = None if element is None else element.find(f"{{*}}{name}")
    return element


def value(element: Element | None, *names: str) -> str:
    """The `val` of the element found by following these names, "" where there is none."""
    found = child(element, *names)
    return "" if found is None else attribute(found, "val")


def whole_number(text: str, default: int) -> int:
    """The number that a text of up to nine digits is, else the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else default


def is_on(element: Element | None, *names: str) -> bool:
    """Whether a switch such as `<w:vanish/>` is there and not turned off."""
    found = child(element, *names)
    return found is not None and attribute(found, "val") not in ("0", "false", "off", "none")
