"""Read settings from an environment, a `.env` file and a YAML file, and report faults in one line."""

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from task.errors import SettingsError
from task.settings.document import SECTIONS, Translation, nearest, read_document, translated
from task.settings.sections import McpServerSettings
from task.settings.tree import APPLICATION, PREFIX, Settings

DEFAULT_DOCUMENT = "dial-agent.yaml"
CONFIG_VARIABLE = "AGENT_CONFIG"
# What another user's files may set.
HARMLESS = frozenset({"DEPLOYMENT_NAME", "PLANNER_MODEL", "CODER_MODEL", "MAX_STEPS", "REQUEST_TIMEOUT_S", "DRY_RUN"})
HOMES = {"data_dir": ("XDG_DATA_HOME", ".local/share"), "cache_dir": ("XDG_CACHE_HOME", ".cache")}
CLONE = Path(__file__).resolve().parents[2]  # that this module was imported from, where it is one
SERVICE_HOST = "_SERVICE_HOST"
ONE_TOOLS_SECONDS = ("interpreter.seconds", "rag.seconds", "deployments.image_seconds", "limits.reader_seconds")
PLACES = {"given": "on the command line", "environment": "in the environment", "dotenv": "in .env"}
RUN_SECONDS, TOOL_SECONDS = "limits.run_seconds", "limits.tool_seconds"
SettingPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a settings tree: its path, its environment variable and the field behind it."""

    path: SettingPath
    variable: str
    field: FieldInfo

    @property
    def key(self) -> str:
        """The name in a YAML file."""
        return ".".join(self.path)

    @property
    def console(self) -> bool:
        """Whether it has an effect in the console only."""
        return "console" in _marks(self.field)

    def given_in(self, settings: BaseModel) -> bool:
        """Whether a source has a value for it."""
        inner: Any = settings
        for name in self.path:
            if name not in inner.model_fields_set:
                return False
            inner = getattr(inner, name)
        return True


@dataclass(frozen=True, slots=True)
class SettingSources:
    """The raw values by their origin, strongest first.

    `weakest` is what nothing else sets, `files` are what they come from, `ignored` is what was left out of another
    user's. A relative path of the sources in `astray` would lead into that user's folder.
    """

    given: Mapping[str, Any]
    environment: Mapping[str, str]
    dotenv: Mapping[str, str]
    document: Translation
    weakest: Mapping[str, Any]
    files: Sequence[Path]
    ignored: Sequence[str]
    astray: Sequence[str]

    def of(self, setting: Setting) -> str:
        """Which of these has its strongest value."""
        if setting.path[0] in self.given:
            return "given"
        variables = {"environment": self.environment, "dotenv": self.dotenv}
        return next((name for name, found in variables.items() if found.get(setting.variable)), "document")

    def where(self, setting: Setting, place: str = "") -> str:
        """The setting's name as its strongest source spells it, that source, and the place in its value, if any."""
        if place_of := PLACES.get(self.of(setting)):
            found = f"{setting.variable} {place_of}"
        else:
            found = f"{self.document.spelling(setting.path)} in {self.document.file}"
        return f"{found}: {setting.key}{place}" if place else found


def settings_of(model: type[BaseModel], prefix: str, path: SettingPath = ()) -> Iterator[Setting]:
    """Every leaf of the tree, in the order of its fields."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(inner, prefix, (*path, name))
        else:
            variable = name if "bare" in _marks(field) else prefix + "__".join((*path, name))
            yield Setting((*path, name), variable.upper(), field)


def read_dotenv(path: Path) -> dict[str, str]:
    """The file's variables, without expansion; nothing where there is no file.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        values = dotenv_values(path, interpolate=False, encoding="utf-8") if path.is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name} cannot be read: {error}. Save it as UTF-8 text, or remove it.") from error
    return {name: value for name, value in values.items() if value is not None}


def _without_services(environment: Mapping[str, str]) -> Mapping[str, str]:
    # The environment without what Kubernetes puts there for each service of the namespace whose name begins as our
    # variables do: `AGENT_SERVICE_HOST`, `AGENT_PORT=tcp://…` and others for a service `agent`.
    hosts = [name for name in environment if name.startswith(PREFIX) and name.endswith(SERVICE_HOST)]
    if "KUBERNETES_SERVICE_HOST" not in environment or not hosts:
        return environment
    services = "|".join(re.escape(name.removesuffix(SERVICE_HOST)) for name in hosts)
    injected = re.compile(rf"({services})_((SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))\w*=|PORT=\w+://)")
    return {name: value for name, value in environment.items() if not injected.match(f"{name}={value}")}


def load_settings(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    foreign: bool = False,
) -> Settings:
    """The settings of this process; `given` (a command's options) beats environment beats `.env` beats the YAML file.

    The YAML file is `config`, else the one `AGENT_CONFIG` names, else the first `dial-agent.yaml` in the folders in
    which `.env` is looked for as well: `directory`, then `~/.config/dial-agent`. `directory` is the working directory
    unless given, `environ` the process's environment. `foreign`: another user may have written what is in `directory`.
    The clone then takes its place, and of its own two files only `HARMLESS` counts, where nothing else sets it;
    `Settings.ignored` names the rest.

    Raises:
        SettingsError: a file cannot be read, a name is unknown, a value is malformed, or two contradict each other; one
            line with the fix.
    """
    environment = _without_services(os.environ if environ is None else environ)
    sources = _sources(given or {}, environment, config, directory or Path.cwd(), foreign=foreign)
    known = list(settings_of(Settings, PREFIX))
    settings = _built(known, sources)
    _check_seconds(known, settings, sources)
    _check_places(known, settings, sources)
    in_console = (setting for setting in known if setting.console and setting.given_in(settings))
    settings._for_the_console = tuple(map(sources.where, in_console))
    names = {setting.variable for setting in known} | {DEFAULT_DOCUMENT, CONFIG_VARIABLE}
    settings._ignored = tuple(name for name in sources.ignored if name in names or name.upper() in names)
    settings._files = tuple(file.absolute() for file in sources.files)
    return settings


def _sources(
    given: Mapping[str, Any], environment: Mapping[str, str], config: Path | None, here: Path, *, foreign: bool
) -> SettingSources:
    folders = [_home(environment, "XDG_CONFIG_HOME", ".config")]
    if foreign and (CLONE / "pyproject.toml").is_file():  # otherwise it is an installed package
        folders.insert(0, CLONE)
    foreign = foreign and here.resolve() not in [folder.resolve() for folder in folders]
    folders = folders if foreign else list(dict.fromkeys([here, *folders]))
    dotenv, weakest, ignored = dict[str, str](), dict[str, Any](), list[str]()
    for folder in reversed(folders):
        variables = read_dotenv(folder / ".env")
        if CONFIG_VARIABLE in variables:
            variables[CONFIG_VARIABLE] = str(folder / variables[CONFIG_VARIABLE])
        dotenv |= variables
    stated = config or environment.get(CONFIG_VARIABLE)
    named = stated or dotenv.get(CONFIG_VARIABLE)
    documents = [here / named] if named else [folder / DEFAULT_DOCUMENT for folder in folders]
    document = next((file for file in documents if named or file.is_file()), None)
    files = [*filter(Path.is_file, (folder / ".env" for folder in folders)), *([document] if document else [])]
    if foreign:
        theirs = {name: value for name, value in read_dotenv(here / ".env").items() if value}
        ignored = [name for name in theirs if name not in HARMLESS]
        dotenv = {name: theirs[name] for name in theirs if name in HARMLESS} | dotenv
        if not named and (here / DEFAULT_DOCUMENT).is_file():
            content = read_document(here / DEFAULT_DOCUMENT)
            weakest = {key: value for key, value in content.items() if key.upper() in HARMLESS}
            ignored += [DEFAULT_DOCUMENT] if len(weakest) < len(content) else []
    weakest |= {key: _home(environment, *place) for key, place in HOMES.items()}
    translation = translated(read_document(document) if document else {}, str(named or DEFAULT_DOCUMENT))
    translation.expand({**dotenv, **environment})
    hidden = [here / ".env"] if foreign else []  # from the file tools as well
    astray = ("dotenv", *([] if stated else ["document"])) if foreign else ()
    return SettingSources(given, environment, dotenv, translation, weakest, [*files, *hidden], ignored, astray)


def _home(environment: Mapping[str, str], variable: str, below_home: str) -> Path:
    # A relative path would lead to a folder in a working directory that others made.
    home = Path(environment.get("HOME") or "")
    try:
        home = home if home.is_absolute() else Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's user that has a number only
        home = Path("/nonexistent")
    given = Path(environment.get(variable) or "")
    return (given if given.is_absolute() else home / below_home) / APPLICATION


def process_environment() -> dict[str, str]:
    """A copy of this process's environment, for the processes it starts and the templates it fills."""
    return dict(os.environ)


def _built(known: Sequence[Setting], sources: SettingSources) -> Settings:
    # Empty variables count as not set.
    names = {CONFIG_VARIABLE, *(setting.variable for setting in known)}
    found: list[Mapping[str, Any]] = []
    for label, variables in ((".env", sources.dotenv), ("the environment", sources.environment)):
        for name in variables:
            if name.upper().startswith(PREFIX) and name not in names:
                near = nearest(name.upper(), names)
                raise SettingsError(f"{name} in {label} is not a setting; the nearest is {near}. Rename or unset it.")
        values = {name.upper(): value for name, value in variables.items() if value}
        tree = Translation(label)
        for setting in known:
            if setting.variable in values:
                tree.put(setting.key, values[setting.variable], setting.variable)
        found.append(tree.content)
    try:
        return Settings(**reduce(merged, (sources.weakest, sources.document.content, *found, sources.given), {}))
    except ValidationError as error:
        raise SettingsError(_explained(error, known, sources)) from error


def _check_seconds(known: Sequence[Setting], settings: Settings, sources: SettingSources) -> None:
    # No time limit that a source gives may be above the one around it: it could never be reached. Defaults give way to
    # the limit of every call and to that of the run.
    by_key, around, most = {item.key: item for item in known}, RUN_SECONDS, settings.limits.run_seconds
    for setting in (by_key[key] for key in (TOOL_SECONDS, *ONE_TOOLS_SECONDS)):
        seconds: float | None = reduce(getattr, setting.path, cast("Any", settings))
        if seconds is None or not setting.given_in(settings):
            continue
        if seconds > most:
            raise SettingsError(
                f"{sources.where(setting)}: {seconds:g} seconds are never reached, because "
                f"{by_key[around].variable} is {most:g}. Lower the one or raise the other."
            )
        if setting.key == TOOL_SECONDS:
            around, most = TOOL_SECONDS, seconds


def _check_places(known: Sequence[Setting], settings: Settings, sources: SettingSources) -> None:
    for setting in known if sources.astray else ():
        if sources.of(setting) in sources.astray and _is_relative(reduce(getattr, setting.path, cast("Any", settings))):
            raise SettingsError(
                f"{sources.where(setting)}: a relative path would lead into the working directory, which another user "
                "may have written. Write the whole path."
            )


def _is_relative(value: Any) -> bool:
    if isinstance(value, McpServerSettings) and (command := Path(value.command or "")).name != value.command:
        value = [command, *value]  # without a slash it is looked for on the PATH
    if isinstance(value, list | tuple | BaseModel):
        return any(map(_is_relative, cast("Iterable[Any]", value)))
    text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    leads_somewhere = isinstance(value, Path) or text.endswith(".py") or text.startswith("sqlite:///")
    return leads_somewhere and not text.removeprefix("sqlite:///").startswith(("/", "~"))


def _explained(error: ValidationError, known: Sequence[Setting], sources: SettingSources) -> str:
    faults = error.errors(include_url=False)
    # A misspelt name first: what is missing is missing because of it.
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    path = tuple(str(part) for part in fault["loc"])
    setting = next((item for item in known if item.path == path[: len(item.path)]), None)
    reason = fault["msg"].removeprefix("Value error, ").partition(" or instance of")[0].rstrip(".")
    if setting is None:
        keys = {item.key for item in known} | {item.path[0] for item in known} | SECTIONS
        key, near = f"{sources.document.spelling(path)} in {sources.document.file}", nearest(".".join(path), keys)
        if fault["type"] == "extra_forbidden":
            return f"{key} is not a setting; the nearest is {near}. Rename or remove it."
        if fault["type"] == "value_error":  # two settings of a section contradict each other
            return f"{reason}. Correct it."
        return f"{key} must hold settings of its own, such as {near}. Correct it."
    rest, default = fault["loc"][len(setting.path) :], setting.field.get_default()
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
    where = f"{sources.where(setting, place)}:"
    if fault["type"] == "extra_forbidden":
        return f"{where} unknown. Rename or remove it."
    # The value itself is not shown: it may be a key, or an address that holds one.
    fix = f"Correct it, or remove it for the default {default}." if default else "Correct it, or remove it."
    return f"{where} {reason[0].lower()}{reason[1:]}. {fix}"


def _marks(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def merged(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one; `strong` wins, key by key at any depth."""
    result = dict(weak)
    for name, value in strong.items():
        inner = isinstance(result.get(name), dict) and isinstance(value, dict)
        result[name] = merged(result[name], value) if inner else value
    return result
