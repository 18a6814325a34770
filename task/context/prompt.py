"""What a context definition adds to the system prompt, with the persona of the conversation."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from task.context.dcm_manager import DCMManager
from task.context.definition import persona_id
from task.errors import InvalidRequest

CHECK_SECONDS = 2.0
TOOLS_SECTION = "tools"


@dataclass(frozen=True, slots=True)
class ContextPrompt:
    """The text, the ids of the sections and documents that did not fit, which the model reads with a tool, and the
    names of deployments that are tools. `foreign`: not all of the text is the operator's."""

    text: str = ""
    left_out: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    foreign: bool = False


def context_prompt(manager: DCMManager, persona: str = "") -> ContextPrompt:
    """Initial prompt, persona, prose of the sections and documents, in this order.

    A section or document that does not fit whole is left out.
    """
    chosen = manager.get_persona(persona) if persona else None
    parts = [text.strip() for text in (manager.get_initial_prompt(), chosen) if text]
    room, left_out = manager.options.max_prompt_bytes - sum(len(part.encode()) for part in parts), list[str]()
    passages = [("section", name, prose) for name, prose in manager.prose().items()]
    for name, reference in manager.documents.items():
        text = None if reference.persona else manager.get_document_content(name)
        passages += [("document", name, text)] if text is not None else []
    for tag, name, text in passages:
        part = f'<{tag} id="{name}">\n{text.strip()}\n</{tag}>'
        if (size := len(part.encode())) <= room:
            room -= size
            parts.append(part)
        else:
            left_out.append(name)
    listed = (manager.get_context_section(TOOLS_SECTION) or "").splitlines()
    tools = tuple(line[2:].strip() for line in listed if line.startswith("- "))
    return ContextPrompt("\n\n".join(parts), tuple(dict.fromkeys(left_out)), tools)


class LiveContext:
    """A definition for a server: its files are checked every two seconds at most, off the event loop.

    `manager` must be initialised; `persona` is the one of conversations that choose none.
    """

    def __init__(self, manager: DCMManager, persona: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.persona = persona_id(persona)
        self._manager, self._clock, self._checked_at = manager, clock, clock()
        self._access = asyncio.Lock()  # a DCMManager is not thread-safe
        self._prompts: dict[str, ContextPrompt] = {}  # by persona

    async def personas(self) -> dict[str, str]:
        """The personas to choose from, each with the first line of its text."""
        await self._refresh_if_due()
        async with self._access:
            return await asyncio.to_thread(self._manager.persona_summaries)

    async def prompt(self, persona: str = "") -> ContextPrompt:
        """The prompt of the current files with this persona; at most two seconds old.

        Raises:
            InvalidRequest: there is no such persona.
        """
        await self._refresh_if_due()
        wanted = persona_id(persona) or self.persona
        if (kept := self._prompts.get(wanted)) is not None:
            return kept
        async with self._access:
            if persona and wanted not in (known := self._manager.persona_ids()):
                raise unknown_persona(persona, known)
            made = self._prompts[wanted] = await asyncio.to_thread(context_prompt, self._manager, wanted)
        return made

    async def read(self, name: str) -> str | None:
        """The document or section as it is now."""
        async with self._access:
            return await asyncio.to_thread(self._manager.get_passage, name)

    async def _refresh_if_due(self) -> None:
        if self._clock() - self._checked_at < CHECK_SECONDS or self._access.locked():
            return
        async with self._access:
            self._checked_at = self._clock()
            if await asyncio.to_thread(self._manager.reload):
                self._prompts.clear()
                self._manager.log_warnings()


def unknown_persona(persona: str, known: Sequence[str]) -> InvalidRequest:
    """The refusal of a persona that does not exist, with those that do."""
    return InvalidRequest(f"There is no persona {persona!r}. There are: {', '.join(known) or 'none'}.")
