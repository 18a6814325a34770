"""The settings that the framework's own configuration file knows: model, context, history, permissions, console."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from task.settings.values import AsJson, Beginnings, Folder, Section, Texts, setting


def _heading_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    if groups < 1:
        raise ValueError("its first group must be the section's title")
    return text


class ModelSettings(Section):
    """Options of model requests, unless a request sets others."""

    max_tokens: int | None = setting(None, "Tokens an answer may have; empty: the model's own.", ge=1)
    top_p: float | None = setting(None, "Nucleus sampling; empty: the model's own.", ge=0, le=1)
    top_k: int | None = setting(None, "Sampling among so many tokens; sent where the provider takes it.", ge=1)
    attempts: int = setting(3, "Tries of a request that fails before it is answered.", ge=1, le=20)
    retry_seconds: float = setting(0.5, "Pause before the second try; then it doubles.", gt=0, le=60)


class ContextSettings(Section):
    """The context definition: first words, documents and personas."""

    definition_path: Folder | None = setting(None, "A FRAMEWORK_CONTEXT.md; see [Context](context.md). Empty: none.")
    persona: str = setting("", "Id of the persona of conversations that choose none.")
    max_document_bytes: int = setting(2**20, "Largest definition or document.", ge=1)
    max_prompt_bytes: int = setting(100_000, "Most that goes into the system prompt; a tool reads the rest.", ge=0)
    cached_documents: int = setting(100, "Documents kept in memory; 0: none.", ge=0)
    allow_absolute_paths: bool = setting(False, "Let a definition name documents by absolute paths.")
    allow_parent_traversal: bool = setting(False, "Let a definition name documents outside its folder (`../`).")
    section_pattern: Annotated[str, AfterValidator(_heading_pattern)] = setting(
        r"^##\s+(.+?)\s*#*\s*$", "A section's heading; its first group is the title."
    )


class HistorySettings(Section):
    """How long conversations may get."""

    max_tokens: int | None = setting(
        None, "Tokens of a model request; empty: DIAL Core's limit. See [History](context.md#history).", ge=100
    )
    max_length: int | None = setting(None, "Messages of a model request; empty: any, 100 in `MessageManager`.", ge=1)
    pruning_strategy: Literal["remove_oldest", "summarize"] = setting(
        "remove_oldest", "What `MessageManager` does with older ones; see [History](context.md#history).", console=True
    )
    prioritize_system_messages: bool = setting(True, "Never drop system messages (`MessageManager`).", console=True)
    summary_tokens: int = setting(800, "Tokens of a summary (`summarize`).", ge=50, console=True)
    default_initial_messages: Annotated[list[dict[str, Any]], AsJson] = setting(
        [], "Messages that `MessageManager` starts with: a list of `role` and `content`.", console=True
    )


class ShellSettings(Section):
    """Commands, whichever tool runs them; see [Permissions](permissions.md#lists-of-tools-and-commands)."""

    allowed_commands: Beginnings | None = setting(None, "How allowed commands begin; not set: all not blocked.")
    blocked_commands: Beginnings = setting([], "How commands that never run begin.")
    working_directory: Folder | None = setting(
        None, "Folder in which commands run; empty: the project's.", console=True
    )


class FileSettings(Section):
    """Limits of the framework's tool of this name, and of the other tools of its kind."""

    allowed_extensions: Texts | None = setting(None, "Endings of the files it may open; empty: all.", console=True)
    max_file_size: int = setting(10 * 2**20, "Largest file it may open, in bytes.", ge=1, console=True)


class TepsSettings(Section):
    """The framework's Tool Execution & Permission Service; its lists narrow what `permissions` allows."""

    permission_required: bool = setting(True, "Ask before a call that no rule decides; off: it runs.", console=True)
    allowed_tools: Texts | None = setting(
        None, "Tools that are offered and may be called; with `permissions.tools`: those in both."
    )
    secure_mode: bool = setting(
        True,
        "Confine file tools and commands to the folder; off: other files after a question, commands without a sandbox.",
        console=True,
    )
    remember_confirmations: bool = setting(True, "Offer *always* with a question; off: each call asks.", console=True)
    confirmation_seconds: float = setting(60, "Seconds to wait for an answer; then it is a no.", gt=0, console=True)
    bash: ShellSettings = ShellSettings()
    file_read: FileSettings = FileSettings()
    file_write: FileSettings = FileSettings()


class ConsoleSettings(Section):
    """The framework's console: `dial-agent chat`."""

    name: str = setting("Framework Core Application", "The name in the welcome line.", console=True)
    version: str = setting("", "The version beside the name.", console=True)
    state_file: Folder | None = setting(None, "File that keeps the conversation; empty: none.", console=True)
    color_enabled: bool = setting(True, "Show colours.", console=True)
    debug_mode: bool = setting(False, "Show the requests to the model and to the tools.", console=True)
    show_timestamps: bool = setting(False, "Show when each message was written.", console=True)
    prompt_symbol: str = setting("> ", "What stands before the user's input.", console=True)
    assistant_prefix: str = setting("Assistant: ", "What stands before answers.", console=True)
    system_prefix: str = setting("System: ", "What stands before messages of the application.", console=True)
    error_prefix: str = setting("Error: ", "What stands before errors.", console=True)
    tool_prefix: str = setting("Tool: ", "What stands before tools' results.", console=True)
