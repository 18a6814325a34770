"""What a context adds to the system prompt, kept current while a server runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from task.context.dcm_manager import DCMManager

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ContextPrompt:
    """The text, and the ids of the documents that did not fit."""

    text: str
    left_out: tuple[str, ...] = ()


def context_prompt(manager: DCMManager, persona: str = "") -> ContextPrompt:
    """Initial prompt, persona and documents, in this order; a document that does not fit whole is left out."""
    most = manager.options.max_prompt_bytes
    chosen = manager.get_persona(persona) if persona else None
    parts = [text.strip() for text in (manager.get_initial_prompt(), chosen) if text]
    used, left_out = sum(len(part.encode()) for part in parts), list[str]()
    for document_id, document in manager.documents.items():
        text = None if document.reference.persona else manager.get_document_content(document_id)
        if text is None:
            continue
        block = f'<document id="{document_id}">\n{text.strip()}\n</document>'
        if used + len(block.encode()) > most:
            left_out.append(document_id)
            continue
        used += len(block.encode())
        parts.append(block)
    return ContextPrompt("\n\n".join(parts), tuple(left_out))


class LiveContext:
    """A definition's prompt for a server: its files are checked every two seconds at most, off the event loop.

    `manager` must be initialised.
    """

    def __init__(self, manager: DCMManager, persona: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._manager, self._persona, self._clock = manager, persona, clock
        self._text = self._render()
        self._checked_at = clock()
        self._checking = asyncio.Lock()

    async def prompt(self) -> str:
        """The prompt of the current files; at most two seconds old."""
        if self._clock() - self._checked_at >= CHECK_SECONDS and not self._checking.locked():
            async with self._checking:
                self._checked_at = self._clock()
                await asyncio.to_thread(self._refresh)
        return self._text

    def _refresh(self) -> None:
        if self._manager.reload():
            self._text = self._render()

    def _render(self) -> str:
        for warning in self._manager.warnings:
            logger.warning("%s", warning)
        rendered = context_prompt(self._manager, self._persona)
        if rendered.left_out:
            logger.warning(
                "the context has no room for %s (context.max_prompt_bytes)", ", ".join(rendered.left_out)
            )  # fmt: skip
        return rendered.text
