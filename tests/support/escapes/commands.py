"""Commands of a coding run that a filter on words lets through: each tries to reach something outside its workspace."""

import shlex
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.escapes.listeners import Listeners

# `link` leads to the folder outside, where `secret` lies; CANARY, a variable in the files, is the path of a file that
# must not come to be.
EVIL_SCRIPT = "#!/bin/sh\ntouch $CANARY\ncat\n"
MAKES_CANARY = "import os; open(os.environ['CANARY'], 'w')\n"
# What a program sends to the listeners outside is its own name, the first argument.
SENDING = """
import os, socket as s, sys
name, message = sys.argv[1], f"{sys.argv[1]}|".encode()
tcp, udp = (("127.0.0.1", int(os.environ[kind])) for kind in ("TCP_PORT", "UDP_PORT"))
stream, datagrams, abstract = (os.environ[kind] for kind in ("STREAM_SOCKET", "DATAGRAM_SOCKET", "ABSTRACT_SOCKET"))
if name == "tcp": s.create_connection(tcp).send(message)
if name == "udp": s.socket(type=s.SOCK_DGRAM).sendto(message, udp)
if name == "fast open": s.socket().sendto(message, 0x20000000, tcp)
if name == "unix stream": (one := s.socket(s.AF_UNIX)).connect(stream); one.send(message)
if name == "unix datagram": s.socket(s.AF_UNIX, s.SOCK_DGRAM).sendto(message, datagrams)
if name == "abstract socket": (one := s.socket(s.AF_UNIX)).connect("\\0" + abstract); one.send(message)
"""
FILES = {
    "f": "text\n",
    "evil.sh": EVIL_SCRIPT,
    "evil.mk": "all:\n\ttouch $$CANARY\n",
    "evilplug.py": MAKES_CANARY,
    "tests/conftest.py": MAKES_CANARY,
    "tests/test_nothing.py": "def test_nothing(): pass\n",
    "sitecustomize/sitecustomize.py": MAKES_CANARY,
    "pkg/setup.py": f"{MAKES_CANARY}from setuptools import setup; setup(name='pkg', version='1')\n",
    "package.json": '{"name": "n", "scripts": {"evil": "touch $CANARY", "preinstall": "touch $CANARY"}}',
    "gomod/go.mod": "module m\n\ngo 1.20\n",
    "gomod/m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestNothing(t *testing.T) {}\n",
    "send.py": SENDING,
    "hooks/pre-commit": EVIL_SCRIPT,
    ".gitattributes": "* filter=evil\n",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """`needs`: a program that not every machine has. `slow`: it takes seconds."""

    name: str
    words: tuple[str, ...]
    needs: str = "sh"
    slow: bool = False


def _sh(name: str, line: str, needs: str = "sh", slow: bool = False) -> Command:
    return Command(name, ("sh", "-c", line), needs, slow)


def _plain(name: str, line: str) -> Command:
    return Command(name, tuple(line.split()))


_COMMIT = "-c user.name=n -c user.email=e commit --allow-empty -m m"
ALL_COMMANDS = (
    Command("find -exec", ("find", ".", "-maxdepth", "0", "-exec", "sh", "-c", "touch CANARY", ";")),
    Command("git pager", ("git", "-c", "core.pager=touch CANARY", "-p", "log")),
    Command("git alias", ("git", "-c", "alias.x=!touch CANARY", "x")),
    Command("git fsmonitor", ("git", "-c", "core.fsmonitor=touch CANARY; false", "status")),
    _plain("git diff without an index", "git diff --no-index f link/secret"),
    _sh("git diff into a file", "git diff --no-index --output=CANARY f evil.sh"),
    _sh("git show into a file", f"git {_COMMIT}; git show --output=CANARY"),
    _sh("git hook", f"git -c core.hooksPath=hooks {_COMMIT}"),
    _sh("git's own hook", f"cp evil.sh .git/hooks/pre-commit; git -c core.hooksPath=.git/hooks {_COMMIT}"),
    _sh("git filter", "git -c filter.evil.clean='touch CANARY; cat' add f"),
    _sh("git configuration of everyone", "GIT_CONFIG_GLOBAL=CANARY git config --global a.b c"),
    Command("python -c", ("python3", "-c", "open('CANARY', 'w')")),
    Command("env sh", ("env", "sh", "-c", "touch CANARY")),
    _sh("xargs", "echo CANARY > names; xargs -a names touch"),
    Command("tar checkpoint", ("tar", "cf", "t.tar", "f", "--checkpoint=1", "--checkpoint-action=exec=touch CANARY")),
    Command("sed e", ("sed", "-n", "1e touch CANARY", "f")),
    Command("sed w", ("sed", "-n", "w CANARY", "f")),
    Command("awk", ("awk", 'BEGIN{system("touch CANARY")}')),
    _sh("sort", "seq 1000 > big; sort --compress-program=./evil.sh -S 1b big > sorted"),
    _plain("cat through a link", "cat link/secret"),
    _plain("grep through a link", "grep -r . link/secret"),
    _sh("pip install", "python -m pip install --no-index --no-build-isolation --target t ./pkg", slow=True),
    _plain("make", "make -f evil.mk"),
    _sh("second command", "ls; touch CANARY"),
    _sh("substitution", "ls $(touch${IFS}CANARY)"),
    _sh("backticks", "ls `touch CANARY`"),
    _sh("new line", "ls\ntouch CANARY"),
    Command("process substitution", ("bash", "-c", "cat <(touch CANARY)")),
    _sh("redirection", "ls > CANARY"),
    _sh("redirection to a parent", "ls>${PWD%/*}/outside/$(basename CANARY)"),
    _sh("pytest plugin", "PYTHONPATH=. python -m pytest -q -p evilplug tests/test_nothing.py", slow=True),
    _sh("conftest", "python -m pytest -q tests", slow=True),
    _sh("sitecustomize", "PYTHONPATH=sitecustomize python -c pass"),
    _sh("ripgrep's preprocessor", "rg --pre ./evil.sh . f", needs="rg"),
    _sh("fd -x", "fd -x touch CANARY", needs="fd"),
    _sh("npm script", "npm run evil", needs="npm", slow=True),
    _sh("npm install script", "npm install --offline", needs="npm", slow=True),
    _sh("go test -exec", "cd gomod; GOFLAGS=-mod=mod go test -exec ../evil.sh .", needs="go", slow=True),
    _sh("preloaded library", "printf 'void f(void){}' > l.c; LD_PRELOAD=CANARY cat link/secret"),
    _sh("background process", "(setsid sh -c 'touch CANARY; cat link/secret' &) | cat"),
    _sh("hard link", "ln link/secret own && cat own"),
    _sh("copy", "dd if=link/secret of=copied; cat copied"),
    _sh("environment of a neighbour", "tr '\\0' '\\n' < /proc/$NEIGHBOUR/environ"),
    _sh("end of a neighbour", "kill -9 $NEIGHBOUR"),
    *(
        Command(name, ("python3", "send.py", name))
        for name in ("tcp", "udp", "fast open", "unix stream", "unix datagram", "abstract socket")
    ),
)  # fmt: skip
COMMANDS = tuple(command for command in ALL_COMMANDS if shutil.which(command.needs))


@dataclass(frozen=True, slots=True)
class Outside:
    """What must not be reached: a folder with a secret, listeners, and a process with the secret in its environment."""

    folder: Path
    secret: str
    variables: Mapping[str, str]
    listeners: Listeners
    neighbour: subprocess.Popen[bytes]


@contextmanager
def outside(folder: Path, secret: str) -> Generator[Outside]:
    """Open the listeners and start the neighbour; `folder` is the one outside."""
    (folder / "secret").write_text(secret)
    with ExitStack() as stack:
        short = stack.enter_context(TemporaryDirectory(dir="/tmp"))  # a socket's path has at most 107 characters
        listeners = Listeners.open(short)
        stack.callback(listeners.close)
        neighbour = subprocess.Popen(["sleep", "600"], env={"SECRET": secret})
        stack.callback(neighbour.wait)
        stack.callback(neighbour.kill)
        variables = {
            "TCP_PORT": str(listeners.tcp.getsockname()[1]),
            "UDP_PORT": str(listeners.udp.getsockname()[1]),
            "STREAM_SOCKET": f"{short}/service.sock",
            "DATAGRAM_SOCKET": f"{short}/datagram.sock",
            "ABSTRACT_SOCKET": listeners.abstract.getsockname()[1:].decode(),
            "NEIGHBOUR": str(neighbour.pid),
        }
        yield Outside(folder, secret, variables, listeners, neighbour)


def lay_out(inside: Path, world: Outside) -> None:
    """Fill the workspace."""
    (inside / "link").symlink_to(world.folder)
    for name, text in FILES.items():
        path = inside / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    subprocess.run(["git", "init", "-q", str(inside)], check=True, timeout=30)


def script(inside: Path, world: Outside, *, slow: bool) -> str:
    """A shell script that tries every command with a canary of its own and keeps what it prints."""
    lines = [f"cd {inside}", "export GIT_CONFIG_NOSYSTEM=1 GOCACHE=$TMPDIR/go GOPATH=$TMPDIR/gopath"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in world.variables.items()]
    for number, command in enumerate(COMMANDS):
        canary = f"{world.folder}/canary-{number}"
        words = [word.replace("CANARY", canary) for word in command.words]
        if slow or not command.slow:
            lines.append(f"CANARY={canary} {shlex.join(words)} > {number}.out 2>&1 < /dev/null")
    return "\n".join([*lines, "wait", ""])


def escaped(inside: Path, world: Outside) -> set[str]:
    """The commands that made their canary, printed the secret, sent their name, or ended the neighbour."""
    received = world.listeners.received().split("|")
    harmed = {"end of a neighbour"} if world.neighbour.poll() is not None else set[str]()
    return harmed | {
        command.name
        for number, command in enumerate(COMMANDS)
        if (world.folder / f"canary-{number}").exists()
        or world.secret in _text(inside / f"{number}.out")
        or command.name in received
    }


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
