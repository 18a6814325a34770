"""The kernels' Python where every user of this machine may read it: installations under a home folder are closed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.support.interpreter import KERNEL_PYTHON

LEFT_OUT = ("site-packages", "test", "idlelib", "__pycache__", "share")


@contextmanager
def open_python() -> Generator[Path]:
    """A Python with the kernels' packages, below a folder that is open to all; its files are links where that works."""
    with tempfile.TemporaryDirectory(prefix="open-python-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        base = _base_prefix()
        shutil.copytree(
            base, root / "base", symlinks=True, copy_function=_linked, ignore=shutil.ignore_patterns(*LEFT_OUT)
        )
        kernels = KERNEL_PYTHON.parents[1]
        shutil.copytree(kernels, root / "kernels", symlinks=True, copy_function=_linked)
        for name in ("python", "python3"):  # one of them leads to the other
            python = root / "kernels" / "bin" / name
            python.unlink()
            python.symlink_to(root / "base" / "bin" / "python3")
        settings = root / "kernels" / "pyvenv.cfg"
        text = settings.read_text().replace(str(base), str(root / "base"))
        settings.unlink()  # it is a link to the real one
        settings.write_text(text)
        yield root / "kernels" / "bin" / "python"


def _base_prefix() -> Path:
    found = subprocess.run(
        [KERNEL_PYTHON, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, encoding="utf-8", check=True
    )  # fmt: skip
    return Path(found.stdout.strip())


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
