"""Keep the objects of a git repository in a writable folder: a run adds some, and takes none of before away."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import zlib
from contextlib import suppress

from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.policy import MIB, Policy, new_objects, shown_objects
from mcp_servers.sandbox.protected import remove

GIT, GIT_SECONDS = ("/usr/bin/git", "/usr/local/bin/git", "/bin/git"), 600  # never by the caller's PATH
MOST_BYTES = 2048 * MIB
TOO_LARGE = (
    "objects: {} is too large to be copied to {}; set TMPDIR to a folder of its file system, or install bubblewrap"
)
PIECE = 1 << 16
OPTIONS = ("-c", "safe.directory=*")
SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_LAZY_FETCH": "1"}


class Objects:
    """One folder `objects` in one run; `begin` before it, and `end` when nothing of it is left.

    Bubblewrap shows the run a new folder in its place, which borrows from where those of before cannot be written.
    Elsewhere the policy's folder `kept` gets these before the run. A run behind Landlock cannot write to a file whose
    mode allows nobody to, so there a link is enough; without a sandbox all files are copied, and looked at afterwards.
    """

    def __init__(self, policy: Policy, path: str) -> None:
        self.path = path
        self.new, self.mounted = new_objects(policy, path), policy.tier == "bubblewrap"
        self.kept = f"{policy.kept}{path}"
        self.watched: dict[str, list[int]] = {}
        self.copied, self.unpacked = 0, 0  # bytes; of each at most MOST_BYTES
        self.writable = 0o222 if policy.tier == "landlock" else 0o777
        self.git = next((place for place in GIT if os.access(place, os.X_OK)), None)

    def begin(self) -> None:
        """Prepare what the run sees, or remember what shows that it has changed something."""
        if self.mounted:
            os.makedirs(f"{self.new}/info")
            with open(f"{self.new}/info/alternates", "w") as file:
                file.write(f"{shown_objects(self.path)}\n")
            return
        with suppress(OSError), open(f"{self.kept}.json") as file:
            self.watched = json.load(file)
        self._keep(self._changed())

    def end(self) -> None:
        """Take over the new objects; where those of before may have changed, they are put back first.

        Raises:
            OSError: that is not possible.
        """
        if self.mounted:
            self._take_over(self.new, self.path)
            return
        changed = self._changed()
        for place in changed:
            left, fresh = self.new, f"{self.new}.before"
            self._copy(f"{self.kept}{place.removeprefix(self.path)}", fresh)
            if os.path.lexists(place):
                os.rename(place, left)
            os.rename(fresh, place)
            self._take_over(left, place)
        self._keep(changed)

    def _keep(self, changed: list[str]) -> None:
        if changed:
            for place in changed:
                self._copy(place, f"{self.kept}{place.removeprefix(self.path)}")
                self.watched = ({} if place == self.path else self.watched) | self._watch(place)
            self.watched[self.path] = _stamp(self.path)  # what was put back in it has changed it
            with open(f"{self.kept}.new", "w") as file:
                json.dump(self.watched, file)
            os.rename(f"{self.kept}.new", f"{self.kept}.json")  # last: a launcher that is killed has kept nothing

    def _watch(self, place: str) -> dict[str, list[int]]:
        # Folders, and files that can be written to: any other file changes only together with its folder.
        found: dict[str, list[int]] = {}
        for folder, _, names in os.walk(place):
            files = {f"{folder}/{name}": _stamp(f"{folder}/{name}") for name in names}
            found[folder] = _stamp(folder)
            found |= {file: stamp for file, stamp in files.items() if stamp[0] & self.writable}
        return found

    def _changed(self) -> list[str]:
        # The folders that are not as they were; all of it where some may have come or gone.
        changed = [place for place, stamp in self.watched.items() if _stamp(place) != stamp]
        whole = self.path in changed or not all(map(os.path.isdir, changed))
        return [self.path] if whole or not self.watched else changed

    def _copy(self, source: str, target: str) -> None:
        def copy(file: str, place: str) -> None:
            found = os.stat(file)
            with suppress(FileNotFoundError):
                old = os.stat(place)
                if (old.st_size, old.st_mtime_ns) == (found.st_size, found.st_mtime_ns):
                    return
                os.unlink(place)
            try:
                if found.st_mode & self.writable:
                    raise PermissionError
                os.link(file, place)
            except OSError:
                self.copied += found.st_size
                if self.copied > MOST_BYTES:
                    raise SandboxError(TOO_LARGE.format(self.path, self.kept)) from None
                shutil.copy2(file, place)

        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)

    def _take_over(self, left: str, folder: str) -> None:
        for above, _, names in () if os.path.islink(left) else os.walk(left):
            for path in (os.path.join(above, name) for name in names):
                place = folder + path.removeprefix(left)
                if os.path.lexists(place) or not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                if path.endswith(".pack") and self.git is not None:
                    # Its own index could show another content in an object's place; git computes all names anew.
                    command = [self.git, *OPTIONS, f"--git-dir={os.path.dirname(self.path)}", "index-pack", "--stdin"]
                    with open(path, "rb") as pack, suppress(subprocess.SubprocessError):
                        subprocess.run(command, stdin=pack, capture_output=True, env=SETTINGS, timeout=GIT_SECONDS)  # noqa: PLW1510, S603
                elif self._is_object(path, place.removeprefix(f"{self.path}/")):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    os.chmod(path, 0o444)
                    os.rename(path, place)
        remove(left)

    def _is_object(self, path: str, name: str) -> bool:
        digest, data = hashlib.new("sha1" if len(name) == 41 else "sha256"), zlib.decompressobj()
        with suppress(zlib.error), open(path, "rb") as file:
            while self.unpacked < MOST_BYTES and (piece := data.unconsumed_tail or file.read(PIECE)):
                part = data.decompress(piece, PIECE)
                self.unpacked += len(part)
                digest.update(part)
        return name == f"{digest.hexdigest()[:2]}/{digest.hexdigest()[2:]}"


def _stamp(path: str) -> list[int]:
    with suppress(OSError):
        state = os.lstat(path)
        return [state.st_mode, state.st_ino, state.st_size, state.st_ctime_ns]
    return []
