"""Write docs/settings.md from the settings tree; `--check` only reports whether it is current."""

import sys
from typing import Any, get_args

from pydantic import BaseModel, SecretStr

from scripts.pages import publish
from task.settings import PREFIX, Settings
from task.settings.document import ALIASES, MODEL_KEYS, PROVIDERS
from task.settings.sources import Setting, settings_of

OPENING = """\
# Settings

<!-- Written by `make docs` from task/settings/; change the descriptions there. -->

The sources of a setting, first match wins:

1. the environment
2. `.env` in the first of the folders below that has the variable
3. a YAML file: the one of `--config` or `AGENT_CONFIG`, else the first `dial-agent.yaml` in the folders below

| command | folders |
|---|---|
| `run`, `chat`, `tasks`, `ask`, `doctor`, `tools`, `traces` | the clone of the program; `~/.config/dial-agent` |
| `up`, `serve` and all others | the working directory, `~/.config/dial-agent` |

The commands of the first row are used in folders that may come from others. Of the working directory's two files,
unless it is one of the folders named, these commands take `DEPLOYMENT_NAME`, `PLANNER_MODEL`, `CODER_MODEL`,
`MAX_STEPS`, `REQUEST_TIMEOUT_S` and `DRY_RUN`, where nothing else sets them, and name what they leave out. A relative
path in your own files is refused while you stand in another folder. Start the other commands in a folder of your own.
`XDG_CONFIG_HOME` is for `~/.config`; a relative folder in such a variable, or in `HOME`, is ignored.

Lists and maps are written with commas (`a,b`; `name=value,name=value`) or as JSON.

An unknown `AGENT_*` variable, an unknown YAML key or a malformed value stops the start with exit code 2 and one line
that names the setting and the fix. `dial-agent doctor` runs the same checks without starting anything.

A setting with *Console only* has an effect in `dial-agent chat` and in `TEPSManager`, and changes nothing elsewhere.
`doctor` and a line at the start of the server's log name each of these that you have set.

In a YAML file `${NAME}` is replaced by a variable of the environment or of `.env`, which must be set; write `$${` for
the characters themselves. A file is refused if it repeats a key, contains itself or grows too large. The
[framework's own keys](#the-frameworks-keys) are accepted too.
"""

FRAMEWORK = """\
## The framework's keys

A configuration file of the framework works unchanged:

- `llm.provider` chooses how the model is reached: {providers}.
- Only the chosen provider's section is used.
- `tool_timeout` is in milliseconds.
- `max_retries` does not count the first try.
- `document_cache_enabled: false` caches no document.

| key | setting |
|---|---|
{rows}
"""


def page(model: type[BaseModel]) -> str:
    """The whole page: one table for the plain settings, one per nested group."""
    by_group: dict[tuple[str, ...], list[Setting]] = {}
    for setting in settings_of(model, PREFIX):
        by_group.setdefault(setting.path[:-1], []).append(setting)
    keys = {**{f"llm.PROVIDER.{key}": target for key, target in MODEL_KEYS.items()}, **ALIASES}
    rows = "\n".join(f"| `{key}` | `{target}` |" for key, target in keys.items() if key != target)
    framework = FRAMEWORK.format(providers=", ".join(f"`{name}`" for name in PROVIDERS), rows=rows)
    return "\n".join([OPENING, *(_section(model, path, rows) for path, rows in by_group.items()), framework])


def _section(model: type[BaseModel], path: tuple[str, ...], settings: list[Setting]) -> str:
    for name in path:
        inner: Any = model.model_fields[name].annotation
        model = inner
    sentence = " ".join((model.__doc__ or model.__name__).split())
    heading = "## The product" if not path else f"## `{'.'.join(path)}`: {sentence.rstrip('.')}"
    rows = ["| variable | YAML key | default | meaning |", "|---|---|---|---|", *map(_row, settings)]
    return "\n".join([heading, "", *rows, ""])


def _row(setting: Setting) -> str:
    if not setting.field.description:
        raise SystemExit(f"{setting.key} in task/settings has no description.")
    meaning = setting.field.description
    if setting.console:
        meaning += " *Console only.*"
    cells = (f"`{setting.variable}`", f"`{setting.key}`", _default(setting), meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def is_secret(setting: Setting) -> bool:
    """Whether the value, or one of its parts, is not to be shown."""
    kinds = (setting.field.annotation, *get_args(setting.field.annotation))
    return any(SecretStr in (kind, *get_args(kind)) for kind in kinds)


def _default(setting: Setting) -> str:
    if is_secret(setting):
        return "(secret)"
    value: Any = setting.field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, dict):
        value = ",".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value in (None, "") else f"`{value}`"


if __name__ == "__main__":
    sys.exit(publish("settings.md", page(Settings), "task/settings", sys.argv[1:]))
