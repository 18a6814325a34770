"""Git's own files in a workspace: its repository's folders and references, and what git would read or run."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from task.errors import ToolError
from task.utils.folders import delete

# What git would run or read settings from, absent ones too: in `.git`, and in the like of submodules and work trees.
# A rebase that waits there may name commands; `shallow` cuts the history, so that git forgets what lies behind.
INTERNALS = ("hooks", "config", "config.worktree", "commondir", "info", "rebase-merge", "rebase-apply", "shallow")
_FILES = frozenset({".git", ".gitattributes", ".gitmodules"})
_PARTS_OF_A_REPOSITORY = frozenset({"head", "objects", "refs"})
# Other systems' file names in which git sees its own: HFS+ ignores these characters, NTFS dots and spaces at the end.
_IGNORABLE = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]|(?<![ .])[ .]+$|::?\\$.*$")
SECONDS = 600.0
MOST_BYTES = 64 << 20  # of packed references
_NEUTRAL = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C.UTF-8"}
# Nothing is started, and nothing believed that a command could have written beside the objects.
_OPTIONS = """-c safe.directory=* -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.commitGraph=false
-c core.multiPackIndex=false""".split()  # noqa: SIM905
# Settings with names of people, branches and addresses; every other one may lead git to a file.
_HARMLESS = re.compile(
    r"(user|branch|url|color|advice)\..*|core\.excludesfile|(remote|submodule)\..*\.(url|fetch|push|branch)"
)
_BETWEEN_WORDS = re.compile(r"[\s'\"`=;|&<>(){}!$,]+")
_OF_PATHS = ("path", "dir", "file")
_WHERE = ("--git-dir", "--git-common-dir", "--show-toplevel")
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HEAD = re.compile(r"ref: refs/(?!.*\.\.)\S+")
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

References = dict[str, tuple[int, bytes]]  # files with their mode and content


def git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Git's answer in a folder, with the user's settings, but starting nothing that they name. It blocks.

    Code 127: there is no git outside the workspace `root`, or no answer in time.
    """
    places = filter(os.path.isabs, os.environ.get("PATH", os.defpath).split(os.pathsep))
    outside = os.pathsep.join(place for place in places if not Path(place).resolve().is_relative_to(root))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _NEUTRAL
    command = [shutil.which("git", path=outside) or "/nowhere/git", *_OPTIONS, *words]
    try:
        return subprocess.run(command, input=b"", cwd=root, env=environment, capture_output=True, timeout=SECONDS)  # noqa: PLW1510, S603
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(command, 127, b"", b"git did not answer")


def git_folders(root: Path) -> list[Path]:
    """The folders in the workspace where git keeps its repository, its submodules and its work trees."""
    # Its own folder counts also where git takes it for none: a command could have removed the rest.
    named = [root / ".git", *_asked(root, *_stamps(root))[0]]
    found = [place for place in dict.fromkeys(named) if os.path.realpath(place) == str(place) and place.is_dir()]
    # Of submodules, whose folder is as deep in `modules` as its name has parts, and of work trees.
    for top in [folder / name for folder in found for name in ("modules", "worktrees")]:
        for place, names, files in () if top.is_symlink() else os.walk(top):
            # By what is protected, for the same reason.
            if not {"config", "commondir"}.isdisjoint((*names, *files)):
                found.append(Path(place))
                names[:] = {"modules", "worktrees"}.intersection(names)
    return list(dict.fromkeys(found))


def protected_paths(root: Path) -> list[str]:
    """The paths of the workspace by which git, started by the user later, would run programs; absent ones too."""
    folders = git_folders(root)
    # Where there is none, a command must not make one that lies in wait for the user's git.
    own = [] if root / ".git" in folders else [str(root / ".git")]
    inside = [str(folder / name) for folder in folders for name in INTERNALS]
    return sorted({*own, *inside, *_led_to(root, folders)})


def check_git(root: Path, parts: Sequence[str]) -> None:
    """Check that writing this path (its parts below `root`) cannot make git run a program.

    Raises:
        ToolError: it belongs to git, its settings lead there, or its folder is or would become a repository's own.
    """
    for part in parts:
        plain = _IGNORABLE.sub("", part).casefold()
        if plain in _FILES or plain == "git~1":
            raise ToolError(f"{part} belongs to git and is not written as a file")
    folder, led = root, _led_to(root, git_folders(root))
    for part in parts:
        # Git takes every folder with these three for a repository, and runs what its config says.
        present = {part, *(name for name in (*_PARTS_OF_A_REPOSITORY, "HEAD") if os.path.lexists(folder / name))}
        if {name.casefold() for name in present} >= _PARTS_OF_A_REPOSITORY:
            raise ToolError("its folder is a git repository's own and is not written as files")
        folder = folder / part
        if str(folder) in led:
            raise ToolError(f"git's settings lead to {folder.relative_to(root)}, so it belongs to git")


def _led_to(root: Path, folders: Sequence[Path]) -> set[str]:
    found = set(_asked(root, *_stamps(root))[1])
    for folder in (*(str(folder / "hooks") for folder in folders), *found):
        with suppress(OSError):
            found |= {place for hook in os.scandir(folder) if hook.is_symlink() for place in _inside(root, hook.path)}
    return found


def _stamps(root: Path) -> Iterator[int]:
    # No command changes the settings: asking git takes longer than to see that the user has not changed them either.
    for place in (root / ".git", root / ".git" / "config", Path("~/.gitconfig").expanduser()):
        yield os.lstat(place).st_ctime_ns if os.path.lexists(place) else 0


@lru_cache(maxsize=64)
def _asked(root: Path, *_now: int) -> tuple[list[Path], frozenset[str]]:
    # Git's folders, and what its settings name in the workspace, absent files too: every word of a value may be a path.
    answer = os.fsdecode(git(root, "rev-parse", "--path-format=absolute", *_WHERE).stdout).split("\n")
    top = answer[2] if len(answer) > len(_WHERE) else str(root)
    items, found = os.fsdecode(git(root, "config", "--list", "--show-origin", "-z").stdout).split("\0"), set[str]()
    for origin, item in (pair for pair in zip(items[::2], items[1::2], strict=False) if pair[0].startswith("file:")):
        key, _, value = item.partition("\n")
        file = os.path.join(top, origin.removeprefix("file:"))
        found |= _inside(root, file)
        base, of_paths = os.path.dirname(file) if key.startswith("include") else top, key.endswith(_OF_PATHS)
        for word in () if _HARMLESS.fullmatch(key) else filter(None, _BETWEEN_WORDS.split(value)):
            for place in (os.path.join(base, os.path.expanduser(word)), os.path.join(top, word.lstrip("/"))):
                if of_paths or (("/" in word or "." in word) and not os.path.isdir(place)):
                    # The hooks that husky sets in its folder `_` start those above.
                    found |= _inside(root, place.removesuffix("/_"))
    return [Path(place) for place in answer[:2] if place.startswith(f"{root}/")], frozenset(found)


def _inside(root: Path, place: str) -> set[str]:
    return {path for path in (os.path.normpath(place), os.path.realpath(place)) if path.startswith(f"{root}/")}


def references(folder: Path) -> References:
    """What one of git's folders has as references and HEAD, by path."""
    found: References = {}
    for place, folders, names, handle in os.fwalk(folder):
        inside = place[len(str(folder)) + 1 :]
        if not inside:
            folders[:], names = {"refs"} & {*folders}, ["HEAD", "packed-refs"]
        for name in names:
            path, content = os.path.join(inside, name), b""
            with suppress(OSError):  # it is not there
                mode = os.lstat(name, dir_fd=handle).st_mode
                if stat.S_ISREG(mode):
                    with open(os.open(name, _READING, dir_fd=handle), "rb") as file:
                        content = file.read(MOST_BYTES if path == "packed-refs" else 1024)
                found[path] = mode, content
    return found


def keep_references(root: Path, folder: Path, before: References) -> str:
    """Put the references back where a command has made one disappear or move elsewhere than forward.

    Nothing of the command may be left. The sentence that names them, else nothing.
    """
    old, new = _named(before), _named(references(folder))
    lost = [name for name in sorted({*old, *new}) if not _is_forward(root, folder, name, old.get(name, ""), new)]
    if not lost:
        return ""
    for place in (folder / name for name in ("HEAD", "packed-refs", "refs")):
        delete(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
    (folder / "refs").mkdir()
    for path, (mode, content) in before.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        (folder / path).chmod(stat.S_IMODE(mode))
    return f"git: {', '.join(lost)} would have lost commits; all references are as before the command again"


def _is_forward(root: Path, folder: Path, name: str, old: str, references: Mapping[str, str]) -> bool:
    new = references.get(name, "")
    if not old or new == old:
        return new == old or not name.startswith("refs/replace/")  # git shows these in the place of what was there
    if name == "HEAD":
        if old.startswith("ref: ") and _HEAD.fullmatch(new):
            return True
        new = references.get(new.removeprefix("ref: "), new)
        old = new if old.startswith("ref: ") else old
    known = _ID.fullmatch(old) and _ID.fullmatch(new)
    return bool(known) and git(root, f"--git-dir={folder}", "merge-base", "--is-ancestor", old, new).returncode == 0


def _named(files: References) -> dict[str, str]:
    # A reference in a file of its own counts before a packed one.
    packed = (line.partition(" ") for line in os.fsdecode(files.get("packed-refs", (0, b""))[1]).splitlines())
    found = {name: value for value, _, name in packed if _ID.fullmatch(value)}
    return found | {path: os.fsdecode(text).strip() for path, (_, text) in files.items() if path != "packed-refs"}
