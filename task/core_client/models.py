"""The caller a run works for, what he has to sign in to, and a file that was read with the caller's key."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol
from urllib.parse import quote, unquote

from task.conversation.messages import Attachment, frozen_data
from task.errors import ToolError
from task.llm.base import Usage
from task.skills import Skill

CALL_PATH = "x-dial-agent-call-path"  # as servers read names of headers
DEEPEST = 5  # calls of deployments inside each other
TOOLS = "tools"  # the model name for tokens of tools that name no model


class Spend(Protocol):
    """Counts the tokens that a tool's own model used."""

    def __call__(self, usage: Usage, model: str = TOOLS, /) -> None: ...


@frozen_data
class Caller:
    """The user or program a run works for.

    `api_key` is the key or token of this one request; `headers` are forwarded to models and servers (`X-*`,
    `traceparent`); `principal` resolves the stable identity behind the key, once and only where it is needed. `files`
    are the attachments of the conversation's messages, oldest first. `application` is the id of the application in DIAL
    that the run is of, or empty. `skills` are those of the turn. A tool that uses a model of its own reports its tokens
    to `spend`: they count for the run, which has `used` so many. `said` is what the user answered to tools that asked
    for something, by the ids of the questions.
    """

    api_key: str
    principal: Callable[[], Awaitable[str]]
    conversation_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[Attachment, ...] = ()
    application: str = ""
    skills: Sequence[Skill] = ()
    said: Mapping[str, str] = field(default_factory=dict[str, str])
    spend: Spend = lambda _usage, _model=TOOLS, /: None
    used: Callable[[], int] = int


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


async def nobody() -> str:
    """The principal of a caller without an identity."""
    return ""


@dataclass(frozen=True, slots=True)
class DownloadedFile:
    """A file's content; `etag` is unquoted, None where Core gave none."""

    name: str
    content: bytes
    content_type: str | None
    etag: str | None


TOOLSET, SERVICE = "toolset/signin", "external-service/signin"
Result = Literal["success", "refused", "no channel"]
_REASONS: Mapping[Result, str] = {
    "success": "still refuses access after the user has signed in",
    "refused": "needs the user to sign in, and the user did not",
    "no channel": "needs the user to sign in, for which this client has no dialog, but DIAL Chat has",
}


@dataclass(frozen=True, slots=True)
class SignIn:
    """What a user has to sign in to: a toolset of Core by its id, or an external service by its path in Core."""

    method: str
    target: str


def no_access(result: Result, name: str) -> str:
    """Why there is no access to `name`, for the model and the user."""
    return f"{name} {_REASONS[result]}. Do not call it again in this turn; tell the user, and answer without it."


@dataclass(slots=True)
class SignIns:
    """The sign-ins that the calls of one step wait for: as soon as all calls that still run wait for one, they are
    requested together, in one dialog. `running` is how many of the calls run; call `look` when it falls."""

    running: int = 1
    results: dict[SignIn, Result | None] = field(default_factory=dict[SignIn, Result | None])
    _all_wait: asyncio.Event = field(default_factory=asyncio.Event)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def look(self) -> None:
        if self.running <= 0:
            self._all_wait.set()

    async def result(
        self, items: Sequence[SignIn], ask: Callable[[Sequence[SignIn]], Awaitable[Mapping[SignIn, Result]]]
    ) -> Result:
        """Success, or another result of one of the `items`, which this call needs."""
        self.results = {**dict.fromkeys(items), **self.results}
        self.running -= 1
        try:
            self.look()
            await self._all_wait.wait()
            async with self._asking:  # the first call asks for all, unless it is stopped
                if wanted := [item for item, result in self.results.items() if result is None]:
                    self.results |= await ask(wanted)
        finally:
            self.running += 1
        return max((self.results[item] or "refused" for item in items), key="success".__ne__)
