"""What the calls of a session change in a folder, so that a prompt's changes can be taken back."""

import asyncio
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from task.errors import Conflict, InvalidRequest, ToolError
from task.store.store import NOTE, SNAPSHOTS
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import Snapshot, SnapshotError, Snapshots
from task.tools.workspace.undo import NAMED, Leg, some_of, take_back

CLOSING_SECONDS = 5.0
NOTHING = "There is nothing to take back: no prompt since the session was opened has changed the folder."


class Changes(asyncio.Lock):
    """Held by each call that changes the folder, which nothing else of ours changes then: with a snapshot before and
    one after, what users change between the calls is theirs.

    By `run_id`, the first one's, and its own `place` the store removes the snapshots of a process that was killed.
    """

    def __init__(self, folder: Path, data_dir: Path, place: str) -> None:
        super().__init__()
        self.run_id, self._folder, self._data_dir, self._place = "", folder, data_dir, place
        self._alone = ExitStack()
        self._snapshots: Snapshots | None = None
        self._latest: Snapshot | None = None  # what has not changed since is not read again
        self._prompts, self._calls = list[list[Leg]](), list[Leg]()

    async def __aenter__(self) -> None:
        await super().__aenter__()
        try:
            self._alone.enter_context(held_alone(self._folder))
            await asyncio.to_thread(self._take)
        except BaseException as error:
            self._alone.close()
            self.release()
            raise ToolError(str(error)) if isinstance(error, Conflict | SnapshotError) else error from None

    async def __aexit__(self, *_: object) -> None:
        try:
            before, after = self._latest, await asyncio.to_thread(self._take)
            self._calls += [(before, after)] if before is not None else []
        except BaseException as error:
            self._prompts, self._calls = [], []  # undo would take back a part
            if not isinstance(error, SnapshotError):
                raise
        finally:
            self._alone.close()
            self.release()

    def end_prompt(self) -> None:
        """What follows belongs to the next prompt."""
        self._prompts += [self._calls] if self._calls else []
        self._calls = []

    async def undo(self, *, force: bool) -> str:
        """Take back what the last prompt has changed that is not taken back; what was done, for the user.

        Raises:
            InvalidRequest: there is nothing, or not all of it could be restored.
            Conflict: others have changed it since, or work in the folder.
        """
        await self.acquire()  # a call that was stopped may still be writing
        try:
            self.end_prompt()
            if not self._prompts or self._snapshots is None:
                raise InvalidRequest(NOTHING)
            with held_alone(self._folder):
                plan = await asyncio.to_thread(take_back, self._prompts[-1], self._snapshots, force=force)
        finally:
            self.release()
        self._prompts.pop()
        lost = f" Not restored: {some_of(sorted(plan.lost), NAMED)}." if plan.lost else ""
        return f"Taken back: {some_of(sorted(plan.steps), NAMED) or 'nothing was left of it'}.{lost}"

    async def close(self) -> None:
        """Remove the snapshots; a call that was stopped may be taking its last one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.acquire(), CLOSING_SECONDS)
        if self._snapshots is not None:
            await asyncio.to_thread(shutil.rmtree, self._snapshots.folder, ignore_errors=True)

    def _take(self) -> Snapshot:
        if self._snapshots is None:
            kept = self._data_dir / SNAPSHOTS / self.run_id
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            (kept / NOTE).write_text(self._place, "utf-8")
            self._snapshots = Snapshots(self._folder, kept, without=self._data_dir)
        self._latest = self._snapshots.take(self._latest)
        return self._latest
