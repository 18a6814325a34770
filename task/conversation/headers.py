"""The request headers that travel on to models and servers."""

from __future__ import annotations

from collections.abc import Mapping

# Headers that speak of this very call, or carry what only this application may see.
_OURS = ("x-upstream-", "x-forwarded-", "x-dial-override-name", "x-dial-deployment-id", "x-dial-application-")


def forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that travel on to models and servers: the trace context, and `X-*` that are not addressed to us."""
    return {
        name: value
        for name, value in headers.items()
        if name.lower() in ("traceparent", "tracestate")
        or (name.lower().startswith("x-") and not name.lower().startswith(_OURS))
    }
