"""`dial-agent core-config`: the configuration of a real DIAL Core, filled in, checked and fit for its version."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from task.cli.addresses import base_url, core_is_ours
from task.cli.options import Output, read_settings, write
from task.errors import SettingsError
from task.settings import process_environment
from task.settings.sources import read_dotenv

_PACKAGED = Path(__file__).with_name("deployment")  # setup.py puts it into the wheel
DEPLOYMENT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2]
OWN_CONFIG = DEPLOYMENT / "core_config" / "config.json"
TEMPLATE_AGENT = "http://agent:5030"  # the service of docker-compose.yml
Version = tuple[int, int]
NEWEST: Version = (0, 49)
OLDEST: Version = (0, 25)
NEEDS_NO_EDITOR: Version = (0, 41)
TYPES = "applicationTypeSchemas"
app = typer.Typer(add_completion=False)
_VARIABLE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


@app.command()
def core_config(
    template: Annotated[Path | None, typer.Argument(help="Configuration to use instead of the product's own.")] = None,
    output: Output = None,
    mode: Annotated[
        str, typer.Option(metavar="OCTAL", help="Permissions of the written file, which contains keys.")
    ] = "600",
    fragment: Annotated[
        bool,
        typer.Option(
            "--fragment", help="Only what an existing Core needs: the application, its type, its roles' limits."
        ),
    ] = False,
    agent: Annotated[str | None, typer.Option(metavar="URL", help="Where that Core reaches this agent.")] = None,
    core_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Leave out what a Core of this version does not know.")
    ] = None,
) -> None:
    """Print the configuration for a real DIAL Core, with values from the environment."""
    if agent is not None and not agent.startswith(("http://", "https://")):
        raise typer.BadParameter("takes an address such as http://host:5030", param_hint="--agent")
    try:
        version = parsed_version(core_version) if core_version else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--core-version") from None
    path = template or OWN_CONFIG
    if fragment:
        settings = read_settings(None, foreign=False)
        address = agent or base_url(settings.host, settings.port)
        version = version or (OLDEST if settings.errors_in_stream else NEWEST)
        text, bits = config_fragment(_read(path), address.rstrip("/"), path, version), 0o644
        if agent is None and not core_is_ours(settings):
            note = f"{settings.dial_endpoint} must reach this agent at {address}; --agent names another address."
            write(note, err=True)
    else:
        try:
            bits = int(mode, 8)
        except ValueError:
            raise typer.BadParameter(f"{mode!r} is not an octal file mode such as 644", param_hint="--mode") from None
        text = render_config(path, dotenv_environment(), agent or TEMPLATE_AGENT, version or NEWEST)
    if output is None:
        write(text)
    else:
        replace_file(output, text, bits)


def parsed_version(text: str) -> Version:
    """`0.37` or `0.37.2` as a pair.

    Raises:
        ValueError: it is not a version of Core that the product works with.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?(?:-rc)?", text)
    if found is None or (version := (int(found[1]), int(found[2]))) < OLDEST:
        raise ValueError(f"{text!r} is not a version of DIAL Core such as 0.48, at least 0.25")
    return version


def config_fragment(template: str, agent: str, path: Path = OWN_CONFIG, version: Version = NEWEST) -> str:
    """The applications of a configuration with their types, and what its roles may do, for the agent at this address.

    Raises:
        SettingsError: the template is not a configuration.
    """
    try:
        config = json.loads(template.replace(TEMPLATE_AGENT, json.dumps(agent)[1:-1]))
        applications: dict[str, Any] = config["applications"]
        limits = {
            role: {name: limit for name, limit in entry["limits"].items() if name in applications}
            for role, entry in config["roles"].items()
        }
        roles = {role: {"limits": own} for role, own in limits.items() if own}
        types = config.get(TYPES, [])
        for entry in (*applications.values(), *types):
            for name in ("iconUrl", "dial:applicationTypeIconUrl"):  # on the theme server of docker-compose.yml
                entry.pop(name, None)
        return _for_version({"applications": applications, TYPES: types, "roles": roles}, _schema(path), version, agent)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} is not a configuration with applications and roles. Correct it.") from error


def render_config(
    path: Path, environment: Mapping[str, str], agent: str = TEMPLATE_AGENT, version: Version = NEWEST
) -> str:
    """The file's text for a Core of that version, with every `${env:NAME}` and the agent's address replaced.

    Raises:
        SettingsError: the file cannot be read, a variable is not set, or the result is not a configuration of Core.
    """
    text = _read(path)
    missing = sorted({name for name in _VARIABLE.findall(text) if not environment.get(name)})
    if missing:
        raise SettingsError(f"{', '.join(missing)}: not set, but {path.name} needs it. Set it and try again.")
    filled = _VARIABLE.sub(lambda found: json.dumps(environment[found[1]])[1:-1], text)
    try:
        document = json.loads(filled.replace(TEMPLATE_AGENT, json.dumps(agent.rstrip("/"))[1:-1]))
    except json.JSONDecodeError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}. Correct it.") from error
    schema = _schema(path)
    _check(document, schema, path)
    return _for_version(document, schema, version, agent.rstrip("/"))


def _check(document: Any, schema: dict[str, Any], path: Path) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    if fault := best_match(Draft202012Validator(schema).iter_errors(document)):
        # The message may quote the value, and values can be keys.
        steps = [str(step) for step in fault.absolute_path]
        place = ".".join([*steps[:1], "…", *steps[2:]] if steps[:1] == ["keys"] else steps) or "the document"
        reason = fault.message if fault.validator == "additionalProperties" else f"not valid ({fault.validator})"
        raise SettingsError(f"{path}: {place}: {reason}. Correct it; schema.json describes every field.")
    deployments = {name for section in ("applications", "models", "toolsets") for name in document.get(section, {})}
    for role, entry in document.get("roles", {}).items():
        for name in entry.get("limits", {}):
            if name not in deployments:
                known = ", ".join(sorted(deployments))
                raise SettingsError(f"{path}: roles.{role}.limits.{name}: no such deployment. Choose among: {known}.")


def _for_version(document: dict[str, Any], schema: Mapping[str, Any], version: Version, agent: str) -> str:
    fitting = _pruned(document, schema, schema, version)
    for kind in fitting.get(TYPES, ()) if version < NEEDS_NO_EDITOR else ():
        kind.setdefault("dial:applicationTypeEditorUrl", f"{agent}/editor")
        for rule in kind.get("properties", {}).values():
            if isinstance(items := rule.get("items"), dict) and items.get("dial:file"):
                items["dial:meta"] = rule.get("dial:meta")  # without it 0.25 does not share the files of a list
    return json.dumps(fitting, indent=2)


def _pruned(value: Any, node: Any, schema: Mapping[str, Any], version: Version) -> Any:
    # Without the fields that a Core of this version does not know: one of them in an entry, and it refuses the file.
    if isinstance(value, list) and isinstance(node, dict):
        return [_pruned(item, node.get("items"), schema, version) for item in cast("list[Any]", value)]
    if not isinstance(value, dict) or not isinstance(node, dict):
        return value
    rules, kept = cast("dict[str, Any]", node), dict[str, Any]()
    if "$ref" in rules:
        rules = {**rules, **schema["$defs"][rules["$ref"].rpartition("/")[2]]}
    for name, inner in cast("dict[str, Any]", value).items():
        known = rules.get("properties", {}).get(name, rules.get("additionalProperties"))
        if not isinstance(known, dict) or parsed_version(known.get("x-since", "0.25")) <= version:
            kept[name] = _pruned(inner, known, schema, version)
    return kept


def _schema(path: Path) -> dict[str, Any]:
    # Beside the configuration, as in the image; the project's own for another folder's.
    beside, own = path.with_name("schema.json"), OWN_CONFIG.with_name("schema.json")
    return json.loads(_read(beside if beside.is_file() else own))


def replace_file(path: Path, text: str, mode: int = 0o600, *, option: str = "--output") -> None:
    """Replace `path`, which `option` names, at once; without another `mode` only its owner may read it.

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
        raise SettingsError(f"{option}: {path} cannot be written: {error.strerror}. Choose another file.") from error


def dotenv_environment() -> dict[str, str]:
    """The environment, over the variables of `.env` in the working directory."""
    return {**read_dotenv(Path(".env")), **process_environment()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as UTF-8 text: {error}. Correct it, or name another.") from error
