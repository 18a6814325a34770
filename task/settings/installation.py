"""The secret of an installation, made at the first start."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from task.errors import SettingsError

STATE_KEY = "state.key"  # in the data folder, where no setting names the secret of hidden state


def installation_secret(path: Path) -> str:
    """The secret kept in `path`, made on the first call; readable by its owner only.

    Processes that start at once agree on one secret.

    Raises:
        SettingsError: the folder cannot be written or the file cannot be read.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=path.parent, encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32))
                file.flush()
                with suppress(FileExistsError):  # unlike a rename, a link never replaces another process's secret
                    os.link(file.name, path)
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"AGENT_DATA_DIR: {path} cannot be used: {error}") from error
    if not secret:
        raise SettingsError(f"AGENT_DATA_DIR: {path} is empty; delete it and start again")
    return secret
