"""Read settings from an environment, a `.env` file and a YAML file, and report faults in one line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource
from pydantic_settings.sources.utils import parse_env_vars

from task.errors import SettingsError
from task.settings.aliases import SECTIONS

if TYPE_CHECKING:
    from task.settings.tree import Settings

CONFIG_VARIABLE = "AGENT_CONFIG"
SERVICE_HOST = "_SERVICE_HOST"
ONE_TOOLS_SECONDS = ("interpreter.seconds", "rag.seconds", "deployments.image_seconds", "limits.reader_seconds")
LISTED_TOOLS = ("mcp_servers", "deployments.tools")  # each tool of the list may have seconds of its own
SettingPath = tuple[str, ...]
T = TypeVar("T", bound=BaseSettings)


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
    def secret(self) -> bool:
        return SecretStr in (self.field.annotation, *get_args(self.field.annotation))

    @property
    def console(self) -> bool:
        """Whether it has an effect in the console only."""
        return isinstance(self.field.json_schema_extra, dict) and "console" in self.field.json_schema_extra

    def given_in(self, settings: BaseModel) -> bool:
        """Whether a source has a value for it."""
        inner: Any = settings
        for name in self.path:
            if name not in inner.model_fields_set:
                return False
            inner = getattr(inner, name)
        return True


@dataclass(frozen=True, slots=True)
class Sources:
    """The raw values by their origin, strongest first.

    `spelled` has the document's own name of a key where it is not the tree's; `expanded` are the keys that hold
    variables, whose values are never shown.
    """

    given: Mapping[str, Any]
    environment: Mapping[str, str]
    dotenv: Mapping[str, str]
    document: Mapping[str, Any]
    document_name: str
    spelled: Mapping[str, str]
    expanded: Collection[str] = ()

    def where(self, setting: Setting) -> str:
        """The setting's name as its strongest source spells it, and that source."""
        if setting.path[0] in self.given:
            return f"{setting.variable} on the command line"
        if setting.variable in self.environment:
            return f"{setting.variable} in the environment"
        if setting.variable in self.dotenv:
            return f"{setting.variable} in .env"
        return f"{self.spelling(setting.path)} in {self.document_name}"

    def named(self, setting: Setting) -> str:
        """The dotted key, as the document has it where its value comes from there."""
        variables = (*self.environment, *self.dotenv)
        from_document = setting.path[0] not in self.given and setting.variable not in variables
        return self.spelling(setting.path) if from_document else setting.key

    def spelling(self, path: SettingPath) -> str:
        """The dotted key as the document has it."""
        for length in range(len(path), 0, -1):
            if own := self.spelled.get(".".join(path[:length])):
                return ".".join((own, *path[length:]))
        return ".".join(path)


def settings_of(model: type[BaseModel], prefix: str, path: SettingPath = ()) -> Iterator[Setting]:
    """Every leaf of the tree, in the order of its fields; a validation alias is a variable without prefix."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from settings_of(inner, prefix, (*path, name))
            continue
        bare = field.validation_alias == name
        variable = name.upper() if bare else prefix + "__".join((*path, name)).upper()
        yield Setting((*path, name), variable, field)


def read_dotenv(path: Path) -> dict[str, str]:
    """The file's variables as they stand, without expansion; nothing where there is no file.

    Raises:
        SettingsError: the file cannot be read.
    """
    if not path.is_file():
        return {}
    try:
        values = dotenv_values(path, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name} cannot be read: {error}. Save it as UTF-8 text, or remove it.") from error
    return {name: value for name, value in values.items() if value is not None}


def without_services(environment: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """The environment without what Kubernetes puts there for each service of the namespace whose name begins as our
    variables do: `AGENT_SERVICE_HOST`, `AGENT_PORT=tcp://…` and others for a service `agent`."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return environment
    hosts = [name for name in environment if name.startswith(prefix) and name.endswith(SERVICE_HOST)]
    services = "|".join(re.escape(name.removesuffix(SERVICE_HOST)) for name in hosts)
    if not services:
        return environment
    injected = re.compile(rf"({services})_(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)")
    address = re.compile(rf"({services})_PORT")
    return {
        name: value
        for name, value in environment.items()
        if not (injected.fullmatch(name) or (address.fullmatch(name) and "://" in value))
    }


def build(model: type[T], sources: Sources, prefix: str, extra: Mapping[str, Any]) -> T:
    """The settings from all sources; `extra` is weaker than any of them.

    Raises:
        SettingsError: an unknown name or a malformed value.
    """
    known = list(settings_of(model, prefix))
    for label, variables in (("the environment", sources.environment), (".env", sources.dotenv)):
        _refuse_unknown(label, variables, known, prefix)
    merged = _merged(extra, sources.document)
    for variables in (sources.dotenv, sources.environment):
        merged = _merged(merged, _VariablesSource(model, variables)())
    merged = _merged(merged, sources.given)
    try:
        return model(**merged)
    except ValidationError as error:
        raise SettingsError(_explained(error, known, sources)) from error


def for_the_console(settings: BaseModel, sources: Sources, prefix: str) -> Iterator[str]:
    """The settings that a source gives and that have an effect in the console only, each with that source."""
    for setting in settings_of(type(settings), prefix):
        if setting.console and setting.given_in(settings):
            yield sources.where(setting)


def check_seconds(settings: Settings, sources: Sources, prefix: str) -> None:
    """Check that no time limit that a source gives is above the one around it, so that it could never be reached.

    Defaults give way to the limit of every call and to that of the run.

    Raises:
        SettingsError: a limit is above the one around it.
    """
    known = {item.key: item for item in settings_of(type(settings), prefix)}

    def value(setting: Setting) -> Any:
        found: Any = settings
        for name in setting.path:
            found = getattr(found, name)
        return found

    given = [(known[key], value(known[key]), "") for key in ONE_TOOLS_SECONDS if known[key].given_in(settings)]
    for setting in (known[key] for key in LISTED_TOOLS):
        items = enumerate(value(setting))
        given += [(setting, item.seconds, f"[{n}].seconds") for n, item in items if "seconds" in item.model_fields_set]
    around, most = known["limits.run_seconds"], settings.limits.run_seconds
    if settings.limits.tool_seconds is not None:
        given.insert(0, (known["limits.tool_seconds"], settings.limits.tool_seconds, ""))
    for setting, seconds, place in given:
        if seconds > most:
            inside = f" {sources.named(setting)}{place}:" if place else ""
            raise SettingsError(
                f"{sources.where(setting)}:{inside} {seconds:g} seconds are never reached, because "
                f"{around.variable} is {most:g}. Lower the one or raise the other."
            )
        if setting.key == "limits.tool_seconds":
            around, most = setting, seconds


class _VariablesSource(EnvSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], variables: Mapping[str, str]) -> None:
        self._variables = variables
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return parse_env_vars(self._variables, self.case_sensitive, ignore_empty=True)


def _refuse_unknown(label: str, variables: Mapping[str, str], known: list[Setting], prefix: str) -> None:
    names = {CONFIG_VARIABLE, *(setting.variable for setting in known)}
    for name in variables:
        if name.upper().startswith(prefix) and name not in names:
            nearest = _nearest(name.upper(), names)
            raise SettingsError(f"{name} in {label} is not a setting; the nearest is {nearest}. Rename or unset it.")


def _explained(error: ValidationError, known: list[Setting], sources: Sources) -> str:
    faults = error.errors(include_url=False)
    # A misspelt name first: what is missing is missing because of it.
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    path = tuple(str(part) for part in fault["loc"])
    setting = next((item for item in known if item.path == path[: len(item.path)]), None)
    if setting is None:
        keys = {item.key for item in known} | {item.path[0] for item in known} | SECTIONS
        key, nearest = sources.spelling(path), _nearest(".".join(path), keys)
        if fault["type"] == "extra_forbidden":
            return f"{key} in {sources.document_name} is not a setting; the nearest is {nearest}. Rename or remove it."
        if fault["type"] == "value_error":  # two settings of a section contradict each other
            return f"{fault['msg'].removeprefix('Value error, ')}. Correct it."
        return f"{key} in {sources.document_name} must hold settings of its own, such as {nearest}. Correct it."
    place = _Place.of(setting, fault["loc"][len(setting.path) :])
    inside = f" {sources.named(setting)}{place.path}:" if place.path else ""
    if fault["type"] == "extra_forbidden":
        return f"{sources.where(setting)}:{inside} unknown{place.suggestion()} Rename or remove it."
    hidden = place.secret or setting.key in sources.expanded
    return f"{sources.where(setting)}:{inside} {_reason(fault, place)}{_got(fault, hidden=hidden)}. {_fix(setting)}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a setting's value: its path, the section it is in where there is one, and whether it is secret."""

    path: str
    name: str
    section: type[BaseModel] | None
    secret: bool

    @classmethod
    def of(cls, setting: Setting, rest: Sequence[str | int]) -> _Place:
        section, secret = _section_in(setting.field.annotation), setting.secret
        found, inner = section, section
        for part in rest:
            found = inner
            if found is not None and part in found.model_fields:
                annotation = found.model_fields[str(part)].annotation
                inner, secret = _section_in(annotation), SecretStr in (annotation, *get_args(annotation))
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
        return cls(path, str(rest[-1]) if rest else "", found, secret)

    def suggestion(self) -> str:
        names = list(self.section.model_fields) if self.section is not None else []
        nearest = get_close_matches(self.name, names, n=1)
        return f", did you mean {nearest[0]}?" if nearest else f"; there are {', '.join(names)}."


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _reason(fault: Any, place: _Place) -> str:
    if fault["type"] == "list_type" and place.section is not None:
        return "it must be a list of mappings"
    if fault["type"] == "model_type" and place.section is not None:
        names = [name for name, field in place.section.model_fields.items() if field.is_required()]
        return f"it must be a mapping with {' and '.join(names)}"
    reason = fault["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{reason[0].lower()}{reason[1:]}"


def _got(fault: Any, *, hidden: bool) -> str:
    # A mapping may hold a key, and an address a password.
    text = str(fault["input"])
    shown = not hidden and not isinstance(fault["input"], dict | list) and text[:1] not in "[{" and "@" not in text
    return f" (got {text[:80]!r})" if shown else ""


def _fix(setting: Setting) -> str:
    default = setting.field.get_default()
    return f"Correct it, or remove it for the default {default}." if default else "Correct it, or remove it."


def _nearest(name: str, names: set[str]) -> str:
    return get_close_matches(name, sorted(names), n=1, cutoff=0.0)[0]


def _merged(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(weak)
    for name, value in strong.items():
        below = merged.get(name)
        both = isinstance(below, dict) and isinstance(value, dict)
        merged[name] = _merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value)) if both else value
    return merged
