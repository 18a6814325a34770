"""The ways in which an MCP server can fail, and a sentence for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from enum import StrEnum

from task.errors import ToolError


class Fault(StrEnum):
    UNAVAILABLE = "unavailable"
    LOST = "lost"
    SESSION_GONE = "session_gone"  # the server refused before it did anything
    TIMEOUT = "timeout"
    CREDENTIAL = "credential"
    ADDRESS = "address"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    BROKEN = "broken"


class MCPFailure(ToolError):
    """An MCP server did not answer a call."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault

    @property
    def summary(self) -> str:
        """What happened, without the advice to the model."""
        return str(self).partition(". ")[0].rstrip(".")


_ADVICE = "Tell the user, and answer without it or suggest another way."
_WORDS = {
    Fault.UNAVAILABLE: f"The server {{server}} cannot be reached. {_ADVICE}",
    Fault.LOST: f"The connection to the server {{server}} broke off; the call may or may not have been done. {_ADVICE}",
    Fault.SESSION_GONE: "The server {server} was restarted and forgot this session. Call again.",
    Fault.TIMEOUT: "The server {server} did not answer within {seconds:g} s. Try a smaller request, or tell the user.",
    Fault.CREDENTIAL: "The server {server} refused the credentials (status {status}). An operator has to look at its "
    "token; do not call it again, and tell the user.",
    Fault.ADDRESS: "The server {server} does not accept this address (status {status}). An operator has to check its "
    "URL and its allowed hosts; do not call it again, and tell the user.",
    Fault.TOO_LARGE: "The server {server} refused the request as too large (status 413). Send less at once.",
    Fault.BROKEN: f"The server {{server}} answered in a way that cannot be understood{{status_words}}. {_ADVICE}",
}
_BY_STATUS = {
    401: Fault.CREDENTIAL, 403: Fault.CREDENTIAL, 421: Fault.ADDRESS, 404: Fault.ADDRESS, 405: Fault.ADDRESS,
    413: Fault.TOO_LARGE, 408: Fault.TIMEOUT, 502: Fault.UNAVAILABLE, 503: Fault.UNAVAILABLE, 504: Fault.UNAVAILABLE,
}  # fmt: skip
_SESSION_GONE = (-32600, 32600)  # servers of the 1.x SDK send the second
_BY_CODE = {-32000: Fault.LOST, -32001: Fault.TIMEOUT, -32601: Fault.REFUSED, -32602: Fault.REFUSED}
# Of a group of errors, the first in this order counts.
_ORDER = (
    Fault.CREDENTIAL, Fault.ADDRESS, Fault.TOO_LARGE, Fault.UNAVAILABLE, Fault.TIMEOUT, Fault.SESSION_GONE,
    Fault.REFUSED, Fault.LOST, Fault.BROKEN,
)  # fmt: skip


def failure_of(
    error: BaseException, server: str, seconds: float, statuses: Sequence[int], *, session: bool
) -> MCPFailure | None:
    """`error` as a failure of the server, or None if the user stopped the call or the process ends.

    `statuses` are the HTTP errors during the call, which the SDK hides; `session`: the call used the older protocol.
    """
    leaves = list(_leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt | SystemExit) for leaf in leaves) or asked_to_stop():
        return None
    status = statuses[-1] if statuses else None
    faults = {_fault(leaf, status, session) for leaf in leaves}
    fault = next(known for known in _ORDER if known in faults)
    if fault is Fault.REFUSED:
        return MCPFailure(fault, _refusal(leaves, server))
    words = f" (status {status})" if status else ""
    return MCPFailure(fault, _WORDS[fault].format(server=server, seconds=seconds, status=status, status_words=words))


def asked_to_stop() -> bool:
    """Whether this task was cancelled from outside; a broken transport of the SDK raises `CancelledError` by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _fault(leaf: BaseException, status: int | None, session: bool) -> Fault:
    import httpx2
    from mcp.shared.exceptions import MCPError

    match leaf:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return Fault.UNAVAILABLE
        case TimeoutError() | httpx2.TimeoutException():
            return Fault.TIMEOUT
        case asyncio.CancelledError() | httpx2.TransportError() | ConnectionError():
            return Fault.LOST
        case MCPError():
            return _of_code(leaf.code, status, session)
        case _:
            return Fault.BROKEN


def _of_code(code: int, status: int | None, session: bool) -> Fault:
    if session and (status == 404 or code in _SESSION_GONE):
        return Fault.SESSION_GONE
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return _BY_CODE.get(code, Fault.BROKEN)


def _refusal(leaves: Sequence[BaseException], server: str) -> str:
    from mcp.shared.exceptions import MCPError

    message = next(leaf.message for leaf in leaves if isinstance(leaf, MCPError))
    return f"The server {server} refused the call: {message[:1000]}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
