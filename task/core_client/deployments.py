"""The path of the calls of deployments that are made inside each other, which ends loops."""

from dataclasses import replace
from urllib.parse import quote, unquote

from task.core_client.models import Caller
from task.errors import ToolError

CALL_PATH = "x-dial-agent-call-path"  # as servers read names of headers
DEEPEST = 5  # calls inside each other


def calling(caller: Caller, name: str) -> Caller:
    """The caller as the deployment `name` shall see it: with the path of the calls that led there.

    Raises:
        ToolError: the deployment is on that path already, or the path is too long.
    """
    parts = (*caller.headers.get(CALL_PATH, "").split(","), caller.application)
    path = [*dict.fromkeys(unquote(part) for part in parts if part)]
    if name in path:
        raise ToolError(f"{name} is not called: it is answering this request already, and would call itself for ever.")
    if len(path) >= DEEPEST:
        raise ToolError(f"{name} is not called: {DEEPEST} deployments are calling each other already. Answer without.")
    longer = ",".join(quote(part, safe="") for part in (*path, name))
    return replace(caller, headers={**caller.headers, CALL_PATH: longer})
