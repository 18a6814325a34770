"""The arguments of a call: every value with its name, the commands and addresses among them, and how much they say."""

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from task.permissions.hosts import is_address, words_of
from task.permissions.shell import parsed

_COMMAND = re.compile(
    r"(?>(?:(?!command)\w)*)command\w*|cmds?|shell|bash|scripts?|code|exec|run|program|executable|arg[sv]|arguments",
    re.I,
)
_compact_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
_WORDS = frozenset({"args", "argv", "arguments"})
_VAGUE = frozenset({"code", "program", "run"})
# What may stand beside a command and is not one.
_BESIDE = frozenset({"cwd", "dir", "directory", "workdir", "working_dir", "working_directory", "timeout", "seconds"})
# Queries, parts of data, codes and names of users: no tool takes these for an address.
_NO_PLACE = re.compile(
    r"(?:\A|_)(?:q|query|search|[jsc]ql|filter|fields?|columns?|sort|order_by|projection|selector|labels?|key"
    r"|indicator|metric|symbols?|ticker|user(?:name)?)\Z",
    re.I,
)
_NUMBERED = re.compile(r"ids?\Z|time|date|since|until|ts\Z|number", re.I)  # records and moments
_HOST = re.compile(r"host|server|target|domain|node|peer|proxy|gateway|remote|upstream|ip\Z|\Aip", re.I)
_FILE = re.compile(r"path|file|folder|dir\Z", re.I)
_ENDINGS = (".cc", ".java", ".md", ".ml", ".pl", ".pm", ".ps", ".py", ".rs", ".sh", ".so", ".tf", ".zip")  # and domains
_LONGEST_NAME = 200  # of a member, as far as it is read as a name
_T = TypeVar("_T")
_ADDRESS_LIKE = re.compile(r"[.:/\\@%]|[0-9]{8}|0x|localhost|[^\x00-\x7f]", re.I)


def named_values(value: object, kinds: type[_T] | tuple[type[_T], ...]) -> Iterator[tuple[str, _T]]:
    """Every value of these kinds in JSON data with its member's name; names that are not identifiers are values too.

    Deep data needs no deep stack.
    """
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, kinds):
            yield name, value
        elif isinstance(value, Mapping):
            for key, item in reversed(list(cast("Mapping[object, object]", value).items())):
                waiting.append((str(key)[:_LONGEST_NAME], item))
                if not str(key).isidentifier():
                    waiting.append((name, str(key)))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            waiting += ((name, item) for item in reversed(cast("Sequence[object]", value)))


def sent_length(arguments: Mapping[str, object], declared: Collection[str]) -> int:
    """How many characters the model chose in the arguments, as they are sent.

    Numbers and names of members count as text does; the names of arguments that the tool's schema declares do not.
    """
    names = [name for name in arguments if name not in declared]
    texts = (value if isinstance(value, str) else _compact_json(value) for value in arguments.values())
    return sum(map(len, (*names, *texts)))


def addresses(arguments: object) -> Iterator[str]:
    """The words in the arguments that name a machine, whatever the argument is called.

    A text that begins with one is taken as a whole. Not in queries, nor the name of a source file as a path.
    """
    for name, text in named_values(arguments, str):
        if _ADDRESS_LIKE.search(text) and not _NO_PLACE.search(name):
            endings, numbered = _ENDINGS if _FILE.search(name) else (), _NUMBERED.search(name) is not None
            words = (word for word in words_of(text) if not (word.endswith(endings) or (numbered and word.isdecimal())))
            found = list(filter(is_address, words))
            is_one = len(text.split(maxsplit=1)) > 1 and text.lstrip().startswith(tuple(found[:1]))
            yield from [text.strip()] if is_one else found


def named_hosts(arguments: object) -> Iterator[str]:
    """The values that are one word, or a number, under a name such as `server` or `target`."""
    for name, value in named_values(arguments, (str, int)):
        if _HOST.search(name) and len(words := str(value).split(maxsplit=1)) == 1:
            yield words[0]


def command_lines(arguments: object, *, executes: bool) -> tuple[str, bool]:
    """The command lines in the arguments, and whether they are known to be all that could run.

    One text is a line, a list is one or several. Of anything else, such as a program beside its arguments, the texts
    are read as one line and each by itself. Unless the tool `executes`, one word alone may stand for a country.
    """
    found, texts, whole = set[str](), list[str](), True
    for name, value in named_values(arguments, (str, int, float)):
        if _COMMAND.fullmatch(name) and not isinstance(value, bool):
            found.add(name)
            texts.append(str(value))
        elif isinstance(value, str):
            whole = whole and (not value or name in _BESIDE)
    blanks = [" " in text.strip() for text in texts]
    if len(texts) < 2:
        return "".join(texts) if executes or any(blanks) or not _VAGUE.issuperset(found) else "", whole
    if len(found) == 1 and blanks[0]:  # no program is called so
        # A quote must not be open at the end of one and closed in another.
        return "\n".join(texts), whole and all(parsed(text).plain for text in texts)
    if found < _WORDS or (len(found) == 1 and not any(blanks) and not any(name.endswith("s") for name in found)):
        return shlex.join(texts), whole
    return "\n".join([" ".join(texts), *texts]), False
