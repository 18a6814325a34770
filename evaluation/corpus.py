"""The documents, questions and claims, and the fixed rule that splits the questions in two."""

import csv
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeVar

from evaluation.files import docx_of, pdf_of
from task.documents.extract import extract
from task.search.chunks import ChunkedDocument, chunk_document

Half = Literal["development", "test"]
_Item = TypeVar("_Item")
HERE = Path(__file__).parent
UNANSWERABLE = "unanswerable"
MULTILINGUAL = "multilingual"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one document; `answer` occurs there literally and once, and is empty where there is none."""

    id: str
    document: str
    category: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement about the text around `place`, which occurs literally in the document."""

    document: str
    place: str
    statement: str
    supported: bool


def questions(path: Path = HERE / "questions.csv") -> list[Question]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Question(**row) for row in csv.DictReader(file)]


def claims(path: Path = HERE / "claims.csv") -> list[Claim]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Claim(row["document"], row["place"], row["statement"], row["supported"] == "yes")
            for row in csv.DictReader(file)
        ]


def half_of(asked: Iterable[Question], half: Half) -> list[Question]:
    """Every second question of each category, in the order of their ids' hashes; the first belongs to development."""
    return _halved(asked, half, lambda question: question.id, lambda question: question.category)


def claims_of(stated: Iterable[Claim], half: Half) -> list[Claim]:
    """Every second supported and every second unsupported claim, by the same rule."""
    return _halved(stated, half, lambda claim: f"{claim.document}:{claim.statement}", lambda claim: claim.supported)


def _halved(
    items: Iterable[_Item], half: Half, name: Callable[[_Item], str], kind: Callable[[_Item], Hashable]
) -> list[_Item]:
    groups: dict[Hashable, list[_Item]] = {}
    for item in sorted(items, key=lambda item: sha256(name(item).encode()).hexdigest()):
        groups.setdefault(kind(item), []).append(item)
    start = 0 if half == "development" else 1
    return [item for group in groups.values() for item in group[start::2]]


def documents(names: Sequence[str] = (), folder: Path = HERE / "documents") -> dict[str, ChunkedDocument]:
    """By name without extension, read and chunked as in the product: the manual as PDF, the policy as DOCX."""
    paths = sorted(path for path in folder.iterdir() if not names or path.stem in names)
    return {path.stem: _document(path) for path in paths}


def _document(path: Path) -> ChunkedDocument:
    name, content = path.name, path.read_bytes()
    if path.stem == "heat-pump-manual":
        name, content = "heat-pump-manual.pdf", pdf_of(content.decode())
    elif path.stem == "travel-policy":
        name, content = "travel-policy.docx", docx_of(content.decode())
    return chunk_document(name, extract(name, content).blocks)
