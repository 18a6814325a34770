"""Make Python environments, the Makefile's and the kernels': by uv or pip, with nothing but the standard library.

python -m task.cli.environments FOLDER ARGUMENT…    what `pip install ARGUMENT…` installs, in FOLDER
python -m task.cli.environments FOLDER              the kernels' environment, in FOLDER
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from task.errors import AgentError
from task.wheels import Report, failure_of, pip_version, progress_bar

KERNELS = Path(__file__).parents[2] / "mcp_servers" / "python_interpreter" / "requirements.txt"
# What only pip is configured with; uv would go past the user's own index, or not get through.
_OF_PIP = re.compile(r"\.(extra-index-url|index-url|no-index|find-links|proxy|cert|client-cert|trusted-host)=(?!'')")
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
# With these pip installs into another folder, or nothing at all.
_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN")
_OTHER_PYTHONS = (22, 3)  # the pip that first had `--python`
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)

# Kernels may not write byte code, and making it takes as long as the rest: the product starts beside it.
_COMPILE = "import compileall, os, sys; os.nice(19); compileall.compile_dir(sys.argv[1], quiet=2, workers=0)"


class InstallationFailed(AgentError):
    """An environment could not be made; the text gives the reason and what would help."""


def kernels_name(requirements: Path = KERNELS) -> str:
    """The folder's name in the data folder; versions of the product with another list do not share it."""
    made_of = f"{sysconfig.get_platform()} {sys.version_info[:2]}".encode() + requirements.read_bytes()
    return f"kernels-{sha256(made_of).hexdigest()[:12]}"


def make_kernels(folder: Path, variables: Mapping[str, str], report: Report, requirements: Path = KERNELS) -> None:
    """Make the kernels' environment, completely or not at all; one process does it, and others wait for it.

    Packages that this environment has in the same version are linked, neither downloaded nor stored twice.

    Raises:
        InstallationFailed: the folder cannot be written, or not everything could be installed.
    """
    part = folder.with_name(f"{folder.name}.part")
    try:
        with _locked(folder.parent, report) as lock:
            if (folder / "bin" / "python").exists():
                return
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            try:
                _create(part, variables)
                _link_packages(part, requirements)
                # No builds: what they need has no hashes, and uv takes its index from the working directory too.
                options = ["--no-deps", "--only-binary=:all:", "--requirement", str(requirements)]
                install(part, options, variables, report, lock)
                packages = list(map(str, part.glob("lib/python*/site-packages")))
                for name, _ in _REQUIREMENT.findall(requirements.read_text(encoding="utf-8")):
                    if not any(distributions(name=name, path=packages)):
                        raise InstallationFailed(f"{name} is not there. Is pip configured with a target or a prefix?")
                for tests in list(part.glob("lib/python*/site-packages/**/tests")):  # a quarter of all files
                    shutil.rmtree(tests, ignore_errors=True)
                _remove(folder)
                part.rename(folder)
                command = [folder / "bin" / "python", "-Ic", _COMPILE, folder / "lib"]
                none = subprocess.DEVNULL
                subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)  # noqa: S603
                others = [other for other in folder.parent.glob(f"kernels-{'?' * 12}") if other != folder]
                # One more stays, for another version of the product or a downgrade.
                for other in sorted(others, key=lambda other: other.stat().st_mtime)[:-1]:
                    shutil.rmtree(other, ignore_errors=True)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise InstallationFailed(f"{folder} cannot be made: {error.strerror or error}") from error


def install(
    folder: Path, arguments: Sequence[str], variables: Mapping[str, str], report: Report, lock: int | None = None
) -> None:
    """Install what `pip install` does with these arguments; `lock` stays locked should this process be killed.

    Raises:
        InstallationFailed: with the last reason that uv or pip has given.
    """
    # Python compiles what is imported; all of it would take longer than the rest and a third more of the disk.
    command = [*_installer(folder / "bin" / "python", variables), "--no-compile", *arguments]
    given = {name: value for name, value in variables.items() if name not in _ELSEWHERE}
    reason = failure_of(command, given, report, lock)
    if reason is not None:
        raise InstallationFailed(f"{reason or 'no reason was given'}. What was downloaded is kept: try again")


def _create(folder: Path, variables: Mapping[str, str]) -> None:
    # Without a pip of its own, which a system's Python may be unable to put there.
    try:
        import venv
    except ImportError:
        uv = _uv(variables)
        if uv is None:
            raise InstallationFailed("This Python has no module `venv`. Install it, or uv.") from None
        command = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        if subprocess.run(command, env=dict(variables), check=False).returncode:  # noqa: S603
            raise InstallationFailed("uv could not make an environment") from None
    else:
        venv.create(folder, clear=True, symlinks=True)


def _link_packages(folder: Path, requirements: Path) -> None:
    packages = next(folder.glob("lib/python*/site-packages"))
    for name, version in _REQUIREMENT.findall(requirements.read_text(encoding="utf-8")):
        with suppress(PackageNotFoundError):
            found = distribution(name)
            for file in (found.files or ()) if found.version == version else ():
                source = Path(str(found.locate_file(file)))
                if ".." in file.parts or not source.is_file():  # a script's path leads out of the packages
                    continue
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source, packages / file)
                except OSError:  # another disk, or another user's file
                    shutil.copy2(source, packages / file)


def _installer(python: Path, variables: Mapping[str, str]) -> list[str]:
    if uv := _uv(variables):
        return [uv, "pip", "install", "--no-progress", "--python", str(python)]
    options = ["install", "--no-input", "--disable-pip-version-check"]
    if pip_version() < _OTHER_PYTHONS:
        pip = [str(python), "-P", "-m", "ensurepip"]
        if subprocess.run(pip, env=dict(variables), capture_output=True, check=False).returncode:  # noqa: S603
            raise InstallationFailed("This Python has neither pip nor `ensurepip`. Install one of them, or uv.")
        return [str(python), "-P", "-m", "pip", *options, "--progress-bar=off"]
    return [sys.executable, "-P", "-m", "pip", "--python", str(python), *options, progress_bar()]


def _uv(variables: Mapping[str, str]) -> str | None:
    uv = variables.get("UV") or shutil.which("uv", path=variables.get("PATH"))
    if uv is None or any(map(variables.get, _OF_UV)):
        return uv
    listing = [sys.executable, "-P", "-m", "pip", "config", "list"]
    found = subprocess.run(listing, env=dict(variables), capture_output=True, text=True, check=False)  # noqa: S603
    return None if _OF_PIP.search(found.stdout) else uv


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, report: Report) -> Generator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that installs it")
            fcntl.flock(number, fcntl.LOCK_EX)
        yield number
    finally:
        os.close(number)


def main(folder: str, *arguments: str) -> None:
    """What the Makefile calls."""
    place, variables = Path(folder), dict(os.environ)
    try:
        if not arguments:
            _remove(place)
            make_kernels(place, variables, print)
        else:
            if not (place / "bin" / "python").exists():
                _create(place, variables)
            install(place, arguments, variables, lambda _: None)
    except (InstallationFailed, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
