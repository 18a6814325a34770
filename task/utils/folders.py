"""Delete folders that programs of others have written to."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete(folder: Path | str, parent: int | None = None) -> None:
    """Delete a folder with all that is in it; its path may be relative to the open folder `parent`.

    Unlike `shutil.rmtree` it takes any depth, and unlike `TemporaryDirectory` (CVE-2023-6597) it changes no mode of
    what a link leads to.

    Raises:
        OSError: something could not be deleted.
    """
    os.chmod(folder, 0o700, dir_fd=parent)
    top = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        while names := os.listdir(top):
            for name in names:
                _delete(top, name)
    finally:
        os.close(top)
    os.rmdir(folder, dir_fd=parent)


def _delete(top: int, name: str) -> None:
    # Folders in it come up beside it, so that no path is too long and nothing recurses.
    with suppress(IsADirectoryError):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        for child in os.listdir(inner):
            try:
                os.unlink(child, dir_fd=inner)
            except IsADirectoryError:
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, token_hex(12), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
