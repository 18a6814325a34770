"""A repository in a workspace: what commands cannot take from it or leave in it, and that undo proves itself."""

import asyncio
import os
import re
import shutil
import subprocess
import zlib
from hashlib import sha1
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers.sandbox import Policy
from mcp_servers.sandbox.objects import MOST_BYTES, Objects
from mcp_servers.sandbox.policy import MIB
from task.errors import ToolError
from task.tools.workspace.commands import CommandLimits, Commands
from task.tools.workspace.launcher import Sandbox
from task.tools.workspace.root import Workspace
from task.tools.workspace.snapshots import Snapshots
from task.tools.workspace.undo import planned_undo, repository_faults, undo
from task.utils.folders import delete
from tests.support.sandbox_tiers import SAMPLED, WORKING

LIMITS = CommandLimits(seconds=60.0)
TIERS = [*SAMPLED, pytest.param("none", marks=pytest.mark.system)]
NEW = re.compile(r"\.git/objects/([0-9a-f]{2}(/[0-9a-f]{38})?|pack(/pack-[0-9a-f]{40}\.(pack|idx))?)")
WAITING = ("shallow", "rebase-merge")


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a pack, loose objects, a packed branch, a loose one, and a hook that is a link."""
    folder = tmp_path_factory.mktemp("template") / "project"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number, branch in enumerate(("main", "packed", "loose")):
        git(folder, "checkout", "-q", "-B", branch)
        (folder / "main.py").write_text(f"print({number})\n")
        (folder / f"{branch}.txt").write_text(f"{branch}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", branch)
        if branch == "packed":
            git(folder, "gc", "-q")
    (folder / ".husky").mkdir()
    (folder / "tools").mkdir()
    (folder / "tools" / "check.sh").write_text("true\n")
    (folder / ".git" / "hooks" / "pre-push").symlink_to("../../tools/check.sh")
    git(folder, "config", "core.hooksPath", ".husky/_")
    git(folder, "config", "include.path", "../.gitconfig")
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project", symlinks=True))


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder, with modes and contents."""
    found: dict[str, tuple[int, bytes]] = {}
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            content = (
                os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            )
            found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


def objects(folder: Path) -> dict[str, bytes]:
    return {path: content for path, (_, content) in tree(folder).items() if path.startswith(".git/objects") and content}


async def ran(folder: Path, tier: str, *lines: str) -> str:
    """What the lines print, each a command of its own."""
    with Workspace(folder) as workspace:
        async with Commands(workspace, LIMITS, gated=True, unsafe=True, sandbox=Sandbox(tier)) as commands:
            return "".join([(await commands.run(line)).text for line in lines])


ATTACKS = [
    "rm -rf .git/objects", "rm -rf .git; true", "mv .git g; mkdir .git",
    "rm -rf .git/refs; ln -s ../../outside .git/refs; echo x > .git/refs/heads",
    "git checkout -q --orphan new; git branch -D main packed loose; rm .git/HEAD",
    "mkdir -p .git/objects/info .git/objects/pack; echo $PWD > .git/objects/info/alternates; > .git/objects/pack/x",
    "find .git/objects -type f -exec chmod u+w {} + -exec sh -c 'for f; do echo x > $f; done' - {} +",
    "rm -rf .git/objects; ln -s ../../outside .git/objects", "rm -f .git/objects/pack/*", "mv .git/objects o",
    "git reflog expire --expire=now --all; git gc -q --prune=now", "echo ref: ../../x > .git/HEAD",
    "git update-ref -d refs/heads/packed", "git reset -q --hard HEAD~1", "git branch -D packed; git tag -f v1 main",
    "echo 0000000000000000000000000000000000000001 > .git/refs/heads/main", "echo x > .git/packed-refs",
    "rm -r .git/refs; mkfifo .git/refs", "mkdir .git/objects/ab; echo x > .git/objects/ab/$(printf %038d 7)",
    "rm .git/refs/heads/main; mkdir -p .git/refs/heads/main/x; cp .git/refs/heads/loose .git/refs/heads/main/x/y",
    "mkdir -p .git/refs/replace; git rev-parse main > .git/refs/replace/$(git rev-parse loose)",
    "git rev-parse main~0 > .git/shallow; mkdir .git/rebase-merge; echo exec evil > .git/rebase-merge/git-rebase-todo",
    # A pack whose index gives an object of before another content.
    "git init -q o; cd o; echo evil > a; git add a; n=$(echo evil | git hash-object --stdin); "
    "echo $n | git pack-objects -q p; mkdir -p ../.git/objects/pack; cp p-*.pack ../.git/objects/pack/pack-$n.pack; "
    "sed s/$(printf %s $n | xxd -r -p)/$(git -C .. rev-parse main:main.py | xxd -r -p)/ p-*.idx "
    "> ../.git/objects/pack/pack-$n.idx",
]  # fmt: skip


@pytest.mark.fault("workspace: a command that removes, alters or hides git's objects, packs or references")
@pytest.mark.parametrize("attacks", [ATTACKS[:6], pytest.param(ATTACKS[6:], marks=pytest.mark.system)])
@pytest.mark.parametrize("tier", TIERS)
async def test_no_command_takes_an_object_or_a_commit_away(
    template: Path, tmp_path: Path, tier: str, attacks: list[str]
) -> None:
    for number, attack in enumerate(attacks):
        folder, outside = tmp_path / str(number) / "project", tmp_path / str(number) / "outside"
        shutil.copytree(template, folder, symlinks=True)
        outside.mkdir()
        kept, refs = objects(folder), git(folder, "for-each-ref").splitlines()
        said = await ran(folder, tier, f"{attack}; true")
        now = objects(folder)
        assert {path: now.get(path) for path in kept} == kept, attack
        assert not [path for path in now.keys() - kept if not NEW.fullmatch(path)], attack
        assert set(refs) <= set(git(folder, "for-each-ref").splitlines()), (attack, said)
        assert git(folder, "symbolic-ref", "HEAD").startswith("refs/heads/"), attack
        assert [name for name in WAITING if (folder / ".git" / name).exists()] == [], attack
        assert "refs/replace" not in git(folder, "for-each-ref"), attack
        git(folder, "fsck", "--full", "--no-dangling", "--no-reflogs")
        assert tier == "none" or list(outside.iterdir()) == [], attack


@pytest.mark.fault("workspace: an object of a command's that unpacks to more than all files may be")
@pytest.mark.parametrize(("before", "taken"), [(0, True), (MOST_BYTES - MIB, False)])
def test_no_more_is_unpacked_of_new_objects_than_may_be_copied(tmp_path: Path, before: int, taken: bool) -> None:
    content = b"blob 8388608\0" + bytes(8 * MIB)
    name, objects = sha1(content).hexdigest(), Objects(Policy(str(tmp_path)), str(tmp_path / "objects"))
    (tmp_path / "new" / name[:2]).mkdir(parents=True)
    (tmp_path / "new" / name[:2] / name[2:]).write_bytes(zlib.compress(content))
    objects.unpacked = before
    objects._take_over(str(tmp_path / "new"), objects.path)
    assert (tmp_path / "objects" / name[:2] / name[2:]).exists() is taken
    assert objects.unpacked <= MOST_BYTES + MIB


@pytest.mark.parametrize("tier", SAMPLED)
async def test_commits_branches_and_packs_that_a_command_makes_last(folder: Path, tier: str) -> None:
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty"
    said = await ran(
        folder, tier, f"echo new > new; git add new; {commit} -m one", f"git checkout -q -b more main; {commit} -m two",
        f"{commit} -m three; git repack -q -a -d; git branch four; git pack-refs --all", "git log --format=%s four",
    )  # fmt: skip
    assert "three\ntwo\nmain\n" in said
    assert git(folder, "log", "--format=%s", "loose") == "one\nloose\npacked\nmain"
    assert git(folder, "log", "--format=%s", "four") == "three\ntwo\nmain"
    assert git(folder, "fsck", "--full", "--no-dangling") == ""
    said = await ran(folder, tier, "git update-ref -d refs/heads/main; git branch five", "git branch")
    assert "git: refs/heads/main would have lost commits; all references are as before the command again" in said
    assert "five" not in said.rpartition("as before the command again")[2]


@pytest.mark.fault("workspace: a command that changes git's folder where it is not `.git`, or that of a submodule")
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("place", ["elsewhere", ".git/modules/libs/one"])
async def test_gits_folders_elsewhere_in_the_workspace_are_kept_as_well(
    template: Path, folder: Path, place: str, tier: str
) -> None:
    own = folder / place
    if place == "elsewhere":
        git(folder, "init", "-q", "--separate-git-dir", place)
    else:
        shutil.copytree(template / ".git", own, symlinks=True)
    kept = ("HEAD", "config", "hooks", "objects", "refs")  # the rest is for undo
    before = {path: entry for path, entry in tree(own).items() if path.startswith(kept) and entry[1]}
    attack = f"cd {place}; echo evil > config; echo evil > hooks/pre-commit; rm -rf objects/*; rm -r refs HEAD; true"
    said = await ran(folder, tier, attack, f"mv {place.split('/')[-1]} g; mv .git/modules .git/m; true")
    assert {path: tree(own).get(path) for path in before} == before, said


@pytest.mark.fault("coding: a repository in which an object is missing after undo")
def test_what_git_finds_missing_is_named(folder: Path) -> None:
    assert repository_faults(folder) == {}
    tip = git(folder, "rev-parse", "loose:main.py")
    (folder / ".git/objects" / tip[:2] / tip[2:]).unlink()
    assert tip in repository_faults(folder)[".git"]


LED_TO = {
    "core.hooksPath": (".husky/_", ".husky/pre-commit"),
    "include.path": ("../.gitconfig", ".gitconfig"),
    "includeIf.onbranch:other.path": ("more.ini", ".git/more.ini"),
    "core.fsmonitor": ("./watch", "watch"),
    "core.attributesFile": ("attributes", "attributes"),
    "core.sshCommand": ("sh tools/ssh.sh -v", "tools/ssh.sh"),
    "core.pager": ("$(git rev-parse --show-toplevel)/tools/pager", "tools/pager"),
    "diff.json.textconv": ("python3 json.py", "json.py"),
    "filter.x.clean": ("python3 'tools/clean.py' %f", "tools/clean.py"),
    "gpg.program": ("tools/gpg", "tools/gpg"),
    "credential.helper": ("!./tools/helper get", "tools/helper"),
    "alias.x": ("!f() { FLAG=1 tools/x.sh; }; f", "tools/x.sh"),
    "remote.origin.uploadpack": ("./serve", "serve"),
}


@pytest.mark.fault("workspace: a file that git's settings lead to, present or not, is written, replaced or made")
@pytest.mark.parametrize("tier", TIERS)
async def test_what_gits_settings_lead_to_in_the_workspace_is_gits_own(folder: Path, tier: str) -> None:
    for key, (value, _) in LED_TO.items():
        git(folder, "config", key, value)
    git(folder, "config", "alias.harmless", "!cd tools && ls")
    git(folder, "config", "user.name", "new.py")
    paths = ["tools/check.sh", ".git/hooks/pre-push", *(path for _, path in LED_TO.values())]
    (folder / "watch").write_text("true\n")
    before = tree(folder)
    with Workspace(folder) as workspace:
        for path in paths:
            with pytest.raises(ToolError, match="git"):
                workspace.write(path, b"evil\n")
        await ran(folder, tier, *(f"mkdir -p $(dirname {path}); rm -rf {path}; echo evil > {path}" for path in paths))
        await ran(folder, tier, "mv tools t; mkdir tools; echo evil > tools/check.sh; rm -r t", "echo new > tools/new")
        now = tree(folder)
        assert [path for path in (*before, *paths) if now.get(path) != before.get(path)] == []
        for path in ("new.py", "main.py", "tools/other"):
            workspace.write(path, b"x")


PLACES = """.git .git/objects .git/objects/pack .git/objects/info/alternates .git/refs .git/refs/heads
.git/HEAD .git/logs .git/refs/heads/main .git/index .git/packed-refs .git/config .git/hooks .git/info .git/modules
main.py loose.txt sub sub/HEAD
sub/refs sub/objects sub/objects/evil tools tools/check.sh .gitconfig .husky .dial-agent-undo""".split()  # noqa: SIM905
ACTS = (
    "rm -rf {0}", "echo x > {0}", "mkdir -p {0}", "mkfifo {0}", "chmod 0 {0}", "ln -sfn ../../outside {0}",
    "> {0}/planted", "chmod -R u+w {0}; find {0} -type f -exec truncate -s 1 {{}} +", "mv {0} {1}", "cp -a {0} {1}",
    "ln {0} {1}", "ln -s $PWD/{0} {1}", "git commit -qam more", "git add -A", "git stash -q", "git gc -q --prune=now",
    "git init -q sub", "git init -q --bare sub", "git worktree add -q w main", "git checkout -q main",
    "git reset -q --hard HEAD~1", "git branch -D main", "git pack-refs --all",
)  # fmt: skip
HOSTILE = st.builds(str.format, st.sampled_from(ACTS), st.sampled_from(PLACES), st.sampled_from(PLACES))
FULL = [pytest.param(tier, 40 if tier == "none" else 80, marks=pytest.mark.system) for tier in (*WORKING, "none")]


@pytest.mark.fault("coding: a run whose commands attack its repository, its tree and what undo leaves out")
@pytest.mark.parametrize(("tier", "runs"), [(WORKING[0] if WORKING else "none", 5), *FULL])
def test_undo_makes_the_tree_of_a_hostile_run_what_it_was(template: Path, tmp_path: Path, tier: str, runs: int) -> None:
    @settings(max_examples=runs, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(acts=st.lists(HOSTILE, min_size=1, max_size=8))
    def attacked(acts: list[str]) -> None:
        place = tmp_path / token_hex(8)
        folder, outside = place / "project", place / "outside"
        shutil.copytree(template, folder, symlinks=True)
        outside.mkdir()
        (outside / "kept").write_text("kept")
        around, before, snapshots = tree(outside), tree(folder), Snapshots(folder, place / "kept")
        first = snapshots.take()
        asyncio.run(ran(folder, tier, "; ".join(acts[:4]), "; ".join([*acts[4:], "true"])))
        last = snapshots.take(first)
        undo(planned_undo([(first, last)], snapshots.take(last, keeps=False)), snapshots)
        after = {path: entry for path, entry in tree(folder).items() if path in before or not NEW.fullmatch(path)}
        index = {".git/index": before[".git/index"]}  # as its snapshot it is the same without the times in it
        assert ({**after, **index}, snapshots.take().id) == (before, first.id)
        assert repository_faults(folder) == {}
        assert tier == "none" or tree(outside) == around
        delete(place)

    attacked()
