"""Keep what lies at a path inside a writable folder, and put it back when a run has changed it."""

import os
import stat
from typing import Self

from mcp_servers.sandbox import leftovers
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.policy import MIB

MOST_BYTES, MOST_ENTRIES = 16 * MIB, 5_000


Entry = tuple[int, bytes]  # a file, folder or link: its mode, and its content or target


class Protected:
    """A path and all that was below it, by relative name; nothing if it was absent or not reached by folders alone."""

    def __init__(self, folder: str, path: str, entries: dict[str, Entry]) -> None:
        self.folder = folder
        self.path = path
        self.entries = entries
        self.modes = {above: os.stat(above).st_mode for above in self._above() if _is_folder(above)}

    @classmethod
    def of(cls, folder: str, path: str) -> Self:
        """What lies at the path now; `folder` is the writable folder that contains it.

        Raises:
            SandboxError: it is too large to be kept.
        """
        entries = _entries(folder, path)
        if entries is None:
            raise SandboxError(f"protected: {path!r} is larger than {MOST_BYTES // MIB} MiB")
        return cls(folder, path, entries)

    def put_back(self) -> bool:
        """Restore the path if it is not as it was; whether it was changed. Nothing of the run may be left by then.

        Raises:
            OSError: it could not be restored.
        """
        for above in self._above():
            self._open_up(above)
        if _entries(self.folder, self.path) == self.entries:
            return False
        for parent in parents(self.folder, self.path):
            if not _is_folder(parent):
                remove(parent)
                os.mkdir(parent, 0o777)
        remove(self.path)
        for name, entry in self.entries.items():
            _make(os.path.join(self.path, name) if name else self.path, entry)
        # From the innermost: a folder may be one that cannot be written to.
        for name, (mode, _) in reversed(self.entries.items()):
            if not stat.S_ISLNK(mode):
                os.chmod(os.path.join(self.path, name) if name else self.path, stat.S_IMODE(mode))
        return True

    def _above(self) -> list[str]:
        return [self.folder, *parents(self.folder, self.path)]

    def _open_up(self, above: str) -> None:
        # The run may have taken away the right to see or change what is in it.
        had = self.modes.get(above, stat.S_IRWXU) & stat.S_IRWXU
        if _is_folder(above) and had & ~(mode := os.stat(above).st_mode):
            os.chmod(above, stat.S_IMODE(mode) | had)


def _entries(folder: str, path: str) -> dict[str, Entry] | None:
    """None: it is too large."""
    entries: dict[str, Entry] = {}
    if not all(map(_is_folder, parents(folder, path))) or not os.path.lexists(path):
        return entries
    size, waiting = 0, [""]
    while waiting:
        name = waiting.pop()
        entries[name] = mode, content = _entry(os.path.join(path, name) if name else path)
        size += len(content)
        if stat.S_ISDIR(mode):
            waiting += [os.path.join(name, inner) for inner in sorted(os.listdir(os.path.join(path, name)))]
        if size > MOST_BYTES or len(entries) + len(waiting) > MOST_ENTRIES:
            return None
    return entries


def _entry(path: str) -> Entry:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return mode, os.fsencode(os.readlink(path))
    if not stat.S_ISREG(mode):
        return mode, b""
    with open(path, "rb") as file:
        return mode, file.read(MOST_BYTES + 1)


def _make(path: str, entry: Entry) -> None:
    mode, content = entry
    if stat.S_ISDIR(mode):
        os.mkdir(path, 0o700)
    elif stat.S_ISLNK(mode):
        os.symlink(content, os.fsencode(path))
    elif stat.S_ISREG(mode):
        with open(path, "xb") as file:
            file.write(content)


def remove(path: str) -> None:
    """Delete whatever is at the path, if anything is; no link is followed."""
    if _is_folder(path):
        leftovers.empty(path)
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def parents(folder: str, path: str) -> list[str]:
    """The folders between the writable one and the path, outermost first."""
    parts = os.path.relpath(path, folder).split("/")[:-1]
    return [os.path.join(folder, *parts[: number + 1]) for number in range(len(parts))]


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
