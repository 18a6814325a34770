"""Put the context together from the settings."""

from __future__ import annotations

from task.context.dcm_manager import DCMManager
from task.context.documents import ContextOptions
from task.context.prompt import LiveContext
from task.errors import DCMInitError, SettingsError
from task.settings import Settings
from task.settings.framework import ContextSettings


def context_manager(settings: Settings) -> DCMManager | None:
    """The context that the settings name, read; None where they name none.

    Raises:
        SettingsError: the definition cannot be read, or it knows no such persona.
    """
    chosen = settings.context
    if chosen.definition_path is None:
        return None
    manager = DCMManager(str(chosen.definition_path), options=_options(chosen))
    try:
        manager.initialize()
    except DCMInitError as error:
        raise SettingsError(f"AGENT_CONTEXT__DEFINITION_PATH: {error} Correct the path, or remove it.") from error
    if chosen.persona and manager.get_persona(chosen.persona) is None:
        known = ", ".join(manager.persona_ids()) or "none"
        raise SettingsError(f"AGENT_CONTEXT__PERSONA: there is no persona {chosen.persona!r}. There are: {known}.")
    return manager


def live_context(settings: Settings) -> LiveContext | None:
    """What the context adds to the system prompt of a server; None without a context.

    Raises:
        SettingsError: as by `context_manager`.
    """
    manager = context_manager(settings)
    return LiveContext(manager, settings.context.persona) if manager is not None else None


def _options(chosen: ContextSettings) -> ContextOptions:
    return ContextOptions(
        max_document_bytes=chosen.max_document_bytes,
        max_prompt_bytes=chosen.max_prompt_bytes,
        cached_documents=chosen.cached_documents,
        allow_absolute_paths=chosen.allow_absolute_paths,
        allow_parent_traversal=chosen.allow_parent_traversal,
        section_pattern=chosen.section_pattern,
    )
