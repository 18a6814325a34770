"""Where log lines go, as text or as JSON joined to their request and trace, and a bound on repeats."""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from time import monotonic
from traceback import format_tb
from types import TracebackType

from task.errors import SettingsError
from task.telemetry.operations import REQUEST, trace_id

REPEATS = 50  # equal lines in one window that are written
WINDOW_SECONDS = 10.0
MOST_KINDS = 1000  # of lines that are counted apart
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
_REFERENCE = re.compile(r"\breference:? ([0-9a-f]{8})\b")


def is_not_about_a_leaving_caller(record: logging.LogRecord) -> bool:
    """False for asyncio's tracebacks about the SDK's CancelScope, which asks every task that a leaving caller cancelled
    for its exception."""
    cancelled = bool(record.exc_info) and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not (cancelled and "CancelScope._on_task_done" in record.getMessage())


def set_up_logging(level: str, file: Path | None = None, *, as_json: bool = False) -> None:
    """One line per record in `file`, else on standard error, from every logger; a file that is moved is created again.

    Of lines that repeat in their thousands some are written.

    Raises:
        SettingsError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            handler = WatchedFileHandler(file, encoding="utf-8")
        except OSError as error:
            fix = "Name a file that you may write to, or remove it."
            raise SettingsError(f"AGENT_LOG_FILE: {file} cannot be written: {error.strerror}. {fix}") from error
    handler.addFilter(Repeats())
    handler.setFormatter(JsonLines() if as_json else TextLines("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    for other in map(logging.getLogger, ("aidial_sdk", "uvicorn")):  # the SDK gives both handlers of their own
        other.handlers.clear()
        other.propagate = True
    logging.getLogger("asyncio").addFilter(is_not_about_a_leaving_caller)
    for noisy in ("httpx", "httpx2", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # a line for every request, and for every module loaded


class TextLines(logging.Formatter):
    """One line per record. A traceback has no text of an exception, which may quote a user."""

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - the library's name
        return _traced(ei[1]) if ei[1] is not None else ""


class JsonLines(TextLines):
    """One JSON object per record. `request_id`, `trace_id` and `reference` are there where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        message, request = record.getMessage(), REQUEST.get()
        reference = _REFERENCE.search(message)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            "request_id": request.request_id if request else None,
            "reference": reference[1] if reference else None,
            "trace_id": trace_id() or (request.trace_id if request else None),
            "exception": self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None,
        }
        return json.dumps({name: value for name, value in line.items() if value is not None}, ensure_ascii=False)


def _traced(error: BaseException, seen: frozenset[int] = frozenset()) -> str:
    seen |= {id(error)}  # an error can be its own cause's cause
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    others = [_traced(other, seen) for other in (earlier, *inner) if other is not None and id(other) not in seen]
    frames, kind = "".join(format_tb(error.__traceback__)), type(error)
    return "\n\n".join([*others, f"Traceback:\n{frames}{kind.__module__}.{kind.__qualname__}"])


class Repeats(logging.Filter):
    """Lets a kind of line pass `REPEATS` times in a window and counts the rest; the next one that passes says how many.

    A kind is a logger with a text before its values are filled in.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock, self._window = clock, 0.0
        self._counts: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, kind = self._clock(), (record.name, str(record.msg))
        if now - self._window >= WINDOW_SECONDS:
            floods = {kind: count - REPEATS for kind, count in self._counts.items() if count > REPEATS}
            self._left_out = dict([*{**self._left_out, **floods}.items()][-MOST_KINDS:])
            self._window, self._counts = now, {}
        if kind not in self._counts and len(self._counts) >= MOST_KINDS:
            kind = (record.name, "")
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if left_out := self._left_out.pop(kind, 0):
            record.msg = f"{record.getMessage()} ({left_out:,} more like this one were left out)"
            record.args = ()
        return count <= REPEATS
