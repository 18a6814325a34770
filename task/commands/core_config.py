"""Core's configuration with this environment's values in it, for a real DIAL Core."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from task.errors import SettingsError
from task.settings import Settings, process_environment
from task.settings.sources import read_dotenv

OWN_CONFIG = Path(__file__).resolve().parents[2] / "core_config" / "config.json"
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


def config_files(settings: Settings) -> list[Path]:
    """The configuration files the settings name, else the product's own.

    Raises:
        SettingsError: one of them is missing.
    """
    files = settings.core.config_files or [OWN_CONFIG]
    for path in files:
        if not path.is_file():
            raise SettingsError(f"AGENT_CORE__CONFIG_FILES: there is no file {path}. Name an existing one.")
    return files


def run(template: Path | None, output: Path | None, mode: int) -> None:
    """Print the filled-in configuration, or write it to `output` with the file mode `mode`."""
    text = rendered(template or OWN_CONFIG, {**read_dotenv(Path(".env")), **process_environment()})
    if output is None:
        print(text)
    else:
        write_private(output, text, mode)


def rendered(path: Path, environment: Mapping[str, str]) -> str:
    """The file's text with every `${env:NAME}` replaced.

    Raises:
        SettingsError: the file cannot be read, a variable is not set, or the result is not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}. Name an existing file.") from error
    missing = sorted({name for name in _VARIABLE.findall(text) if not environment.get(name)})
    if missing:
        raise SettingsError(f"{', '.join(missing)}: not set, but {path.name} needs it. Set it and try again.")
    filled = _VARIABLE.sub(lambda found: json.dumps(environment[found[1]])[1:-1], text)
    try:
        json.loads(filled)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}. Correct it.") from error
    return filled


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` at once; unless `mode` says otherwise only its owner may read it, because it holds keys.

    Raises:
        SettingsError: the folder cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(unfinished, path)
    except OSError as error:
        raise SettingsError(f"--output: {path} cannot be written: {error.strerror}. Choose another file.") from error
