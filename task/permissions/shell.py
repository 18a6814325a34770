"""Read command lines of a small grammar that bash and dash agree on; every other line is not plain, with the reason."""

import re
from collections.abc import Iterator, Sequence
from posixpath import basename
from typing import NamedTuple

ADVICE = (
    "Write plain lines: words, single quotes, double quotes without $ ` ! or \\, pipes, && || ;, redirections, and "
    "patterns such as ./*.py. Put variables, loops, here-documents and all else into a script file, and run that"
)
LONGEST = 20_000  # characters of a plain line
_BARE = r"\w./,:@%+="
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"$`!\\]|\\[\\"])*)\"""")
_TOKEN = re.compile(
    r"[ \t]+|(?P<errors>2>&1(?=[ \t\n;|]|\Z))|(?P<redirection>(?:2?>>?|<)(?![<>&|(]))"
    rf"|(?P<end>&&|\|\|?(?!&)|[;\n])|(?P<word>(?!\d+[<>])(?:[{_BARE}*?-]|{_QUOTED.pattern})+)"
)
# A name with a folder in front of it is never an option, and one that begins with a dot could be the parent folder.
_PATTERN = re.compile(rf"(?!-)[{_BARE}-]*/(?!\.)[\w.,:@%+=*?-]+")
_NAME = re.compile(r"[\w.+/-]+", re.ASCII)
_RAW = re.compile(rf"[{_BARE}-]+")
_PART = re.compile(r"[\w./+@%-]+")
_SOCKET = re.compile(r"/+dev/+(?:tcp|udp)/")  # bash connects to it
# Keywords, and what changes the shell that runs the rest of the line, of bash or dash.
_SHELLS_OWN = frozenset(
    """alias bg bind break builtin caller case chdir command compgen complete compopt continue coproc declare dirs
    disown do done elif else enable esac eval exec exit export fc fg fi for function getopts hash history if in jobs
    let local logout mapfile popd pushd read readarray readonly return select set shift shopt source suspend then time
    trap typeset ulimit umask unalias unset until wait while .""".split()  # noqa: SIM905
)


class Command(NamedTuple):
    """The words of one command without their quotes; `patterns`: the shell replaces one of them by names of files.

    Not `plain`: they are the raw words of a line that is not plain, any of which may be what runs.
    """

    words: tuple[str, ...]
    plain: bool = True
    patterns: bool = False

    @property
    def name(self) -> str:
        return basename(self.words[0]) if self.words else ""

    @property
    def parts(self) -> list[str]:
        """The words in the words, also those behind the letter of an option, such as `-Orm`."""
        found: list[str] = _PART.findall("\n".join(self.words))
        return [part for word in found for part in (word, *([word[2:]] if word[0] == "-" and word[2:] else ()))]


class Script(NamedTuple):
    """What a plain line runs, and the files that output and input are redirected to; else `why` it is not plain.

    In front of the other commands may be `cd` with a folder. A line that is not plain is one command of its raw words.
    """

    commands: tuple[Command, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    why: str = ""

    @property
    def plain(self) -> bool:
        return not self.why

    @property
    def folder(self) -> str:
        """Where the commands after `cd` run; empty if there is none."""
        return self.commands[0].words[1] if self.plain and self.commands and self.commands[0].name == "cd" else ""


class _NotPlainError(Exception):
    pass


def parsed(text: str) -> Script:
    """The commands of a command line in their order."""
    try:
        return _script(text)
    except _NotPlainError as error:
        seen = text[:LONGEST]
        unquoted = seen.translate(dict.fromkeys(map(ord, "'\"\\")))
        raw = _RAW.findall(seen if unquoted == seen else f"{seen}\n{unquoted}")
        return Script((Command(tuple(raw), plain=False),), why=str(error))


def _script(text: str) -> Script:
    commands, reads, writes = list[Command](), list[str](), list[str]()
    words, patterns, redirection, begun, before = list[str](), False, "", False, ""
    for kind, mark in _tokens(text.strip(" \t\n")):
        word, is_pattern = _word(mark) if kind == "word" else ("", False)
        if redirection:
            if not word or is_pattern or _SOCKET.match(word):
                raise _NotPlainError("a redirection to something else than one file")
            (reads if redirection == "<" else writes).append(word)
        if kind == "word" and not redirection:
            words.append(word)
            patterns = patterns or is_pattern
        redirection = mark if kind == "redirection" else ""
        if kind != "end":
            begun = True
        elif begun:
            is_first = not (commands or reads or writes or patterns) and mark in ("&&", "")
            commands.append(_command(words, patterns, may_be_cd=is_first))
            words, patterns, begun, before = [], False, False, mark
        elif not (commands and (mark == "\n" or (not mark and before == ";"))):
            raise _NotPlainError("a missing command")
    return Script(tuple(commands), tuple(writes), tuple(reads))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    if len(text) > LONGEST:
        raise _NotPlainError(f"more than {LONGEST:,} characters")
    if not text.translate({9: None, 10: None}).isprintable():
        raise _NotPlainError("a control character or an unusual blank")
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _NotPlainError(_mark(text[position:]))
        position = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found[0]
    yield "end", ""


def _mark(rest: str) -> str:
    # What in front of the rest of a line is not plain.
    if rest[0] in "'\"":
        inside = re.match(r'"(?>(?:[^"$`!\\]|\\[\\"])*)([$`!\\])', rest)
        return f"{inside[1]} in double quotes" if inside else "a quote that is not closed"
    return "another redirection than > >> < 2> 2>> 2>&1" if rest[0] in "<>0123456789" else f"an unquoted {rest[0]}"


def _command(words: Sequence[str], patterns: bool, *, may_be_cd: bool) -> Command:
    name = words[0] if words else ""
    if name in _SHELLS_OWN or _NAME.fullmatch(name) is None:
        raise _NotPlainError("an assignment" if "=" in name else f"{name[:30] or 'nothing'} in place of a program")
    if basename(name) == "cd" and not (may_be_cd and len(words) == 2 and words[1][:1] not in ("", "-")):
        raise _NotPlainError("cd elsewhere than in front: cd FOLDER && …")
    return Command(tuple(words), patterns=patterns)


def _word(token: str) -> tuple[str, bool]:
    # The word without its quotes, and whether it is a pattern.
    bare = _QUOTED.sub("", token)
    is_pattern = "*" in bare or "?" in bare
    if is_pattern and _PATTERN.fullmatch(token) is None:
        raise _NotPlainError("a pattern elsewhere than in the last part of a path, such as ./*.py")
    if token.startswith("="):
        raise _NotPlainError("a word that begins with =")
    return _QUOTED.sub(lambda found: found[1] or re.sub(r"\\(.)", r"\1", found[2] or ""), token), is_pattern
