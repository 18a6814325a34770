"""XML of Office files, read without entities, declarations or network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from task.documents.model import Unreadable

if TYPE_CHECKING:
    from lxml.etree import _Element as Element


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
