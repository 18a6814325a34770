"""The folders of one kernel, and the files in them that code could turn against the server."""

import os
from dataclasses import dataclass
from pathlib import Path

from mcp_servers.sandbox import clear_uid
from mcp_servers.sandbox.leftovers import empty


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Where one kernel lives.

    `work` is its working directory, `home` holds its caches and temporary files, `run` its sockets. `shown` holds
    pictures taken from its output, out of its reach. `root` contains them and belongs to the server, so that code can
    neither rename nor replace them; it is short, because a socket's path may have about 100 bytes. `uid` owns the first
    three; None: the server's own.
    """

    root: Path
    uid: int | None

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def shown(self) -> Path:
        return self.root / "shown"

    def make(self) -> None:
        """Create what is missing."""
        if not self.shown.is_dir():
            self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
            self.root.chmod(0o711)
            self.shown.mkdir(mode=0o700)
        for folder in (self.work, self.home, self.run):
            if folder.is_symlink() or not folder.is_dir():
                folder.unlink(missing_ok=True)
                folder.mkdir(mode=0o700)
                self.give(folder)

    def give(self, target: Path | int) -> None:
        """Make the kernel the owner of a path or an open file."""
        if self.uid is not None:
            os.chown(target, self.uid, self.uid)

    def remove(self) -> None:
        """Delete everything, and what the uid has left elsewhere; only when no process of the kernel is left.

        Raises:
            SandboxError, OSError: something could not be deleted, so that the uid must not be lent again.
        """
        if self.uid is not None:
            clear_uid(self.uid, [str(folder) for folder in (self.work, self.home, self.run)])
        if self.root.exists():
            empty(str(self.root))
            self.root.rmdir()
