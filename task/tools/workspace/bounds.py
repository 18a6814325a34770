"""The bounds of a workspace: which folder may be one, and what commands may read outside it."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TASK = Path(__file__).parents[2]
PROGRAM = (Path(sys.prefix), _TASK, _TASK.with_name("mcp_servers"))  # what is changed there runs outside the sandbox
# The launcher's policy makes these readable.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_PROGRAMS = """python python3 pip pytest ruff mypy uv poetry node npm npx pnpm yarn deno bun tsc go gofmt cargo rustc
java javac mvn gradle ruby bundle php composer make cmake ninja gcc g++ clang rg fd jq dotnet""".split()  # noqa: SIM905
# Folders of a home that hold programs only; others, such as ~/.cargo and ~/.local, hold keys and data as well.
_OF_PROGRAMS_ONLY = frozenset({".pyenv", ".rbenv", ".nvm", ".nodenv", ".goenv", ".volta", ".rustup", ".deno"})
_OF_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")


@dataclass(frozen=True, slots=True)
class Toolchains:
    """The PATH for commands, the folders that must be readable for it, and variables by which programs find theirs."""

    path: str
    readable: tuple[str, ...]
    variables: Mapping[str, str]


def toolchains(workspace: Path, environment: Mapping[str, str], python: Path | None = None) -> Toolchains:
    """What the workspace's commands use; `environment` is the user's, `python` by default the workspace's."""
    python, home = python or python_of(workspace, environment), Path(environment.get("HOME") or "/nowhere")
    folders = [Path(text) for text in environment.get("PATH", "").split(os.pathsep) if text.startswith("/")]
    folders = [folder for folder in folders if folder.is_dir() and not folder.resolve().is_relative_to(workspace)]
    programs = [python, *filter(os.path.exists, (folder / name for folder in folders for name in _PROGRAMS))]
    wanted = [place for program in dict.fromkeys(programs) for place in _installations(program, workspace)]
    rustup = Path(environment.get("RUSTUP_HOME") or home / ".rustup")
    readable = [place for place in (*folders, *wanted) if _is_shareable(place, home, workspace)]
    variables = {"VIRTUAL_ENV": str(python.parents[1])} if (python.parents[1] / "pyvenv.cfg").exists() else {}
    if rustup.is_dir() and _is_shareable(rustup, home, workspace):
        readable.append(rustup)
        variables["RUSTUP_HOME"] = str(rustup)
    path = dict.fromkeys(map(str, (python.parent, *folders, *_SYSTEM_PATH)))
    return Toolchains(os.pathsep.join(path), tuple(dict.fromkeys(map(str, readable))), variables)


def installation_of(program: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The folders of one program's installation that hold nothing of the user's."""
    home, nowhere = Path(environment.get("HOME") or "/nowhere"), Path("/nowhere")
    return tuple(
        dict.fromkeys(str(place) for place in _installations(program, nowhere) if _is_shareable(place, home, nowhere))
    )


def python_of(workspace: Path, environment: Mapping[str, str]) -> Path:
    """The Python of the workspace: of its own environment, else of the one that is active, else the product's."""
    active = environment.get("VIRTUAL_ENV")
    for folder in (workspace / ".venv", workspace / "venv", *([Path(active)] if active else [])):
        if (folder / "bin" / "python").exists():
            return folder / "bin" / "python"
    return Path(sys.executable)


def _installations(program: Path, workspace: Path) -> Iterator[Path]:
    """The folders of the program's installation, before and after links are followed."""
    real = Path(os.path.realpath(program))
    # Whoever wrote the workspace may have made the link to a file of the user's.
    genuine = not program.is_relative_to(workspace) or (real.parent.name == "bin" and real.name.startswith("python"))
    for place in (program, real) if genuine else ():
        yield place.parents[1] if place.parent.name in ("bin", "sbin", "shims") else place.parent


def _is_shareable(folder: Path, home: Path, workspace: Path) -> bool:
    """Whether it holds programs, and nothing of the user's: no home, and no folder with one or the workspace in it."""
    real, own = folder.resolve(), home.resolve()
    if not real.is_dir() or real.is_relative_to(workspace) or any(real.is_relative_to(place) for place in _SYSTEM):
        return False
    if len(real.parts) <= 2 or own.is_relative_to(real) or workspace.is_relative_to(real):
        return False
    if real.parent != own or real.name in _OF_PROGRAMS_ONLY:
        return True
    return any((real / name).exists() for name in _OF_ENVIRONMENTS)


def refusal(folder: Path, own: Iterable[Path], *, wide: bool = False) -> str:
    """Why the folder cannot be a workspace; empty if it can.

    `own` are the product's folders and files: their keys and conversations must not be within a model's reach. `wide`
    permits the whole machine and a home.
    """
    real = folder.resolve()
    if not real.is_dir():
        return f"there is no folder {folder}"
    home = Path(os.path.expanduser("~")).resolve()
    if not wide and (real == home or real in home.parents):
        return f"{folder} is wider than a project: it holds your home"
    for place in (path.resolve() for path in own):
        if real == place or place in real.parents:
            return f"{folder} lies in {place}, where the product keeps its own files"
        if real in place.parents and not wide:
            return f"{folder} contains {place}, which is the product's own"
    return ""
