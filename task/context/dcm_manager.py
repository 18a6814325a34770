"""DCMManager: a context definition and its documents, current whenever they are asked for."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from task.context.definition import Definition, Reference, identifier, parse
from task.context.documents import ContextOptions, Refused, Stamp, located, read_text, stamp_of
from task.errors import DCMInitError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Document:
    """A document that could be read; `tokens` of a prompt are about a third of its `size` in bytes."""

    reference: Reference
    path: Path
    size: int


class DCMManager:
    """Manages the dynamic context. Source: framework reference, DCM Manager.

    `warnings` tell what the definition names and what cannot be had, as `file:line: reason`. Ids are found however they
    are spelled: `Coding Guide` is `coding_guide`. Not for several threads at once.
    """

    def __init__(self, context_definition_path: str, *, options: ContextOptions | None = None) -> None:
        self.path = Path(context_definition_path)
        self.options = options or ContextOptions()
        self.warnings: tuple[str, ...] = ()
        self.documents: dict[str, Document] = {}
        self._definition: Definition | None = None
        self._seen: tuple[Stamp | None, ...] = ()
        self._texts: LRUCache[Path, tuple[Stamp, str]] = LRUCache(max(self.options.cached_documents, 1))

    def initialize(self) -> None:
        """Read the definition and look at every document it names.

        Raises:
            DCMInitError: the definition itself cannot be read; a document that cannot be is a warning.
        """
        try:
            self.path = self.path.absolute()
            text, stamp = read_text(self.path.resolve(), self.options.max_document_bytes)
            definition = parse(text, self.options.section_pattern)
        except (Refused, OSError, RuntimeError) as error:
            raise DCMInitError(f"The context definition {self.path} cannot be used: {error}.") from error
        except (re.error, IndexError) as error:
            raise DCMInitError(f"context.section_pattern is no pattern with a group: {error}.") from error
        self._definition = definition
        self._look_at(definition)
        self._seen = (stamp, *self._stamps())

    def reload(self) -> bool:
        """Read everything again if any of the files has changed; whether it did.

        A definition that cannot be read any more is a warning in the log, and what it said last stays.
        """
        if (stamp_of(self.path), *self._stamps()) == self._seen:
            return False
        try:
            self.initialize()
        except DCMInitError as error:
            logger.warning("%s What it said before stays in use.", error)
            return False
        return True

    def get_initial_prompt(self) -> str | None:
        return self._known().initial_prompt

    def get_document_content(self, document_id: str) -> str | None:
        """The document's text as it is now; None where there is none or it cannot be read."""
        self._known()
        document = self.documents.get(identifier(document_id))
        if document is None:
            return None
        kept, stamp = self._texts.get(document.path), stamp_of(document.path)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        try:
            text, stamp = read_text(
                located(document.reference, self.path, self.options), self.options.max_document_bytes
            )
        except Refused as reason:
            logger.warning("%s", self._warning(document.reference.line, document.reference.path, str(reason)))
            return None
        if self.options.cached_documents:
            self._texts[document.path] = (stamp, text)
        return text

    def get_context_section(self, section_id: str) -> str | None:
        """The prose of a section, without its references; None where there is no such section."""
        return self._known().sections.get(identifier(section_id))

    def persona_ids(self) -> list[str]:
        """The personas as `/persona` takes them: without a leading `persona_`."""
        documents = (document.reference for document in self.documents.values())
        return [reference.id.removeprefix("persona_") for reference in documents if reference.persona]

    def get_persona(self, persona_id: str) -> str | None:
        """A persona's text by its id, with or without `persona_`."""
        wanted = identifier(persona_id)
        for name in (wanted, f"persona_{wanted}"):
            document = self.documents.get(name)
            if document is not None and document.reference.persona:
                return self.get_document_content(name)
        return None

    def _known(self) -> Definition:
        if self._definition is None:
            raise DCMInitError("The context was not read yet; call initialize() first.")
        return self._definition

    def _look_at(self, definition: Definition) -> None:
        warnings = [self._warning(problem.line, "", problem.text) for problem in definition.problems]
        self.documents = {}
        for reference in definition.references:
            try:
                path = located(reference, self.path, self.options)
                text, stamp = read_text(path, self.options.max_document_bytes)
            except Refused as reason:
                warnings.append(self._warning(reference.line, reference.path, str(reason)))
                continue
            self.documents[reference.id] = Document(reference, path, stamp[1])
            if self.options.cached_documents:
                self._texts[path] = (stamp, text)
        self.warnings = tuple(warnings)

    def _stamps(self) -> Iterator[Stamp | None]:
        for reference in self._known().references:
            try:
                yield stamp_of(located(reference, self.path, self.options))
            except Refused:
                yield None

    def _warning(self, line: int, path: str, text: str) -> str:
        return f"{self.path.name}:{line}: {path}: {text}" if path else f"{self.path.name}:{line}: {text}"
