"""Every error the product raises on purpose.

AgentError
├── SettingsError          a setting is missing, unknown or malformed; stops the start with one line
├── InvalidRequest         the caller's mistake, found before or while a run starts
│   ├── NotFound           there is no such thing, or it is somebody else's
│   └── Conflict           somebody else has changed it meanwhile, or it is over
├── ToolError              a tool could not do what the model asked; becomes a tool message
│   └── ArgumentsError     the call's arguments are not what the tool's schema asks for
├── StoreUnavailable       the database is locked, full or gone; trying again later may help
└── ProviderError          a model backend refused, failed or broke off
"""

from __future__ import annotations

from uuid import uuid4


class AgentError(Exception):
    """Base of every error raised on purpose; its text may be shown to a person."""


class SettingsError(AgentError):
    """A setting that stops the start; the text names the setting and the mend."""


class InvalidRequest(AgentError):
    """A request that cannot be answered as it is; the text says what to change."""


class NotFound(InvalidRequest):
    """A thing that does not exist for this caller; the text names it and never tells whether others have it."""


class Conflict(InvalidRequest):
    """A change that no longer fits what is stored; the text says how to go on."""


class StoreUnavailable(AgentError):
    """The store of sessions and traces cannot be used now; the text says what to mend."""


class ToolError(AgentError):
    """A tool's refusal; the text tells the model what to do next."""


class ArgumentsError(ToolError):
    """Arguments that do not fit the tool's schema; the text names the fault and the schema."""


class ProviderError(AgentError):
    """A model backend's failure.

    `status_code` is the HTTP status (None when the connection itself failed), `code` the provider's own
    code where it gave one, `text` the provider's words for the log, `retry_after` seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        code: str | None = None,
        text: str = "",
        display_message: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.text = text
        self.display_message = display_message
        self.retry_after = retry_after


class FrameworkError(AgentError):
    """Base of the framework's errors. Source: framework reference, Exceptions."""


class ConfigError(FrameworkError, SettingsError):
    """Configuration that cannot be loaded or is not valid; one line with the key and the mend."""


class ComponentInitError(FrameworkError):
    """A component that cannot be started, or was not."""


class DCMInitError(ComponentInitError):
    """A context definition that cannot be read."""


class LIALInitError(ComponentInitError):
    """A model that the configuration names and that cannot be used."""


class LIALError(FrameworkError):
    """A model that did not answer."""


class TEPSInitError(ComponentInitError):
    """Tools that the configuration names and that cannot be used."""


class ToolExecutionError(FrameworkError):
    """A tool that did not run, with the reason."""


def new_reference() -> str:
    """Eight hex characters that tie what a person was told to a line in the log."""
    return uuid4().hex[:8]
