"""The settings that the framework's own configuration file knows: model, context, history, permissions, console."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _heading_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError("its first group must be the section's title")
    return text


def _names(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return [item.strip() for item in value.split(",") if item.strip()]


def _messages(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]
Messages = Annotated[list[dict[str, Any]], BeforeValidator(_messages)]
FilePath = Annotated[Path, AfterValidator(Path.expanduser)]


class ModelSettings(BaseModel):
    """How the model is asked, unless a request says otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(default=None, ge=1, description="Tokens an answer may have; empty: the model's own.")
    top_p: float | None = Field(default=None, ge=0, le=1, description="Nucleus sampling; empty: the model's own.")
    top_k: int | None = Field(
        default=None, ge=1, description="Sampling among so many tokens; sent where the provider takes it."
    )
    attempts: int = Field(default=3, ge=1, le=20, description="Tries of a request that fails before it is answered.")
    retry_seconds: float = Field(default=0.5, gt=0, le=60, description="Pause before the second try; then it doubles.")


class ContextSettings(BaseModel):
    """The context definition: first words, documents and personas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    definition_path: FilePath | None = Field(
        default=None, description="A FRAMEWORK_CONTEXT.md; see [Context](context.md). Empty: none."
    )
    persona: str = Field(default="", description="Id of the persona that speaks from the start.")
    max_document_bytes: int = Field(default=2**20, ge=1, description="Largest definition or document.")
    max_prompt_bytes: int = Field(
        default=100_000,
        ge=0,
        description="How much the context may add to the system prompt; what exceeds is left out.",
    )
    cached_documents: int = Field(default=100, ge=0, description="Documents kept in memory; 0: none.")
    allow_absolute_paths: bool = Field(default=False, description="Let a definition name documents by absolute paths.")
    allow_parent_traversal: bool = Field(
        default=False, description="Let a definition name documents outside its folder (`../`)."
    )
    section_pattern: Annotated[str, AfterValidator(_heading_pattern)] = Field(
        default=r"^##\s+(.+?)\s*#*\s*$", description="A section's heading; its first group is the title."
    )


class HistorySettings(BaseModel):
    """How long conversations may get."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(
        default=None,
        ge=100,
        description="Tokens of a model request; empty: what DIAL Core lists for it. See [History](history.md).",
    )
    max_length: int = Field(default=100, ge=1, description="Messages that `MessageManager` keeps.")
    pruning_strategy: Literal["remove_oldest", "summarize"] = Field(
        default="remove_oldest", description="What `MessageManager` does with older messages."
    )
    prioritize_system_messages: bool = Field(
        default=True, description="Keep system messages when older messages go (`MessageManager`)."
    )
    summary_tokens: int = Field(default=800, ge=50, description="Tokens of a summary (`summarize`).")
    default_initial_messages: Messages = Field(
        default_factory=list[dict[str, Any]],
        description="Messages that `MessageManager` starts with: a list of `role` and `content`.",
    )


class ShellSettings(BaseModel):
    """The framework's tool `bash`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_commands: Names | None = Field(default=None, description="Commands that may run; empty: all not blocked.")
    blocked_commands: Names = Field(default_factory=list[str], description="Commands that never run.")
    working_directory: FilePath | None = Field(
        default=None, description="Where commands run; empty: the working directory."
    )


class FileReadSettings(BaseModel):
    """The framework's tool `file_read`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_extensions: Names | None = Field(default=None, description="Endings of files to read; empty: all.")
    max_file_size: int = Field(default=10 * 2**20, ge=1, description="Largest file to read, in bytes.")


class FileWriteSettings(BaseModel):
    """The framework's tool `file_write`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_extensions: Names | None = Field(default=None, description="Endings of files to write; empty: all.")
    max_file_size: int = Field(default=10 * 2**20, ge=1, description="Largest file to write, in bytes.")


class TepsSettings(BaseModel):
    """The framework's Tool Execution & Permission Service; the other front doors go by `permissions`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    permission_required: bool = Field(default=True, description="Ask before a call that the rules do not allow.")
    allowed_tools: Names | None = Field(default=None, description="Tools that may be called; empty: all.")
    secure_mode: bool = Field(default=True, description="Confine tools to the working directory.")
    remember_confirmations: bool = Field(default=True, description="Let a confirmation be given for the session.")
    confirmation_seconds: float = Field(default=60, gt=0, description="Patience with an answer; then it is a no.")
    bash: ShellSettings = ShellSettings()
    file_read: FileReadSettings = FileReadSettings()
    file_write: FileWriteSettings = FileWriteSettings()


class ConsoleSettings(BaseModel):
    """How the framework's console looks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="Framework Core Application", description="The name in the welcome line.")
    version: str = Field(default="", description="The version beside the name.")
    log_file: FilePath | None = Field(default=None, description="File for the log; empty: standard error.")
    state_file: FilePath | None = Field(default=None, description="File that keeps the conversation; empty: none.")
    color_enabled: bool = Field(default=True, description="Show colours.")
    debug_mode: bool = Field(default=False, description="Show what the model and the tools are told.")
    show_timestamps: bool = Field(default=False, description="Show when each message was written.")
    prompt_symbol: str = Field(default="> ", description="What stands before the user's input.")
    assistant_prefix: str = Field(default="Assistant: ", description="What stands before answers.")
    system_prefix: str = Field(default="System: ", description="What stands before messages of the application.")
    error_prefix: str = Field(default="Error: ", description="What stands before errors.")
    tool_prefix: str = Field(default="Tool: ", description="What stands before tools' results.")
