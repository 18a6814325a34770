"""ErrorHandler: every error of the console in one sentence for the user, and its details in the log."""

import logging
import traceback

from task.console.terminal.answer import masked
from task.errors import AgentError, reference_of, with_reference
from task.runs.runner import UNEXPECTED

logger = logging.getLogger(__name__)


class ErrorHandler:
    """Centralises errors. Source: framework reference, Error Handler.

    With `debug` the traceback follows the sentence, without what looks like a secret.
    """

    def __init__(self) -> None:
        self.debug = False

    def handle_error(self, error_type: str, error_message: str, exception: Exception | None = None) -> str:
        """Log the error; the sentence for the user. Without an `error_message` it is the exception's own.

        The words of an exception that was not raised deliberately stay in the log: they may hold keys and addresses.
        """
        self.log_error(error_type, error_message, exception)
        if exception is None:
            return error_message
        text = error_message or (str(exception) if isinstance(exception, AgentError) else UNEXPECTED)
        if not isinstance(exception, AgentError):
            text = with_reference(text, reference_of(exception))
        if self.debug:
            text = f"{text}\n{masked(''.join(traceback.format_exception(exception)).rstrip())}"
        return text

    def log_error(self, error_type: str, error_message: str, exception: Exception | None = None) -> None:
        reference = f" (reference {reference_of(exception)})" if exception is not None else ""
        logger.error("%s%s: %s", error_type, reference, error_message or exception, exc_info=exception)
