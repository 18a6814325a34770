"""DCMManager: a context definition and its documents, always the current files.

Nothing outside the definition's folder is read, nothing huge, and nothing but text.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from task.context.definition import SECTION_PATTERN, Definition, Reference, identifier, parse, persona_id
from task.errors import DCMInitError

logger = logging.getLogger(__name__)
SUMMARY_CHARS = 200
_NO_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # not on Windows
Stamp = tuple[int, int, int]  # modified (ns), size, inode: when it changes, so did the content


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The limits of a context definition; sizes in bytes."""

    max_document_bytes: int = 2**20
    max_prompt_bytes: int = 100_000
    cached_documents: int = 100
    allow_absolute_paths: bool = False
    allow_parent_traversal: bool = False
    section_pattern: str = SECTION_PATTERN


class DCMManager:
    """Manages the dynamic context. Source: framework reference, DCM Manager.

    `documents` are those that could be read, by id; `warnings` list the others, as `file:line: reason`. Any spelling of
    an id is accepted: `Coding Guide` is `coding_guide`. Not thread-safe.
    """

    def __init__(self, context_definition_path: str, *, options: ContextOptions | None = None) -> None:
        self.path = Path(context_definition_path)
        self.options = options or ContextOptions()
        self.warnings: tuple[str, ...] = ()
        self.documents: dict[str, Reference] = {}
        self._definition: Definition | None = None
        self._seen: tuple[Stamp | None, ...] = ()
        self._texts: LRUCache[Path, tuple[Stamp | None, str]] = LRUCache(max(self.options.cached_documents, 1))

    def initialize(self) -> None:
        """Read the definition and every document it names.

        Raises:
            DCMInitError: the definition itself cannot be read; a document that cannot be is a warning.
        """
        try:
            self.path = self.path.absolute()
            stamp = _stamp_of(self.path)
            text = self._read_text(self.path.resolve())
            self._definition = definition = parse(text, self.options.section_pattern)
        except (_Unreadable, OSError, RuntimeError) as error:
            raise DCMInitError(f"The context definition {self.path} cannot be used: {error}.") from error
        warnings, self.documents = [f"{self.path.name}:{line}: {fault}" for line, fault in definition.problems], {}
        for reference in definition.references:
            try:
                self._document(reference)
                self.documents[reference.id] = reference
            except _Unreadable as reason:
                warnings.append(self._warning(reference, reason))
        self.warnings = tuple(warnings)
        self._seen = (stamp, *self._stamps())

    def reload(self) -> bool:
        """Read everything again if any of the files has changed; whether it did.

        A definition that can no longer be read is a warning in the log, and its last version stays in use.
        """
        if (_stamp_of(self.path), *self._stamps()) == self._seen:
            return False
        try:
            self.initialize()
        except DCMInitError as error:
            logger.warning("%s Its last version stays in use.", error)
            return False
        return True

    def get_initial_prompt(self) -> str | None:
        return self._known().initial_prompt

    def get_document_content(self, document_id: str) -> str | None:
        """The document's text as it is now; None where there is none or it cannot be read."""
        self._known()
        if (reference := self.documents.get(identifier(document_id))) is not None:
            try:
                return self._document(reference)
            except _Unreadable as reason:
                logger.warning("%s", self._warning(reference, reason))
        return None

    def get_context_section(self, section_id: str) -> str | None:
        """The prose of a section, without its references; None where there is no such section."""
        return self._known().sections.get(identifier(section_id))

    def prose(self) -> dict[str, str]:
        """The prose of the sections by id, apart from the initial prompt and from sections without any."""
        known = self._known()
        return {name: text for name, text in known.sections.items() if text and text != known.initial_prompt}

    def get_passage(self, name: str) -> str | None:
        """The document and the section of this id, where there are both; None where there is neither."""
        found = [text for text in (self.get_context_section(name), self.get_document_content(name)) if text]
        return "\n\n".join(found) or None

    def log_warnings(self) -> None:
        for warning in self.warnings:
            logger.warning("%s", warning)

    def persona_ids(self) -> list[str]:
        """The personas as users choose them: without a leading `persona_`."""
        return [persona_id(name) for name, reference in self.documents.items() if reference.persona]

    def persona_summaries(self) -> dict[str, str]:
        """The first line of each persona's text, by the ids that users choose."""
        texts = ((name, self.get_persona(name) or "") for name in self.persona_ids())
        lines = ((name, [line.strip("#* \t") for line in text.splitlines()]) for name, text in texts)
        return {name: next(filter(None, found), "")[:SUMMARY_CHARS] for name, found in lines}

    def get_persona(self, persona_id: str) -> str | None:
        """A persona's text by its id, with or without `persona_`."""
        wanted = identifier(persona_id)
        names = [name for name in (wanted, f"persona_{wanted}") if name in self.documents]
        return next((self.get_document_content(name) for name in names if self.documents[name].persona), None)

    def _known(self) -> Definition:
        if self._definition is None:
            raise DCMInitError("The context was not read yet; call initialize() first.")
        return self._definition

    def _document(self, reference: Reference) -> str:
        path = self._located(reference)
        kept, stamp = self._texts.get(path), _stamp_of(path)  # before it is read: it may change meanwhile
        if kept is None or kept[0] != stamp:
            kept = stamp, self._read_text(path)
            if self.options.cached_documents:
                self._texts[path] = kept
        return kept[1]

    def _stamps(self) -> Iterator[Stamp | None]:
        for reference in self._known().references:
            try:
                yield _stamp_of(self._located(reference))
            except _Unreadable:
                yield None

    def _warning(self, reference: Reference, reason: _Unreadable) -> str:
        return f"{self.path.name}:{reference.line}: {reference.path}: {reason}"

    def _located(self, reference: Reference) -> Path:
        root, options = self.path.parent, self.options
        named = reference.path.removeprefix("/") if reference.rooted else reference.path
        if os.path.isabs(named) and not options.allow_absolute_paths:
            raise _Unreadable("the path is absolute; make it relative, or set context.allow_absolute_paths")
        lexical = Path(os.path.normpath(root / named))
        inside = lexical.is_relative_to(root)
        if not inside and not os.path.isabs(named) and not options.allow_parent_traversal:
            place = root.name or root
            raise _Unreadable(f"the path leads out of {place}; move the file, or set context.allow_parent_traversal")
        try:
            real, folder, definition = (
                path.resolve(strict=True) for path in (lexical, root if inside else lexical.parent, self.path)
            )
        except (OSError, RuntimeError) as error:
            raise _Unreadable(_reason(error)) from None
        if not real.is_relative_to(folder):
            raise _Unreadable("it is a symbolic link that leads out of its folder; put the file itself there")
        if real == definition:
            raise _Unreadable("it is the definition itself, which would contain itself")
        return real

    def _read_text(self, path: Path) -> str:
        limit = self.options.max_document_bytes
        try:
            with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_BLOCKING)) as file:
                state = os.fstat(file.fileno())
                content = file.read(limit + 1) if stat.S_ISREG(state.st_mode) else None
        except OSError as error:
            raise _Unreadable(_reason(error)) from None
        if content is None:
            raise _Unreadable("it is not a regular file")
        if len(content) > limit:
            raise _Unreadable(f"it has {state.st_size:,} bytes; {limit:,} are allowed (context.max_document_bytes)")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise _Unreadable("it is binary, not UTF-8 text")
        return text


class _Unreadable(Exception):
    """A document that is not read; the text states the reason and what to change."""


def _reason(error: OSError | RuntimeError) -> str:
    if isinstance(error, RuntimeError):  # with Python 3.12 and older
        return "its symbolic links lead in a circle"
    return f"it cannot be read: {error.strerror}"


def _stamp_of(path: Path) -> Stamp | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
