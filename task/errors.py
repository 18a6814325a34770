"""The errors that the product raises deliberately.

AgentError
├── SettingsError          a setting is missing, unknown or malformed; stops the start with one line
├── InvalidRequest         the caller's mistake, found before a run starts or while it does
│   ├── NotFound           it does not exist, or it belongs to another caller
│   ├── Conflict           it has been changed since it was read, or it has ended
│   └── TooManyRuns        the caller has as many runs in progress as one caller may have
├── ToolError              a tool could not do what the model asked; becomes a tool message
│   └── ArgumentsError     the call's arguments do not match the tool's schema
├── StoreUnavailable       the database is locked, full or unreachable; a later retry may succeed
├── ProviderError          a model backend refused, failed or was interrupted
└── FrameworkError         the errors that the framework reference documents
"""

from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from secrets import token_hex


class AgentError(Exception):
    """Base of all deliberate errors; its text may be shown to users."""


class SettingsError(AgentError):
    """A setting that prevents the start; the text names the setting and how to fix it."""


class InvalidRequest(AgentError):
    """A request that cannot be processed; the text says what to change."""


class KeyReused(InvalidRequest):
    """A request under the name (`Idempotency-Key`) of another one."""


class NotFound(InvalidRequest):
    """Something that does not exist for this caller; the text never reveals whether it exists for others."""


class Conflict(InvalidRequest):
    """A change that conflicts with what is stored; the text says how to continue."""


class TooManyRuns(InvalidRequest):
    """A run more than one caller may have in progress; a later retry may succeed."""


class StoreUnavailable(AgentError):
    """The database cannot be used now; the text says what to fix."""


class StoreVersionError(StoreUnavailable):
    """A store whose tables are not those this version works with; waiting does not help."""


class ToolError(AgentError):
    """A tool's refusal; the text names what to do next."""


class ArgumentsError(ToolError):
    """Arguments that do not match the tool's schema; the text names the fault and the schema."""


@dataclass(eq=False, repr=False)
class ProviderError(AgentError):
    """A model backend's failure.

    `status_code` is the HTTP status (None if the connection itself failed), `code` the provider's own code if it sent
    one, `text` the provider's message for the log, `retry_after` is in seconds. `server` names who was asked, for
    users; `address` is where, for the log.
    """

    message: str
    _: KW_ONLY
    status_code: int | None = None
    code: str | None = None
    text: str = ""
    display_message: str | None = None
    retry_after: float | None = None
    server: str = field(default="", init=False)
    address: str = field(default="", init=False)


class FrameworkError(AgentError):
    """Base of the documented errors, of which some are there only for programs that catch them."""


class ConfigError(FrameworkError, SettingsError):
    """Configuration that cannot be loaded or is not valid; one line with the key and how to fix it."""


class ComponentInitError(FrameworkError):
    """A component that was not initialised or cannot be."""


class DCMInitError(ComponentInitError):
    """A context definition that cannot be read."""


class LIALInitError(ComponentInitError):
    """A configured model that cannot be used."""


class LIALError(FrameworkError):
    """A model that did not answer."""


class TEPSInitError(ComponentInitError):
    """Configured tools that cannot be used."""


class ToolExecutionError(FrameworkError):
    """A tool request that cannot be a call; a tool's own failure is a result."""


new_reference = partial(token_hex, 4)  # eight hex characters that connect an error message to a line in the log


def reference_of(error: BaseException) -> str:
    """The reference of this error: the same in the log, in the trace and in all that users see of it."""
    return error.__dict__.setdefault("reference", new_reference())


def with_reference(sentence: str, reference: str) -> str:
    """The sentence for users, with the reference at its end unless it has it already."""
    return sentence if reference in sentence else f"{sentence} (error reference: {reference})"
