"""DCMManager: a context definition and its documents, always as the files are now.

Nothing outside the definition's folder is read, nothing huge, and nothing but text.
"""

from __future__ import annotations

import logging
import os
import re
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


@dataclass(frozen=True, slots=True)
class Document:
    """A document that could be read."""

    reference: Reference
    path: Path


class DCMManager:
    """Manages the dynamic context. Source: framework reference, DCM Manager.

    `warnings` list what the definition names and cannot be read, as `file:line: reason`. Any spelling of an id is
    accepted: `Coding Guide` is `coding_guide`. Not thread-safe.
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
        """Read the definition and every document it names.

        Raises:
            DCMInitError: the definition itself cannot be read; a document that cannot be is a warning.
        """
        try:
            self.path = self.path.absolute()
            text, stamp = _read_text(self.path.resolve(), self.options.max_document_bytes)
            definition = parse(text, self.options.section_pattern)
        except (_Unreadable, OSError, RuntimeError) as error:
            raise DCMInitError(f"The context definition {self.path} cannot be used: {error}.") from error
        except (re.error, IndexError) as error:
            raise DCMInitError(f"context.section_pattern is not a pattern with a group: {error}.") from error
        self._definition = definition
        warnings = [self._warning(problem.line, "", problem.text) for problem in definition.problems]
        self.documents = {}
        for reference in definition.references:
            try:
                self.documents[reference.id] = Document(reference, self._read(reference)[0])
            except _Unreadable as reason:
                warnings.append(self._warning(reference.line, reference.path, str(reason)))
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
        document = self.documents.get(identifier(document_id))
        if document is None:
            return None
        kept, stamp = self._texts.get(document.path), _stamp_of(document.path)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        try:
            return self._read(document.reference)[1]
        except _Unreadable as reason:
            logger.warning("%s", self._warning(document.reference.line, document.reference.path, str(reason)))
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
        """The personas as people choose them: without a leading `persona_`."""
        documents = (document.reference for document in self.documents.values())
        return [persona_id(reference.id) for reference in documents if reference.persona]

    def persona_summaries(self) -> dict[str, str]:
        """The first line of each persona's text, by the ids that people choose."""
        texts = ((name, self.get_persona(name) or "") for name in self.persona_ids())
        lines = ((name, [line.strip("#* \t") for line in text.splitlines()]) for name, text in texts)
        return {name: next(filter(None, found), "")[:SUMMARY_CHARS] for name, found in lines}

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

    def _read(self, reference: Reference) -> tuple[Path, str]:
        path = _located(reference, self.path, self.options)
        text, stamp = _read_text(path, self.options.max_document_bytes)
        if self.options.cached_documents:
            self._texts[path] = (stamp, text)
        return path, text

    def _stamps(self) -> Iterator[Stamp | None]:
        for reference in self._known().references:
            try:
                yield _stamp_of(_located(reference, self.path, self.options))
            except _Unreadable:
                yield None

    def _warning(self, line: int, path: str, text: str) -> str:
        return f"{self.path.name}:{line}: {path}: {text}" if path else f"{self.path.name}:{line}: {text}"


class _Unreadable(Exception):
    """A document that is not read; the text states the reason and what to change."""


def _located(reference: Reference, definition: Path, options: ContextOptions) -> Path:
    root, named = definition.parent, reference.path
    if reference.rooted and named.startswith("/"):
        named = named[1:]
    if os.path.isabs(named) and not options.allow_absolute_paths:
        raise _Unreadable("the path is absolute; make it relative, or set context.allow_absolute_paths")
    lexical = Path(os.path.normpath(root / named))
    inside = lexical.is_relative_to(root)
    if not inside and not os.path.isabs(named) and not options.allow_parent_traversal:
        raise _Unreadable(
            f"the path leads out of {root.name or root}; move the file, or set context.allow_parent_traversal"
        )
    real = _resolved(lexical)
    if not real.is_relative_to(_resolved(root if inside else lexical.parent)):
        raise _Unreadable("it is a symbolic link that leads out of its folder; put the file itself there")
    if real == _resolved(definition):
        raise _Unreadable("it is the definition itself, which would contain itself")
    return real


def _resolved(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError:
        raise _Unreadable("there is no such file") from None
    except (OSError, RuntimeError) as error:  # Python 3.12 and older call a circle of links a RuntimeError
        circle = isinstance(error, RuntimeError) or "symbolic links" in str(error)
        raise _Unreadable("its symbolic links lead in a circle" if circle else _reason(error)) from None


def _stamp_of(path: Path) -> Stamp | None:
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _read_text(path: Path, limit: int) -> tuple[str, Stamp]:
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_BLOCKING)
    except OSError as error:
        raise _Unreadable("there is no such file" if isinstance(error, FileNotFoundError) else _reason(error)) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise _Unreadable("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = b"" if state.st_size > limit else file.read(limit + 1)
    finally:
        os.close(descriptor)
    if state.st_size > limit or len(content) > limit:
        raise _Unreadable(f"it has {state.st_size:,} bytes; {limit:,} are allowed (context.max_document_bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _Unreadable("it is not UTF-8 text") from None
    if "\0" in text:
        raise _Unreadable("it is a binary file, not text")
    return text, _stamp(state)


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_mtime_ns, state.st_size, state.st_ino


def _reason(error: BaseException) -> str:
    return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
