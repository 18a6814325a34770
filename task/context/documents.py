"""Find and read the documents of a context definition: nothing outside its folder, nothing huge, nothing but text."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from task.context.definition import SECTION_PATTERN, Reference

_NO_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)  # absent on Windows

Stamp = tuple[int, int, int]  # modified (ns), size, inode: another one means another content


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """What a context definition may do; sizes in bytes."""

    max_document_bytes: int = 2**20
    max_prompt_bytes: int = 100_000
    cached_documents: int = 100
    allow_absolute_paths: bool = False
    allow_parent_traversal: bool = False
    section_pattern: str = SECTION_PATTERN


class Refused(Exception):
    """A document that is not read; the text says why and what to change."""


def located(reference: Reference, definition: Path, options: ContextOptions) -> Path:
    """The real path of a document.

    Raises:
        Refused: it does not exist, or may not be read because of where it is.
    """
    root, named = definition.parent, reference.path
    if reference.rooted and named.startswith("/"):
        named = named[1:]
    if os.path.isabs(named) and not options.allow_absolute_paths:
        raise Refused("the path is absolute; make it relative, or set context.allow_absolute_paths")
    lexical = Path(os.path.normpath(root / named))
    inside = lexical.is_relative_to(root)
    if not inside and not os.path.isabs(named) and not options.allow_parent_traversal:
        raise Refused(
            f"the path leads out of {root.name or root}; move the file, or set context.allow_parent_traversal"
        )
    real = _resolved(lexical)
    if not real.is_relative_to(_resolved(root if inside else lexical.parent)):
        raise Refused("it is a symbolic link that leads out of its folder; put the file itself there")
    if real == _resolved(definition):
        raise Refused("it is this very definition, which would contain itself")
    return real


def _resolved(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except FileNotFoundError:
        raise Refused("there is no such file") from None
    except (OSError, RuntimeError) as error:  # Python 3.12 and older call a circle of links a RuntimeError
        circle = isinstance(error, RuntimeError) or "symbolic links" in str(error)
        raise Refused("its symbolic links lead in a circle" if circle else _reason(error)) from None


def stamp_of(path: Path) -> Stamp | None:
    """The state of a file without reading it; None where it cannot be seen."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def read_text(path: Path, limit: int) -> tuple[str, Stamp]:
    """The file's text and the state in which it was read.

    Raises:
        Refused: no regular file, over `limit` bytes, or not UTF-8 text.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _NO_BLOCKING)
    except OSError as error:
        raise Refused("there is no such file" if isinstance(error, FileNotFoundError) else _reason(error)) from None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise Refused("it is no ordinary file")
        content = b"" if state.st_size > limit else _content(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    if state.st_size > limit or len(content) > limit:
        raise Refused(f"it has {state.st_size:,} bytes; {limit:,} are allowed (context.max_document_bytes)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("it is not UTF-8 text") from None
    if "\0" in text:
        raise Refused("it is a binary file, not text")
    return text, _stamp(state)


def _content(descriptor: int, most: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(most)


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_mtime_ns, state.st_size, state.st_ino


def _reason(error: BaseException) -> str:
    return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
