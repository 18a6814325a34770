"""The text of one paragraph of a Word document, as a reader of the finished document sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from task.documents.office_xml import attribute, child, is_on, local

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

    from task.documents.office_zip import Relation

_LEFT_OUT = frozenset({"pPr", "rPr", "instrText", "fldData", "Fallback", "annotationRef", "footnoteRef", "endnoteRef"})
_DELETED = frozenset({"del", "moveFrom"})
_SIGNS = {"tab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": " "}
_NOTES = {"footnoteReference": "", "endnoteReference": "e"}
_WEB = ("http://", "https://", "mailto:")


@dataclass
class Paragraphs:
    """Reads paragraphs; remembers what was left out of them, and the text boxes that hang on the last one."""

    relations: Mapping[str, Relation]
    deletions: int = 0
    boxes: list[Element] = field(default_factory=list["Element"])

    def text(self, paragraph: Element) -> str:
        return "".join(self._texts(paragraph)).strip()

    def take_boxes(self) -> list[Element]:
        boxes, self.boxes = self.boxes, []
        return boxes

    def _texts(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name == "t":
                yield element.text or ""
            elif name in _DELETED:
                self.deletions += 1
            elif name in _SIGNS:
                yield _SIGNS[name]
            elif name in _NOTES:
                yield f"[^{_NOTES[name]}{attribute(element, 'id')}]"
            elif name == "txbxContent":
                self.boxes.append(element)
            elif name == "hyperlink":
                yield self._link(element)
            elif name == "docPr":
                yield _label(element)
            elif name not in _LEFT_OUT and not (name == "r" and is_on(child(element, "rPr"), "vanish")):
                yield from self._texts(element)

    def _link(self, element: Element) -> str:
        text = "".join(self._texts(element))
        relation = self.relations.get(attribute(element, "id"))
        if relation is None or not relation.target.startswith(_WEB) or text.strip() in ("", relation.target):
            return text
        return f"[{text}]({relation.target})"


def _label(element: Element) -> str:
    label = attribute(element, "descr").strip()
    return f"[image: {label}]" if label else ""
