"""What a program has changed in a folder since it was started, prompt by prompt, so that it can be taken back."""

import asyncio
import shutil
from pathlib import Path

from task.errors import InvalidRequest, ToolError
from task.store.store import NOTE, SNAPSHOTS
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import Snapshot, SnapshotError, Snapshots
from task.tools.workspace.undo import NAMED, Leg, planned_undo, some_of, undo

NOTHING = "There is nothing to take back: no prompt since the session was opened has changed the folder."


class Changes(asyncio.Lock):
    """Held by each call that changes the folder; the first one of a prompt takes a snapshot before.

    `data_dir` is the product's. By `run_id`, the first one's, and its own `place` the store removes the snapshots of a
    process that was killed.
    """

    def __init__(self, folder: Path, place: str) -> None:
        super().__init__()
        self.folder, self.data_dir, self.run_id = folder, folder, ""
        self._place = place
        self._snapshots: Snapshots | None = None
        self._before: Snapshot | None = None
        self._legs = list[Leg]()

    async def __aenter__(self) -> None:
        await super().__aenter__()
        try:
            self._before = self._before or await asyncio.to_thread(self._taken)
        except BaseException as error:
            self.release()
            raise ToolError(str(error)) if isinstance(error, SnapshotError) else error from None

    async def end(self) -> None:
        """Keep what a prompt has made of the folder."""
        before, self._before = self._before, None
        if before is not None and self._snapshots is not None:
            try:
                self._legs.append((before, await asyncio.to_thread(self._snapshots.take, before)))
            except SnapshotError:
                self._legs.clear()  # undo would take back an earlier prompt in place of this one

    async def undo(self, *, force: bool) -> str:
        """Take back what the last prompt has changed that is not taken back; what was done, for the user.

        Raises:
            InvalidRequest: there is nothing, others have changed it since, or not all of it could be restored.
        """
        if not self._legs or self._snapshots is None:
            raise InvalidRequest(NOTHING)
        with held_alone(self.folder):
            now = await asyncio.to_thread(self._snapshots.take, self._legs[-1][1], keeps=False)
            plan = planned_undo(self._legs[-1:], now)
            try:
                await asyncio.to_thread(undo, plan, self._snapshots, force=force)
            except OSError as error:
                raise InvalidRequest(f"Not all is taken back: {error.strerror}. Correct it and undo again.") from error
        self._legs.pop()
        lost = f" Not restored: {some_of(sorted(plan.lost), NAMED)}." if plan.lost else ""
        return f"Taken back: {some_of(sorted(plan.steps), NAMED) or 'nothing was left of it'}.{lost}"

    def close(self) -> None:
        """Remove the snapshots."""
        if self._snapshots is not None:
            shutil.rmtree(self._snapshots.folder, ignore_errors=True)

    def _taken(self) -> Snapshot:
        if self._snapshots is None:
            kept = self.data_dir / SNAPSHOTS / self.run_id
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            (kept / NOTE).write_text(self._place, "utf-8")
            self._snapshots = Snapshots(self.folder, kept, without=self.data_dir)
        return self._snapshots.take(self._legs[-1][1] if self._legs else None)
