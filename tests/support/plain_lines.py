"""Random lines of the plain grammar, and what shells run of a line in a folder where each program leaves a trace."""

import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

TRACER = r"""#!/bin/sh
i=- o=- e=-
[ -p /dev/fd/0 ] && i='|'; [ -p /dev/fd/1 ] && o='|'; [ -p /dev/fd/2 ] && e='|'
for f in "$R"/* "$R"/*/*; do
  [ /dev/fd/0 -ef "$f" ] && i=${f#"$R/"}; [ /dev/fd/1 -ef "$f" ] && o=${f#"$R/"}; [ /dev/fd/2 -ef "$f" ] && e=${f#"$R/"}
done
folder=$(pwd -P)
printf '%s\0' "$#" "${0##*/}" "$@" "${folder#"$R"}" "$i" "$o" "$e" >> "$T"
exit "$S"
"""
PROGRAMS = ("ls", "cat", "git", "rm", "a.b", "x-y", "py3")
NAMES = ("in", "out", "2", "e r")
FILES = (*NAMES, *(f"d/{name}" for name in NAMES))
SHOWN = {"g/*.py": ("g/a.py", "g/b.py"), "./g/?.txt": ("./g/c.txt",), "g/n*": ("g/n*",)}
BARE = "abzAZ059_./,:@%+=-é"
QUOTED = 'ab 019_./,:@%+=-é$`"\\!#~*?[]{}()<>|&;^\n\t'
MARKS = (
    *"'\"\\$`(){}[]*?~#!&;|<>\n\t=2^%+-,:@é \r\x0b\xa0",
    *("2>", "2>&1", ">&", "<<E\n", "$(", "${", "((", "[[ ", "if ", "then ", "time ", "\\\n", "x=1 ", "cd d && "),
    *("&&", "||", ";;"),
)  # fmt: skip


class Ran(NamedTuple):
    """One program that ran: its words, its folder, and where its standard input, output and errors lead."""

    words: tuple[str, ...]
    folder: str
    streams: tuple[str, str, str]


@dataclass(slots=True)
class Line:
    """A line of the plain grammar: its commands, the files that it opens, and what runs where all ends with 0 or 1."""

    text: str
    folder: str = ""
    commands: list[Ran] = field(default_factory=list[Ran])
    writes: list[str] = field(default_factory=list[str])
    reads: list[str] = field(default_factory=list[str])
    ran: dict[int, list[Ran]] = field(default_factory=lambda: {0: [], 1: []})


def a_line(choice: random.Random) -> Line:
    """A random line of the plain grammar."""
    line = Line("")
    if choice.random() < 0.2:
        line.text, line.folder = (
            f"cd{_blank(choice)}d{choice.choice(('', ' '))}&&{choice.choice(('', ' ', chr(10)))}",
            "d/",
        )
    marks = ["", *choice.choices(("|", "|", "&&", "||", ";", "\n"), k=choice.choice((0, 1, 1, 2, 3))), ""]
    reached = {0, 1}
    for number, (before, after) in enumerate(pairwise(marks)):
        streams = ["|" if before == "|" else "-", "|" if after == "|" else "-", "-"]
        text, words = _command(choice, number, line, streams)
        made = Ran(words, line.folder, (streams[0], streams[1], streams[2]))
        line.commands.append(made)
        if before != "|":  # what stands before a pipeline decides about all of it
            reached = {"&&": {0}, "||": {1}}.get(before, {0, 1})
        for status in reached:
            line.ran[status].append(made)
        line.text += f"{text}{_around(choice, after)}"
    return line


def mutated(choice: random.Random, text: str) -> str:
    """The text with some marks put in, or a part of it twice or not at all."""
    for _ in range(choice.choice((1, 1, 2, 3))):
        place, end = sorted((choice.randint(0, len(text)), choice.randint(0, len(text))))
        match choice.randrange(6):
            case 0:
                text = text[:place] + text[end:] if end - place < 4 else text
            case 1:
                text = text[:end] + text[place:end][:6] + text[end:]
            case _:
                text = text[:place] + choice.choice(MARKS) + text[place:]
    return text


def _command(choice: random.Random, number: int, line: Line, streams: list[str]) -> tuple[str, tuple[str, ...]]:
    name = choice.choice(PROGRAMS)
    written = [choice.choice((name, name, name, f"'{name}'", f'{name[0]}""{name[1:]}')), f"w{number}"]
    words = [name, written[1]]
    for _ in range(choice.choice((0, 1, 1, 2, 3))):
        kind = choice.random()
        if kind < 0.3:
            written.append(_redirection(choice, line, streams))
        elif kind < 0.4 and not line.folder:
            words.append(choice.choice(list(SHOWN)))
            written.append(words[-1])
        else:
            text, word = _word(choice)
            written.append(text)
            words.append(word)
    return "".join(_glued(choice, written)), tuple(words)


def _redirection(choice: random.Random, line: Line, streams: list[str]) -> str:
    mark = choice.choice(("<", ">", ">>", "2>", "2>>", "2>&1"))
    if mark == "2>&1":
        streams[2] = streams[1]
        return mark
    target = choice.choice((*(NAMES if line.folder else FILES), "/dev/null"))
    streams[2 if mark[0] == "2" else 0 if mark == "<" else 1] = "-" if target[0] == "/" else f"{line.folder}{target}"
    (line.reads if mark == "<" else line.writes).append(target)
    shown = f"'{target}'" if " " in target or choice.random() < 0.1 else target
    return f"{mark}{choice.choice(('', ' ', chr(9)))}{shown}"


def _glued(choice: random.Random, written: Sequence[str]) -> Sequence[str]:
    parts = [written[0]]
    for part in written[1:]:
        # A redirection may touch the word before it, unless that could make a number of it.
        touching = part[0] in "<>" and not parts[-1][-1].isdigit() and choice.random() < 0.5
        parts.append(part if touching else f"{_blank(choice)}{part}")
    return parts


def _word(choice: random.Random) -> tuple[str, str]:
    text = word = ""
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        content = "".join(choice.choices(QUOTED, k=choice.randrange(5)))
        match choice.randrange(3):
            case 0:
                piece = content = "".join(["x", *choice.choices(BARE, k=choice.randint(0, 5))])
            case 1:
                piece = f"'{content}'"
            case _:
                content = content.translate({ord(mark): None for mark in "$`!"})
                piece = '"' + content.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text, word = text + piece, word + content
    return text, word


def _blank(choice: random.Random) -> str:
    return choice.choice((" ", " ", " ", "  ", "\t"))


def _around(choice: random.Random, mark: str) -> str:
    before, after = choice.choice(("", " ") if mark != "&&" else (" ", "\t")), choice.choice(("", " ", "\t"))
    if mark in ("|", "&&", "||") and choice.random() < 0.1:
        after += "\n"
    return f"{before}{mark}{after}" if mark else choice.choice(("", "", " ", "\n", ";"))


class Scratch:
    """A folder in which shells find traced programs only."""

    def __init__(self, folder: Path) -> None:
        self.root, self._bin, self._trace, self._tracer = (folder / name for name in ("r", "bin", "trace", "tracer"))
        for made in (self._bin, self.root / "d", self.root / "g"):
            made.mkdir(parents=True)
        for shown in ("a.py", "b.py", "c.txt"):
            (self.root / "g" / shown).write_text(f"g/{shown}")
        self._tracer.write_text(TRACER)
        self._tracer.chmod(0o755)

    def run(self, shell: str, text: str, status: int, names: Sequence[str], files: Iterable[str] = ()) -> list[Ran]:
        """What runs of a line, where all programs have these names and end with this status; the files are there."""
        for name in names:
            if not (self._bin / name).exists():
                (self._bin / name).hardlink_to(self._tracer)
        for file in {*FILES, *files}:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            (self.root / file).write_text(file)
        self._trace.write_bytes(b"")
        seen = {"PATH": str(self._bin), "R": str(self.root), "T": str(self._trace), "S": str(status), "LANG": "C.UTF-8"}
        null = subprocess.DEVNULL
        arguments = [f"/bin/{shell}", "-c", text]
        subprocess.run(
            arguments, cwd=self.root, env=seen, stdin=null, stdout=null, stderr=null, timeout=60, check=False
        )
        return list(_records(self._trace.read_text(encoding="utf-8").split("\0")))

    def changed(self) -> set[str]:
        """The files that are new or have other contents than before the run; they are removed."""
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        other = {name for name, path in found.items() if path.read_text(encoding="utf-8") != name}
        for name in other:
            found[name].unlink()
        return other


def _records(fields: Sequence[str]) -> Iterator[Ran]:
    place = 0
    while place < len(fields) - 1:
        end = place + int(fields[place]) + 2
        folder, *streams = fields[end : end + 4]
        yield Ran(
            tuple(fields[place + 1 : end]), f"{folder[1:]}/" if folder else "", (streams[0], streams[1], streams[2])
        )
        place = end + 4
