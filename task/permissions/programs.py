"""Rate commands by what common programs do with their arguments."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from task.permissions.icerc import Level
from task.permissions.shell import Command, Script, parsed

DEEPEST = 6  # levels of commands inside commands that are followed

READING = frozenset(
    "awk basename cal cat cd cmp column comm cut date df diff dirname du echo egrep false fgrep file find fold free "  # noqa: SIM905
    "getconf git grep groups head hexdump hostname id join jobs jq less locale ls lsblk md5sum more nl nproc od paste "
    "printf ps pwd readlink realpath rev rg sed seq sha1sum sha256sum sleep sort stat strings sum tac tail test tr "
    "tree true tsort tty type uname uniq uptime vmstat wc which who whoami xxd yes [ :".split()
)
DESTROYING = frozenset(
    "chattr chgrp chmod chown crontab dd deluser fdisk groupdel halt init iptables kill killall mkfs mkswap mount nft "  # noqa: SIM905
    "parted passwd pkill poweroff reboot rm rmdir shred shutdown srm sysctl systemctl telinit truncate ufw umount "
    "unlink useradd userdel usermod visudo wipefs".split()
)
SENDING = frozenset("ftp lftp mail mailx mutt nc ncat netcat rclone rsync scp sendmail sftp socat ssh telnet".split())  # noqa: SIM905
FETCHING = frozenset(
    "apt apt-get aria2c brew bundle bun cargo composer conda curl dnf docker gem gh go http https kubectl mamba mvn "  # noqa: SIM905
    "npm npx pip pip3 pipx pnpm podman poetry uv uvx wget yarn yum".split()
)
HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
INTERPRETERS = frozenset({"python", "python3", "perl", "ruby", "node", "php", "lua", "osascript", "deno", "pwsh"})
RAISING = frozenset({"sudo", "doas", "su", "pkexec", "runuser"})
_CARRIERS = frozenset(
    "command builtin coproc env exec nice nohup ionice setsid stdbuf time timeout watch xargs parallel chroot unshare "  # noqa: SIM905
    "busybox strace ltrace caffeinate".split()
)
_WITH_VALUE = {
    "env": frozenset({"-u", "-C"}),
    "timeout": frozenset({"-s", "-k"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "xargs": frozenset({"-I", "-n", "-P", "-d", "-L", "-a", "-E", "-s"}),
    "sudo": frozenset({"-u", "-g", "-h", "-p", "-C", "-D"}),
    "watch": frozenset({"-n"}),
}
_GIT_READING = frozenset(
    "blame describe diff grep help log ls-files ls-tree rev-list rev-parse shortlog show status version".split()  # noqa: SIM905
)
_GIT_REACHING = frozenset({"clone", "fetch", "pull", "push", "remote", "submodule", "ls-remote"})
_SENDS_DATA = re.compile(
    r"^(?:-[dFT]|--(?:data|form|upload-file|post-(?:data|file)|json|body-)|-X$|--request$|--method)"
)
_UPLOADING = re.compile(r"^(?:-X|--request=?|--method=?)?(?:POST|PUT|PATCH|DELETE)$")


@dataclass(frozen=True, slots=True)
class Finding:
    """The risk of one command, with the reason."""

    level: Level
    text: str


def all_commands(script: Script, depth: int = 0) -> Iterator[Command]:
    """The commands of a script, and those that they start through `sudo`, `xargs`, `find -exec`, `sh -c` and others."""
    for command in script.commands:
        yield command
        if depth < DEEPEST:
            yield from all_commands(_started(command), depth + 1)


def program_of(command: Command) -> str:
    return posixpath.basename(command.words[0]) if command.words else ""


def findings(command: Command) -> Iterator[Finding]:
    """The risks of one command, without those of the commands that it starts."""
    program = program_of(command)
    line = " ".join(command.words)[:120]
    if not command.exact and (not command.words or any(mark in command.words[0] for mark in "$`*?[{<")):
        yield Finding("high", f"what runs is only known at run time: {line}")
        return
    if program in RAISING:
        yield Finding("high", f"{program} runs it with another user's rights")
    elif program in ("eval", "source", "."):
        yield Finding("high", f"{program} runs text that is only known at run time: {line}")
    elif program in SHELLS or program in INTERPRETERS:
        yield from _of_shell(program, command)
    elif program in DESTROYING or program.startswith("mkfs."):
        yield Finding("high", f"{program} deletes or changes what may not come back: {line}")
    elif program in SENDING:
        yield Finding("high", f"{program} connects to another machine: {line}")
    elif program in FETCHING:
        yield from _of_fetcher(program, command, line)
    elif program == "git":
        yield from _of_git(command.words, line)
    elif program == "find" and {"-delete", "-fprint", "-fprintf", "-fls"} & {*command.words}:
        yield Finding("high", f"find deletes or writes: {line}")
    elif program == "sed" and any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in command.words[1:]):
        yield Finding("medium", f"sed changes files: {line}")
    elif program in ("awk", "sed") and re.search(r"\bsystem\s*\(|\|\s*getline|\be\b\s*$|/e\b", line):
        yield Finding("high", f"{program} starts commands: {line}")
    elif program not in READING and program not in _CARRIERS:
        yield Finding("medium", f"{program} may change something: {line}")
    elif not command.exact:
        yield Finding("medium", f"parts of it are only known at run time: {line}")


def prefix_of(script: Script) -> str:
    """The first words that "always" may cover; empty if only exactly this command line may be allowed."""
    commands = list(all_commands(script))
    if len(commands) != 1 or not coverable(script):
        return ""
    program, *arguments = commands[0].words
    if program in SHELLS | INTERPRETERS | RAISING | _CARRIERS or not re.fullmatch(r"[\w.+-]+", program):
        return ""
    if program not in FETCHING and program != "git":
        return program
    return f"{program} {arguments[0]}" if arguments and re.fullmatch(r"[a-z][a-z0-9-]*", arguments[0]) else ""


def coverable(script: Script) -> bool:
    """Whether a grant for the first words of commands may cover the script: all of it is known and nothing is bad."""
    if not script.exact or any(target not in HARMLESS_TARGETS for target in script.writes):
        return False
    return all(
        command.words and all(finding.level != "high" for finding in findings(command))
        for command in all_commands(script)
    )


def _of_shell(program: str, command: Command) -> Iterator[Finding]:
    if command.piped and (program in SHELLS or len(command.words) == 1):
        yield Finding("high", f"{program} runs what another command writes")
    elif program in INTERPRETERS:
        yield Finding("medium", f"{program} runs code that is not looked into: {' '.join(command.words)[:120]}")
    elif not _script_of(command):
        yield Finding("high", f"{program} runs a script that is not looked into: {' '.join(command.words)[:120]}")


def _of_fetcher(program: str, command: Command, line: str) -> Iterator[Finding]:
    sends = any(_SENDS_DATA.match(word) or _UPLOADING.match(word) for word in command.words[1:])
    if program in ("curl", "wget", "http", "https") and (sends or command.piped or not command.exact):
        yield Finding("high", f"{program} sends data to a server: {line}")
    else:
        yield Finding("medium", f"{program} reaches servers outside: {line}")


def _of_git(words: Sequence[str], line: str) -> Iterator[Finding]:
    if any(re.match(r"-c$|--exec-path=|--config-env|--upload-pack|-u$", word) for word in words[1:]):
        yield Finding("high", f"git is made to use other programs or settings: {line}")
        return
    verb = next((word for word in _without_options(words[1:], frozenset({"-C", "--git-dir", "--work-tree"}))), "")
    forced = any(re.match(r"--force|--hard|--mirror|--delete|-[a-zA-Z]*[fdD]", word) for word in words[2:])
    if verb in ("clean", "filter-branch", "filter-repo", "gc", "restore") or (
        forced and verb in ("reset", "push", "branch", "checkout", "tag", "rm", "switch", "worktree")
    ):
        yield Finding("high", f"git {verb} throws work away: {line}")
    elif verb in _GIT_REACHING:
        yield Finding("medium", f"git {verb} reaches a server outside: {line}")
    elif verb not in _GIT_READING:
        yield Finding("medium", f"git {verb or 'alone'} may change the repository: {line}")


def _started(command: Command) -> Script:
    program, words = program_of(command), command.words
    if program in SHELLS or program in ("eval", "su", "ssh"):
        text = " ".join(words[1:]) if program == "eval" else _script_of(command)
        return parsed(text) if text else Script()
    if program == "env" and (split := [text for option, text in pairwise(words) if option == "-S"]):
        return parsed(split[0])
    if program in _CARRIERS or program in RAISING:
        arguments = 1 if program in ("timeout", "chroot") else 0  # of its own, before the command
        inner = tuple(_without_options(words[1:], _WITH_VALUE.get(program, frozenset()), arguments))
        return Script((replace(command, words=inner),)) if inner else Script()
    if program == "find":
        starts = [place for place, word in enumerate(words) if word in ("-exec", "-execdir", "-ok", "-okdir")]
        return Script(tuple(Command(words[place + 1 :], command.exact) for place in starts if words[place + 1 :]))
    return Script()


def _script_of(command: Command) -> str:
    words = command.words
    for place, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-zA-Z]*c|--command", word) and place + 1 < len(words):
            return words[place + 1]
    return ""


def _without_options(words: Sequence[str], with_value: frozenset[str], skipped: int = 0) -> Iterator[str]:
    position = 0
    while position < len(words):
        word = words[position]
        if word in with_value:
            position += 2
        elif word.startswith("-") or re.match(r"\w+=", word):
            position += 1
        elif skipped:
            skipped -= 1
            position += 1
        else:
            break
    yield from words[position:]
