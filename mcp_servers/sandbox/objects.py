"""Keep the objects of a git repository in a writable folder: a run adds some, and takes none of before away."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import zlib
from contextlib import suppress

from mcp_servers.sandbox.policy import Policy, new_objects, shown_objects
from mcp_servers.sandbox.protected import remove

GIT, GIT_SECONDS = ("/usr/bin/git", "/usr/local/bin/git", "/bin/git"), 600  # never by the caller's PATH
PIECE = 1 << 16  # a thousand times as much, unpacked
SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_NO_LAZY_FETCH": "1"}


class Objects:
    """One folder `objects` in one run; `begin` before it, and `end` when nothing of it is left.

    Bubblewrap shows the run a new folder in its place, which borrows from where those of before cannot be written.
    Elsewhere the policy's folder `kept` gets these before the run. A run behind Landlock cannot write to a file whose
    mode allows nobody to, so there a link is enough; without a sandbox all files are copied, and looked at afterwards.
    """

    def __init__(self, policy: Policy, path: str) -> None:
        self.path = path
        self.new = new_objects(policy, path) if policy.tier == "bubblewrap" else None
        self.kept = f"{policy.kept}{path}"
        self.watched: dict[str, list[int]] = {}
        self.writable = 0o222 if policy.tier == "landlock" else 0o777
        self.git = next((place for place in GIT if os.access(place, os.X_OK)), None)

    def begin(self) -> None:
        """Prepare what the run sees, or remember what shows that it has changed something."""
        if self.new is not None:
            os.makedirs(f"{self.new}/info")
            with open(f"{self.new}/info/alternates", "w") as file:
                file.write(f"{shown_objects(self.path)}\n")
            return
        saved: dict[str, list[int]] = {}
        with suppress(OSError), open(f"{self.kept}.json") as file:
            saved = json.load(file)
        if not saved or any(_stamp(place) != stamp for place, stamp in saved.items()):
            self._copy(self.path, self.kept)
            saved = {}
            # A file that cannot be written to changes only together with its folder.
            for folder, _, names in os.walk(self.path):
                files = {f"{folder}/{name}": _stamp(f"{folder}/{name}") for name in names}
                saved |= {folder: _stamp(folder)}
                saved |= {file: stamp for file, stamp in files.items() if stamp[0] & self.writable}
            with open(f"{self.kept}.new", "w") as file:
                json.dump(saved, file)
            os.rename(f"{self.kept}.new", f"{self.kept}.json")  # last: a launcher that is killed has kept nothing
        self.watched = saved

    def end(self) -> None:
        """Take over the new objects; where those of before may have changed, they are put back first.

        Raises:
            OSError: that is not possible.
        """
        left = self.new
        if any(_stamp(place) != stamp for place, stamp in self.watched.items()):
            left, fresh = f"{self.path}.run", f"{self.path}.before"
            for place in (left, fresh):
                remove(place)  # of a launcher that was killed
            self._copy(self.kept, fresh)
            if os.path.lexists(self.path):
                os.rename(self.path, left)
            os.rename(fresh, self.path)
        if left is not None:
            for folder, _, names in () if os.path.islink(left) else os.walk(left):
                for name in names:
                    self._take_over(os.path.join(folder, name), os.path.join(folder, name).removeprefix(f"{left}/"))
            remove(left)

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
                shutil.copy2(file, place)

        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)

    def _take_over(self, path: str, name: str) -> None:
        place = os.path.join(self.path, name)
        if os.path.lexists(place) or not stat.S_ISREG(os.lstat(path).st_mode):
            return
        if name.endswith(".pack") and self.git is not None:
            # Its own index could show another content in an object's place; git computes all names anew.
            folder = f"--git-dir={os.path.dirname(self.path)}"
            with open(path, "rb") as pack, suppress(subprocess.SubprocessError):
                command = [self.git, "-c", "safe.directory=*", folder, "index-pack", "--stdin"]
                subprocess.run(command, stdin=pack, capture_output=True, env=SETTINGS, timeout=GIT_SECONDS)  # noqa: PLW1510, S603
        elif _is_object(path, name):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.chmod(path, 0o444)
            os.rename(path, place)


def _is_object(path: str, name: str) -> bool:
    digest, data = hashlib.new("sha1" if len(name) == 41 else "sha256"), zlib.decompressobj()
    with suppress(zlib.error), open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(data.decompress(piece))
    return name == f"{digest.hexdigest()[:2]}/{digest.hexdigest()[2:]}"


def _stamp(path: str) -> list[int]:
    with suppress(OSError):
        state = os.lstat(path)
        return [state.st_mode, state.st_ino, state.st_size, state.st_ctime_ns]
    return []
