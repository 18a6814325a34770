"""Remember across restarts which sessions there were, so that a lost one is called lost."""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

KEPT_SECONDS = 7 * 24 * 3600
RESTARTED = "the interpreter server was restarted"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is left of a session: how many kernels it has had, why the last one is gone, and its ids, newest first."""

    generation: int
    lost: str = RESTARTED
    ids: tuple[str, ...] = ()


class Memory:
    """One small file per session handle."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, handle: str) -> Remembered | None:
        try:
            found = Remembered(**json.loads((self._folder / handle).read_text(encoding="utf-8")))
            return replace(found, ids=tuple(found.ids))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            return Remembered(0)

    def keep(self, handle: str, remembered: Remembered) -> None:
        unfinished = self._folder / f".{handle}"
        unfinished.write_text(json.dumps(asdict(remembered)), encoding="utf-8")
        os.replace(unfinished, self._folder / handle)

    def forget(self, handle: str) -> None:
        (self._folder / handle).unlink(missing_ok=True)

    def forget_old(self) -> None:
        """Drop entries that were not used for a week."""
        oldest = time.time() - KEPT_SECONDS
        for entry in self._folder.iterdir():
            if entry.stat().st_mtime < oldest:
                entry.unlink(missing_ok=True)
