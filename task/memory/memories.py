"""Memories: consent and facts, kept in a file of the user's own bucket of DIAL Core, or in the store."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import orjson

from task.conversation.inputs import new_code
from task.conversation.state import StateSeal
from task.core_client.files import DialFiles
from task.core_client.models import CALL_PATH, Caller
from task.core_client.user_files import MEMORY, UserFiles
from task.errors import Conflict, InvalidRequest, NotFound, ToolError
from task.permissions.icerc import visible
from task.store.access import StoreAccess
from task.store.records import iso

if TYPE_CHECKING:
    from task.store.keys import SealedTexts

MOST_FACTS, FACT_CHARS = 1_000, 300
MOST_BYTES = 4 * 2**20  # of a file; the most facts of the longest kind take less
ATTEMPTS = 8  # of a change, when others write at the same time
OFF = "The memory is off: the user has not switched it on, or has taken that back. Only users can do it: `/memory on`."
_REFUSED = (
    "The memory is not used: it was changed outside the agent, belongs to someone else, or comes from before the agent "
    "was set up again. `/memory delete all` removes it."
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact on one line. `date` is ISO 8601 in UTC, `source` the door and the conversation that it comes from;
    `scope` is the application in DIAL in which alone it is given, or empty."""

    id: str
    text: str
    date: str
    source: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts, the oldest first. `consented` says since when the user consents (ISO 8601 in UTC), empty: not now.

    Raises:
        InvalidRequest: by every change that cannot be made.
    """

    consented: str = ""
    facts: tuple[Fact, ...] = ()

    def with_consent(self, given: bool, now: float) -> Memory:
        """The memory after the user has consented, or has withdrawn that: the facts stay."""
        return self if given is bool(self.consented) else replace(self, consented=iso(now) if given else "")

    def with_fact(self, text: str, now: float, source: str = "", scope: str = "") -> Memory:
        """The memory with one more fact, in place of one that says the same."""
        if not self.consented:
            raise InvalidRequest(OFF)
        line = _line(text)
        others = tuple(fact for fact in self.facts if (fact.text, fact.scope) != (line, scope))
        if len(others) >= MOST_FACTS:
            raise InvalidRequest(f"There are {MOST_FACTS:,} facts, which is the most. Forget one first.")
        made = Fact(new_code({fact.id for fact in others}), line, iso(now), source, scope)
        return replace(self, facts=(*others, made))

    def edited(self, fact_id: str, text: str | None, now: float = 0) -> Memory:
        """The memory with another text of the fact with this id, or without that fact."""
        old = next((fact for fact in self.facts if fact.id == fact_id.lower()), None)
        if old is None:
            raise NotFound(f"There is no fact {visible(fact_id[:20])!r}.")
        rest = tuple(fact for fact in self.facts if fact is not old)
        return replace(self, facts=rest if text is None else (*rest, replace(old, text=_line(text), date=iso(now))))


def _line(text: str) -> str:
    line = visible(" ".join(text.split()))
    if not 0 < len(line) <= FACT_CHARS:
        raise InvalidRequest(f"A fact is one sentence of at most {FACT_CHARS} characters.")
    return line


@dataclass(slots=True)
class BucketFile:
    """A folder for texts in the user's bucket, used as the store's `SealedTexts`; it has one owner, whatever is given.

    It is the application's folder there, where the key has one.
    """

    user: UserFiles
    _version: str | None = None  # of what was read last

    async def get(self, _: str, name: str) -> str | None:
        with _unless(404):
            file = await self.user.files.download(self._url(name), self.user.key, MOST_BYTES)
            self._version = file.etag
            return file.content.decode(errors="replace")
        return None

    async def put(self, _: str, name: str, data: str, before: str | None) -> bool:
        with _unless(412):
            version = self._version if before is not None else None
            await self.user.write(self._url(name), data.encode(), "application/json", version)
            return True
        return False

    async def delete(self, _: str, name: str) -> None:
        with _unless(404):
            await self.user.delete(self._url(name), None)

    def _url(self, name: str) -> str:
        return f"{self.user.home}{name}/{name.strip('.')}.json"


@contextmanager
def _unless(status: int) -> Generator[None]:
    try:
        yield
    except ToolError as error:
        if getattr(error.__cause__, "status", None) != status:
            raise


@dataclass(frozen=True, slots=True)
class UserMemory:
    """The memory of one user; `application` is the one in DIAL that the caller uses, or empty.

    Raises:
        InvalidRequest: by `load` and `change`, where it was changed outside the agent.
        AgentError: the place cannot be reached.
    """

    place: BucketFile | SealedTexts
    owner: str
    seal: StateSeal
    now: Callable[[], float]
    application: str = ""
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)  # one after the other within a turn

    async def load(self) -> Memory:
        """The memory now."""
        return (await self._read())[0]

    async def change(self, edit: Callable[[Memory], Memory]) -> Memory:
        """Change the memory that there is now; the new one."""
        async with self._changing:
            for _ in range(ATTEMPTS):
                memory, before = await self._read()
                changed = edit(memory)
                body = asdict(changed)
                content = orjson.dumps({**body, "signature": self._signature(body)}, option=orjson.OPT_INDENT_2)
                if changed is memory or await self.place.put(self.owner, MEMORY, content.decode(), before):
                    return changed
        raise Conflict("The memory is being changed elsewhere, so nothing was done. Try again in a moment.")

    async def delete(self) -> None:
        """Remove everything, the consent too."""
        await self.place.delete(self.owner, MEMORY)

    async def _read(self) -> tuple[Memory, str | None]:
        content = await self.place.get(self.owner, MEMORY)
        if content is None:
            return Memory(), None
        try:
            body = dict(orjson.loads(content))
            given = str(body.pop("signature")).encode()
            if not hmac.compare_digest(given, self._signature(body).encode()):
                raise ValueError("the signature does not fit")
            facts = tuple(Fact(**fact) for fact in body.pop("facts"))
            return Memory(**body, facts=facts), content
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequest(_REFUSED) from error

    def _signature(self, body: object) -> str:
        return self.seal.signature({"memory": body}, self.owner)


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories of all users. One turn gets facts of at most `tokens`; the tools of the MCP server `server`, if one
    is named, take the place of our own."""

    store: StoreAccess
    files: DialFiles
    seal: StateSeal
    tokens: int = 500
    server: str = ""

    async def of(self, caller: Caller, door: str) -> UserMemory:
        """The caller's memory: in the bucket, where DIAL Core knows the caller, else in the store.

        Raises:
            InvalidRequest: the caller is not a known user.
            AgentError: DIAL Core or the store cannot be reached.
        """
        principal = await caller.principal()
        owner = principal.removeprefix("http:")
        if not owner or owner.startswith("key:") or CALL_PATH in caller.headers:
            # What another agent says in the user's name is not the user's, and facts are not its business.
            raise InvalidRequest("There is no memory here: the caller is not a known user.")
        if owner.startswith("dial:") or (door == "dial" and owner == principal):
            place = BucketFile(await UserFiles.of(self.files, caller.api_key))
            owner = place.user.home  # a file of another place of the same bucket does not fit
        else:
            place = (await self.store.get()).sealed
        return UserMemory(place, owner, self.seal, self.store.now, caller.application)
