"""Office files as XML parts: zip bombs and XML entities are refused, and nothing is written to disk or fetched."""

import io
import posixpath
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any
from urllib.parse import unquote

from lxml import etree
from lxml.etree import _Element as Element

from task.documents.model import NotText, Repeats, Unreadable

MOST_PARTS = 10_000
MOST_BYTES = 2**30
MOST_TREE_BYTES = 64 * 2**20
"""The largest part that is read as a whole; sheets and shared strings are streamed."""
_SMALL, _MOST_RATIO = 50 * 2**20, 200  # deflate reaches 1,032; a sheet of a million rows stays below 50
_COMPOUND = bytes.fromhex("d0cf11e0a1b11ae1")
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_DAMAGED = "it is damaged or was cut off; save or download it again"
_PROTECTED = "it is protected with a password; remove the password and attach it again"
_OLD_FORMAT = "it is in the old binary format of Office; save it as DOCX, XLSX or PPTX and attach it again"
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
# Nothing is expanded or fetched; depth (256) and the length of texts (10 MB) stay limited.
_PARSER_OPTIONS: dict[str, Any] = {
    "resolve_entities": False,
    "load_dtd": False,
    "no_network": True,
    "huge_tree": False,
    "remove_comments": True,
    "remove_pis": True,
}


class Harmful(Unreadable):
    """A file that was made to do harm; nothing of it is read."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What a part points to: the last word of the relation's type, and a part's name or an external address."""

    kind: str
    target: str


class Package:
    """The parts of an Office file, by their names in lower case and without a leading slash."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.damaged: list[str] = []
        self.repeats = Repeats()
        self._relations: dict[str, Mapping[str, Relation]] = {}
        self._parts = {_key(info.filename): info for info in archive.infolist() if not info.is_dir()}

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._parts

    @contextmanager
    def stream(self, name: str) -> Generator[IO[bytes]]:
        """The bytes of a part.

        Raises:
            Unreadable: the part is missing or damaged.
        """
        if name not in self:
            raise Unreadable(_DAMAGED)
        try:
            part = self._archive.open(self._parts[_key(name)])
        except (*_BROKEN, ValueError) as error:  # ValueError: the part would begin before the archive
            raise Unreadable(_DAMAGED) from error
        try:
            with part:
                yield part
        except _BROKEN as error:
            raise Unreadable(_DAMAGED) from error

    def xml(self, name: str) -> Element:
        """The root of a part.

        Raises:
            Unreadable: the part is missing, damaged, far too large, or declares entities.
        """
        with self.stream(name) as part:
            if self._parts[_key(name)].file_size > MOST_TREE_BYTES:
                raise Unreadable(f"its part {name} is larger than {MOST_TREE_BYTES >> 20} MiB when unpacked")
            try:
                root = etree.parse(part, etree.XMLParser(**_PARSER_OPTIONS)).getroot()
            except etree.XMLSyntaxError as error:
                raise Unreadable(_DAMAGED) from error
        _refuse_declarations(root)
        return root

    def side(self, name: str) -> Element | None:
        """The root of a part that the document can be read without; None, and a note, where the part is damaged.

        Raises:
            Harmful: the part declares entities.
        """
        with self.leaving_out(name):
            return self.xml(name)
        return None

    @contextmanager
    def leaving_out(self, name: str) -> Generator[None]:
        """A context in which a part is read: if it is damaged, what was read of it stays, and a note names it."""
        try:
            yield
        except Harmful:
            raise
        except Unreadable:
            self.damaged.append(name)

    def elements(self, name: str, tags: tuple[str, ...]) -> Iterator[Element]:
        """The elements of these names, one at a time; each is emptied when the next one is asked for.

        Raises:
            Unreadable: the part is missing, damaged, or declares entities.
        """
        wanted = [f"{{*}}{tag}" for tag in tags]
        options: dict[str, Any] = {**_PARSER_OPTIONS, "events": ("end",), "tag": wanted}
        with self.stream(name) as part:
            try:
                for _, element in etree.iterparse(part, **options):
                    _refuse_declarations(element)
                    yield element
                    element.clear()
                    while element.getprevious() is not None and (parent := element.getparent()) is not None:
                        del parent[0]
            except etree.XMLSyntaxError as error:
                raise Unreadable(_DAMAGED) from error

    def relations(self, name: str) -> Mapping[str, Relation]:
        """What a part (or the package itself, named "") points to, by relation id."""
        if name not in self._relations:
            folder, _, own = name.rpartition("/")
            listing = posixpath.join(folder, "_rels", f"{own}.rels")
            found: dict[str, Relation] = {}
            for element in self.xml(listing).iterfind("{*}Relationship") if listing in self else ():
                target = attribute(element, "Target")
                if attribute(element, "TargetMode") != "External":
                    path = unquote(target.replace("\\", "/"))
                    path = path.lstrip("/") if path.startswith("/") else posixpath.join(folder, path)
                    target = posixpath.normpath(path)
                kind = attribute(element, "Type").rpartition("/")[2]
                found[attribute(element, "Id")] = Relation(kind, target)
            self._relations[name] = found
        return self._relations[name]

    def parts(self, kind: str, name: str | None = None) -> list[str]:
        """The parts of this kind that a part, by default the main one, points to and that are there."""
        relations = self.relations(self.main if name is None else name).values()
        return [relation.target for relation in relations if relation.kind == kind and relation.target in self]

    def first(self, kind: str) -> Element | None:
        """The root of the main part's first part of this kind, if it is there and undamaged."""
        return next(map(self.side, self.parts(kind)), None)

    @cached_property
    def main(self) -> str:
        """The name of the part that holds the document itself.

        Raises:
            NotText: it is a zip file of another kind.
        """
        if parts := self.parts("officeDocument", ""):
            return parts[0]
        raise NotText("this is not an Office file")

    def notes(self) -> list[str]:
        """Notes on what the file holds besides its text."""
        names = list(self._parts)
        found: list[str] = []
        if any("vbaproject.bin" in name for name in names):
            found.append("contains macros; they were not run")
        if self.damaged:
            found.append(f"damaged parts left out: {', '.join(dict.fromkeys(self.damaged))}")
        if embedded := sum("/embeddings/" in name for name in names):
            found.append(f"embedded files not read: {embedded}")
        if pictures := sum("/media/" in name for name in names):
            found.append(f"pictures not read: {pictures}")
        return found


def open_package(content: bytes) -> Package:
    """The parts of an Office file.

    Raises:
        NotText: it is not an Office file.
        Unreadable: it is protected, damaged, in the old binary format, or a zip bomb.
    """
    if content.startswith(_COMPOUND):
        raise Unreadable(_PROTECTED if _ENCRYPTED in content else _OLD_FORMAT)
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
        raise Unreadable(_PROTECTED)
    return Package(archive)


def _key(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()


def _refuse_declarations(element: Element) -> None:
    # Office never writes a DOCTYPE, so any DOCTYPE is an entity attack.
    docinfo: Any = element.getroottree().docinfo  # the stubs call an absent DTD impossible
    if docinfo.internalDTD is not None:
        raise Harmful("it declares XML entities, as only files made to do harm do")


def local(element: Element) -> str:
    """The element's name without its namespace, which is all that strict and transitional files differ in."""
    return element.tag.rpartition("}")[2]


def attribute(element: Element | None, name: str) -> str:
    """The attribute of this name in any namespace, "" where there is none."""
    if element is None:
        return ""
    value = element.get(name)
    if value is not None:
        return value
    end = "}" + name
    return next((str(found) for key, found in element.items() if str(key).endswith(end)), "")


def each(element: Element | None, path: str) -> Iterator[Element]:
    """The elements at this path below the element, if there is one."""
    return iter(()) if element is None else element.iterfind(path)


def child(element: Element | None, *names: str) -> Element | None:
    """The element found by following these names downwards."""
    for name in names:
        element = None if element is None else element.find(f"{{*}}{name}")
    return element


def value(element: Element | None, *names: str) -> str:
    """The `val` of the element found by following these names, "" where there is none."""
    return attribute(child(element, *names), "val")


def whole_number(text: str, default: int) -> int:
    """The number that a text of up to nine digits is, else the default."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else default


def is_on(element: Element | None, *names: str) -> bool:
    """Whether a switch such as `<w:vanish/>` is there and not turned off."""
    found = child(element, *names)
    return found is not None and attribute(found, "val") not in ("0", "false", "off", "none")
