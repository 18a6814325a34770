"""The command line: exit codes, one line for what is wrong, and a quick help."""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from typer.testing import CliRunner

from task.cli import MEANINGS, Exit
from task.cli.addresses import key_for
from task.cli.app import app
from task.cli.core_config import (
    NEWEST,
    OLDEST,
    OWN_CONFIG,
    Version,
    config_fragment,
    parsed_version,
    render_config,
    replace_file,
)
from task.conversation.messages import PICTURES
from task.documents.extract import BY_TYPE
from task.errors import SettingsError
from task.local.core.config import CoreApplication, Features, Model, ProjectKey, Toolset
from task.settings import Settings
from task.settings.installation import installation_secret
from tests.support.compose import FILLED, container_environment

ROOT = Path(__file__).parents[2]


def dial_agent(home: Path, *arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environ}
    return subprocess.run(
        [sys.executable, "-m", "task", *arguments],
        cwd=home, env=variables, input=stdin, capture_output=True, encoding="utf-8", timeout=30,
    )  # fmt: skip


def test_help_is_shown_at_once_and_lists_every_exit_code_as_the_page_does(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = dial_agent(tmp_path, "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2  # 0.3 s on an idle machine
    assert shown.returncode == 0
    for command in ("up", "serve", "core", "ask", "doctor", "tools", "core-config"):
        assert f" {command} " in shown.stdout
    page = (ROOT / "docs" / "tutorial.md").read_text()
    assert set(MEANINGS) == set(Exit)
    for code, meaning in MEANINGS.items():
        assert f"{code} {meaning}" in " ".join(shown.stdout.split())
        assert f"| {code} | {meaning} |" in page
    assert dial_agent(tmp_path, "--version").stdout == f"dial-agent {version('dial-general-purpose-agent')}\n"


def test_help_is_whole_and_drawn_without_rich(tmp_path: Path) -> None:
    for command in ([], ["store"]):
        shown = dial_agent(tmp_path, *command, "--help", COLUMNS="80", PYTHONPROFILEIMPORTTIME="1")
        assert "..." not in shown.stdout.replace("[ARGS]...", "")
        assert "| rich" not in " ".join(shown.stderr.split())


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_wrong_setting_stops_a_command_with_one_line_and_exit_code_2(tmp_path: Path, command: str) -> None:
    shown = dial_agent(tmp_path, command, AGENT_LIMITS__STEP="3")
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert line.startswith("AGENT_LIMITS__STEP in the environment is not a setting; the nearest is AGENT_LIMITS__STEPS")


def test_an_unknown_command_and_an_empty_question_are_usage_errors(tmp_path: Path) -> None:
    unknown = dial_agent(tmp_path, "frobnicate")
    assert (unknown.returncode, "frobnicate" in unknown.stderr) == (2, True)
    empty = dial_agent(tmp_path, "ask", "-", stdin="\n")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr.splitlines() == ["The question is empty; write it in quotes after `ask`, or try `ask --demo`."]


@pytest.mark.parametrize("file", ["nowhere.csv", "folder", "x" * 300])
def test_a_file_that_cannot_be_attached_is_a_usage_error(tmp_path: Path, file: str) -> None:
    (tmp_path / "folder").mkdir()
    shown = dial_agent(tmp_path, "ask", "Hi", "--file", file)
    assert (shown.returncode, shown.stdout, "--file" in shown.stderr) == (2, "", True)


def test_this_installations_key_is_for_this_machine_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert key_for(settings, "http://127.0.0.1:8080") == key_for(settings, "http://localhost:9")
    with pytest.raises(SettingsError, match="DIAL_API_KEY is not set"):
        key_for(settings, "https://dial.example")


@pytest.mark.fault("compose: a variable of docker compose or of Core's configuration that is not set")
def test_core_config_fills_in_the_environment_and_the_dotenv_file_or_names_what_is_missing(tmp_path: Path) -> None:
    missing = dial_agent(tmp_path, "core-config", OPENAI_API_KEY="k")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("DIAL_API_KEY: not set, but config.json needs it")
    (tmp_path / ".env").write_text("OPENAI_API_KEY=from-dotenv\n")
    given = ("--core-version", "0.25", "--agent", "http://other:1/")
    shown = dial_agent(tmp_path, "core-config", *given, DIAL_API_KEY='quo"ted')
    config = json.loads(shown.stdout)
    assert list(config["keys"]) == ['quo"ted']
    assert ("from-dotenv" in shown.stdout, "${" in shown.stdout, "toolsets" in config) == (True, False, False)
    assert config["applications"]["general-purpose-agent"]["endpoint"].startswith("http://other:1/openai/")


def test_the_fragment_for_an_existing_core_needs_no_key_and_has_this_agents_address(tmp_path: Path) -> None:
    shown = dial_agent(tmp_path, "core-config", "--fragment", AGENT_PORT="6001")
    fragment = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert fragment.keys() == {"applications", "applicationTypeSchemas", "roles"}
    agent = "http://127.0.0.1:6001/openai/deployments/general-purpose-agent"
    application = fragment["applications"]["general-purpose-agent"]
    assert application["endpoint"] == f"{agent}/chat/completions"
    assert application["features"]["configurationEndpoint"] == f"{agent}/configuration"
    assert fragment["roles"] == {"default": {"limits": {"general-purpose-agent": {}}}}
    assert "localhost:3001" not in shown.stdout
    assert "gpt-4o" not in shown.stdout
    older = dial_agent(tmp_path, "core-config", "--fragment", "--core-version", "0.25").stdout
    features = json.loads(older)["applications"]["general-purpose-agent"]["features"]
    assert application["features"].keys() - features.keys() == NEWER
    [kind], [old] = fragment["applicationTypeSchemas"], json.loads(older)["applicationTypeSchemas"]
    assert kind["dial:applicationTypeSchemaEndpoint"] == f"{agent}/application-schema"
    assert kind.keys() ^ old.keys() == {"dial:applicationTypeSchemaEndpoint", "dial:applicationTypeEditorUrl"}
    context = kind["properties"]["context"]
    context["items"]["dial:meta"] = context["dial:meta"]  # without which 0.25 shares no file of a list
    assert (old["dial:applicationTypeEditorUrl"], old["properties"]) == (
        "http://127.0.0.1:5030/editor",
        kind["properties"],
    )


@pytest.mark.fault("model: a fragment of something that is no configuration, or for an address that is none")
@pytest.mark.parametrize("arguments", [("--agent", "host:5030"), ("--core-version", "0.24")])
def test_an_address_or_a_version_that_cannot_be_used_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shown = dial_agent(tmp_path, "core-config", *arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert arguments[0] in shown.stderr


@pytest.mark.fault("model: a fragment of something that is no configuration, or for an address that is none")
def test_a_fragment_of_something_else_is_refused() -> None:
    odd_types = ("5", '{"a": 1}', "[5]", '[{"properties": []}]', '[{"properties": {"a": 1}}]')
    odd = [f'{{"applications": {{}}, "roles": {{}}, "applicationTypeSchemas": {kinds}}}' for kinds in odd_types]
    for content in (
        *("[]", "{", "{}", '{"applications": {"a": 1}, "roles": {}}', '{"applications": {}, "roles": []}'),
        *odd,
    ):
        with pytest.raises(SettingsError, match=r"odd\.json is not a configuration"):
            config_fragment(content, "http://agent:1", Path("odd.json"), (0, 25))


def test_a_written_core_config_is_readable_by_its_owner_only_unless_another_mode_is_given(tmp_path: Path) -> None:
    text = render_config(OWN_CONFIG, {"DIAL_API_KEY": "k", "OPENAI_API_KEY": "o"})
    for mode in (0o600, 0o644):
        replace_file(tmp_path / "config.json", text, mode)
        assert (tmp_path / "config.json").stat().st_mode & 0o777 == mode
    with pytest.raises(SettingsError, match="--output"):
        replace_file(tmp_path / "nowhere" / "config.json", text)


CONFIG: dict[str, Any] = json.loads(OWN_CONFIG.read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads(OWN_CONFIG.with_name("schema.json").read_text(encoding="utf-8"))
KEYS = {"DIAL_API_KEY": "a-key-of-ours", "OPENAI_API_KEY": "a-key-of-theirs"}
NEWER = {"assistantAttachmentsInRequestSupported", "supportCommentInRateResponse"}  # of features


def test_core_lists_the_agent_as_people_find_it_in_the_marketplace() -> None:
    agent = CONFIG["applications"]["general-purpose-agent"]
    assert agent["displayName"] == "General Purpose Agent"
    for offer in ("file extraction", "RAG", "web search", "Python code interpreter", "image generation"):
        assert offer in agent["description"]
    assert agent["iconUrl"]


@pytest.mark.fault("file: a type of file that the chat does not offer")
def test_people_can_attach_every_kind_of_file_that_the_agent_reads_or_shows_to_a_model() -> None:
    printed = json.loads(render_config(OWN_CONFIG, {"OPENAI_API_KEY": "one", "DIAL_API_KEY": "two"}))
    for config in (CONFIG, printed):
        declared = config["applications"]["general-purpose-agent"]["inputAttachmentTypes"]
        assert sorted(declared) == sorted({*PICTURES, *BY_TYPE})
        assert sorted(config["models"]["gpt-4o"]["inputAttachmentTypes"]) == sorted(PICTURES)


def test_the_configuration_holds_no_key_but_names_where_it_comes_from() -> None:
    keys = [*CONFIG["keys"], *(up["key"] for model in CONFIG["models"].values() for up in model["upstreams"])]
    assert keys
    assert all(re.fullmatch(r"\$\{env:[A-Z_]+\}", key) for key in keys)
    given = container_environment("core-config", FILLED)
    assert {key.removeprefix("${env:").rstrip("}") for key in keys} <= set(given)


def rendered(version: Version = NEWEST) -> dict[str, Any]:
    return json.loads(render_config(OWN_CONFIG, KEYS, version=version))


def fields(name: str) -> set[str]:
    return set(SCHEMA["$defs"][name]["properties"])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("application", CoreApplication),
        ("features", Features),
        ("key", ProjectKey),
        ("model", Model),
        ("toolset", Toolset),
    ],
)
def test_what_local_core_reads_is_what_the_schema_allows(name: str, model: type[BaseModel]) -> None:
    assert {to_camel(field) for field in model.model_fields} - {"name"} <= fields(name)


def test_the_file_starts_every_core_since_046_as_it_is() -> None:
    assert rendered((0, 46)) == rendered() == json.loads(render_config(OWN_CONFIG, KEYS))
    assert rendered((0, 45)) != rendered()


@pytest.mark.parametrize("version", [(0, minor) for minor in range(25, 50)])
def test_the_printed_file_is_a_configuration_of_its_version(version: Version) -> None:
    config = rendered(version)
    assert all(since <= version for since in used(config, SCHEMA))
    assert config["applications"]["general-purpose-agent"]["features"]["temperatureSupported"] is True
    assert config["models"]["gpt-4o"]["features"]["temperatureSupported"] is True
    [kind] = config["applicationTypeSchemas"]
    assert kind["properties"]
    assert ("dial:applicationTypeSchemaEndpoint" in kind, "dial:applicationTypeEditorUrl" in kind) == (
        version >= (0, 41), version < (0, 41),
    )  # fmt: skip


@pytest.mark.fault("compose: a version of Core that is none or too old, and a field that an older Core refuses")
def test_for_an_older_core_the_file_has_no_field_that_it_refuses_and_keeps_all_others() -> None:
    older, newer = rendered(OLDEST), rendered()
    assert newer.keys() - older.keys() == {"toolsets"}
    features = [config["applications"]["general-purpose-agent"].pop("features") for config in (older, newer)]
    assert features[1].keys() - features[0].keys() == NEWER
    newer.pop("toolsets")
    for config in (older, newer):
        config.pop("applicationTypeSchemas")
    assert older == newer


def used(value: Any, node: Any) -> Iterator[Version]:
    """The versions since which Core knows the fields of the value."""
    if isinstance(value, list) and isinstance(node, dict):
        for item in value:
            yield from used(item, node.get("items"))
    if not isinstance(value, dict) or not isinstance(node, dict):
        return
    node = {**node, **SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]} if "$ref" in node else node
    yield parsed_version(node.get("x-since", "0.25"))
    for name, inner in value.items():
        yield from used(inner, node.get("properties", {}).get(name, node.get("additionalProperties")))


@pytest.mark.fault("compose: a version of Core that is none or too old, and a field that an older Core refuses")
@pytest.mark.parametrize("version", ["0.24", "newest", "1", "0.46; rm", ""])
def test_a_version_that_core_never_had_or_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"not a version of DIAL Core such as 0\.48, at least 0\.25"):
        parsed_version(version)


FAULTS: list[tuple[str, str, str]] = [
    ('"type": "chat",', '"type": "chat"', "is not valid JSON"),
    ('"displayName": "GPT 4o"', '"displayNam": "GPT 4o"', "models.gpt-4o: .*'displayNam' was unexpected"),
    ('"maxTotalTokens": 128000', '"maxTotalTokens": "many"', r"models\.gpt-4o\.limits\.maxTotalTokens: not valid"),
    ('"gpt-4o": { "minute"', '"gpt-4": { "minute"', r"roles\.default\.limits\.gpt-4: no such deployment.*gpt-4o"),
    ('"project": "GENERAL-PURPOSE-AGENT", ', "", "keys.…: not valid"),
    ('"http://agent:5030/openai', '"agent:5030/openai', "general-purpose-agent.endpoint: not valid"),
    ('"displayName": "GPT 4o"', '"displayName": "GPT \udcff"', "cannot be read as UTF-8 text"),
    ("applicationTypeDisplayName", "applicationTypDisplayName", "applicationTypeSchemas.0: .*not valid"),
]


@pytest.mark.fault("compose: a malformed configuration of Core")
@pytest.mark.fault("compose: an unknown model in Core's configuration")
@pytest.mark.parametrize(("correct", "wrong", "report"), FAULTS, ids=[fault[2][:30] for fault in FAULTS])
def test_a_faulty_configuration_is_one_line_with_the_file_the_place_and_the_fix(
    correct: str, wrong: str, report: str, tmp_path: Path
) -> None:
    text = OWN_CONFIG.read_text(encoding="utf-8")
    assert correct in text
    path = tmp_path / "config.json"
    path.write_text(text.replace(correct, wrong, 1), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SettingsError) as refused:
        render_config(path, KEYS)
    line = str(refused.value)
    assert re.search(report, line)
    assert line.startswith(str(path))
    assert ("\n" in line, "Correct it" in line or "Choose among" in line) == (False, True)
    assert not any(key in line for key in KEYS.values())


COMPLETED = {"mod": "model", "model pu": "pull", "up --core": "--core-port", "runs s": "show", "nothing": ""}


@pytest.mark.parametrize(("typed", "completed"), COMPLETED.items())
def test_a_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    words = {"_TYPER_COMPLETE_ARGS": f"dial-agent {typed}", "COMP_WORDS": f"dial-agent {typed}"}
    words |= {"COMP_CWORD": str(len(typed.split())), "_DIAL_AGENT_COMPLETE": "complete_bash"}
    assert CliRunner().invoke(app, prog_name="dial-agent", env=words).stdout.strip() == completed


def test_init_writes_what_its_options_name_and_keeps_what_is_there(tmp_path: Path) -> None:
    kept = tmp_path / "core_config" / "config.json"
    kept.parent.mkdir()
    kept.write_text("mine")
    shown = CliRunner().invoke(app, ["init", str(tmp_path), "--core"]).stdout
    assert (f"kept     {kept}" in shown, kept.read_text()) == (True, "mine")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["config.json", "schema.json", "settings.json"]
    CliRunner().invoke(app, ["init", str(tmp_path)])
    for name in ("docker-compose.yml", ".env.example", "kubernetes/values.yaml", "compose/balancer.conf"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.fault("installation: a folder for configuration files that cannot be written")
def test_a_folder_that_init_cannot_write_is_named() -> None:
    failure = CliRunner().invoke(app, ["init", "/proc/nowhere", "--core"]).exception
    assert isinstance(failure, SettingsError)
    assert str(failure) == (
        "/proc/nowhere/core_config/config.json cannot be written: No such file or directory. Choose another folder."
    )


@pytest.mark.fault("installation: a disk that is full in the middle of a configuration file")
def test_half_a_file_that_init_has_written_does_not_pass_for_the_users(tmp_path: Path) -> None:
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); from task.cli import main; main()"
    )
    command = [sys.executable, "-c", limited, "init", tmp_path, "--core"]
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "config.json cannot be written: File too large" in failed.stderr
    CliRunner().invoke(app, ["init", str(tmp_path), "--core"])
    assert (tmp_path / "core_config/config.json").read_bytes() == (ROOT / "core_config/config.json").read_bytes()


def test_a_secret_of_the_installation_is_random_private_and_stays(tmp_path: Path) -> None:
    (tmp_path / "half").touch()
    with pytest.raises(SettingsError, match="is empty; delete it"):
        installation_secret(tmp_path / "half")
    secret = installation_secret(tmp_path / "one")
    assert (len(secret) >= 32, installation_secret(tmp_path / "one")) == (True, secret)
    assert installation_secret(tmp_path / "two") != secret
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
