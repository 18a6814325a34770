"""One tree of settings: the sources of values, and the message for a wrong one."""

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import pytest

from task.errors import SettingsError
from task.settings import load_settings


def refusal(folder: Path, environ: Mapping[str, str] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(config, environ or {}, folder)
    return str(caught.value)


def test_a_commands_option_beats_environment_beats_dotenv_beats_yaml(tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text("port: 1\ncore_port: 1\nlimits: {steps: 1, run_tokens: 1000}\n")
    (tmp_path / ".env").write_text("AGENT_PORT=2\nAGENT_CORE_PORT=2\nPOSTGRES_PASSWORD=not-ours\n")
    environ = {"AGENT_PORT": "3", "AGENT_LIMITS__STEPS": "3", "XDG_DATA_HOME": "/data"}
    settings = load_settings(environ=environ, directory=tmp_path)
    assert (settings.port, settings.core_port) == (3, 2)
    assert (settings.limits.steps, settings.limits.run_tokens) == (3, 1000)
    assert settings.data_dir == Path("/data/dial-agent")
    assert load_settings(environ=environ, directory=tmp_path, given={"port": 4}).port == 4
    (tmp_path / "other.yaml").write_text("deployment_name: llama\n")
    other = load_settings(environ={"AGENT_CONFIG": "other.yaml", "HOME": "/home/someone"}, directory=tmp_path)
    assert (other.deployment_name, other.data_dir) == ("llama", Path("/home/someone/.local/share/dial-agent"))


def test_an_empty_variable_and_an_empty_key_mean_the_default(tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text("port:\nlimits:\n")
    settings = load_settings(environ={"DIAL_API_KEY": "", "DIAL_ENDPOINT": ""}, directory=tmp_path)
    assert (settings.dial_api_key, settings.port, settings.limits.tool_seconds) == (None, 5030, None)
    assert "dial_endpoint" not in settings.model_fields_set


def test_lists_and_maps_are_written_with_commas_or_as_json(tmp_path: Path) -> None:
    plain = {"AGENT_TOOL_PATHS": "a.py, pkg.mod:tool", "AGENT_CORE__HOST_MAP": "agent=127.0.0.1:5031, core=localhost"}
    as_json = {"AGENT_TOOL_PATHS": '["a.py", "pkg.mod:tool"]',
               "AGENT_CORE__HOST_MAP": '{"agent": "127.0.0.1:5031", "core": "localhost"}'}  # fmt: skip
    settings, same = (load_settings(environ=environ, directory=tmp_path) for environ in (plain, as_json))
    assert settings.tool_paths == same.tool_paths == ["a.py", "pkg.mod:tool"]
    assert settings.core.host_map == same.core.host_map == {"agent": "127.0.0.1:5031", "core": "localhost"}


@pytest.mark.fault("compose: services of Kubernetes whose names begin as our variables do")
def test_what_kubernetes_puts_into_the_environment_for_services_is_no_setting(tmp_path: Path) -> None:
    address = "tcp://10.0.0.7:80"
    services = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "AGENT_SERVICE_HOST": "10.0.0.7", "AGENT_SERVICE_PORT_HTTP": "80",
        "AGENT_PORT": address, "AGENT_PORT_80_TCP_ADDR": "10.0.0.7", "AGENT_CORE_SERVICE_HOST": "10.0.0.8",
        "AGENT_CORE_PORT": address, "AGENT_CORE_PORT_80_TCP": address,
    }  # fmt: skip
    assert load_settings(environ=services, directory=tmp_path).port == 5030
    assert load_settings(environ={**services, "AGENT_PORT": "5031"}, directory=tmp_path).port == 5031
    with pytest.raises(SettingsError, match="AGENT_CORE_HOST"):
        load_settings(environ={**services, "AGENT_CORE_HOST": "core"}, directory=tmp_path)


@pytest.mark.fault("start: malformed settings")
@pytest.mark.fault("start: a number of workers that is none, negative, not a number or too large")
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AGENT_LIMITS__STEPS", "many", "AGENT_LIMITS__STEPS in the environment: input should be a valid integer"),
        ("AGENT_PORT", "70000", "AGENT_PORT in the environment: input should be less than or equal to 65535"),
        ("AGENT_WORKERS", "0", "AGENT_WORKERS in the environment: input should be greater than or equal to 1"),
        ("AGENT_WORKERS", "-2", "AGENT_WORKERS in the environment: input should be greater than or equal to 1"),
        ("AGENT_WORKERS", "two", "AGENT_WORKERS in the environment: input should be a valid integer"),
        ("AGENT_WORKERS", "65", "AGENT_WORKERS in the environment: input should be less than or equal to 64"),
        ("AGENT_LOG_LEVEL", "loud", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ("DIAL_ENDPOINT", "localhost:8080", "DIAL_ENDPOINT in the environment: it must be an address such as http"),
        ("AGENT_CORE__HOST_MAP", "agent", "name=value pairs"),
        ("AGENT_TOOL_PATHS", "[1", "AGENT_TOOL_PATHS in the environment"),
        ("AGENT_PROFILE", "nope", "AGENT_PROFILE in the environment: input should be 'generic', 'openai',"),
        ("AGENT_LIMITS__STEP", "3", "is not a setting; the nearest is AGENT_LIMITS__STEPS"),
        ("AGENT_DIAL_ENDPOINT", "http://core", "is not a setting; the nearest is DIAL_ENDPOINT"),
    ],
)
def test_a_wrong_variable_is_named_with_the_fix(tmp_path: Path, variable: str, value: str, words: str) -> None:
    message = refusal(tmp_path, {variable: value})
    assert words in message
    assert variable in message
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.fault("start: malformed settings")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("limits: {stepz: 3}", "limits.stepz in dial-agent.yaml is not a setting; the nearest is limits.steps"),
        ("prot: 3", "prot in dial-agent.yaml is not a setting; the nearest is port"),
        ("limits: 3", "limits in dial-agent.yaml must hold settings of its own"),
        ("limits: {steps: x}", "limits.steps in dial-agent.yaml: input should be a valid integer"),
        ("- a\n- b", "must hold `name: value` lines"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_wrong_yaml_file_is_one_line_too(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "dial-agent.yaml").write_text(content)
    message = refusal(tmp_path)
    assert words in message
    assert "\n" not in message


@pytest.mark.fault(
    "start: a misspelt name, a wrong value or a missing one inside a rule, a server, a price or a deployment"
)
@pytest.mark.fault("start: an MCP server that is started by a command")
@pytest.mark.fault("mcp: a server with both an address and a command, or with keys of the other kind")
@pytest.mark.parametrize("source", ["AGENT_{} in the environment", "AGENT_{} in .env", "{} in dial-agent.yaml"])
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("permissions.rules", [{"action": "deny"}, {"action": "deny", "tol": "x"}],
         "permissions.rules[1].tol: unknown. Rename or remove it."),
        ("permissions.rules", [{"actoin": "deny"}], "permissions.rules[0].actoin: unknown."),
        ("permissions.rules", [{"action": "alow"}], "permissions.rules[0].action: input should be 'allow', 'deny' or"),
        ("permissions.rules", [{"action": "deny", "effects": ["reed"]}], "permissions.rules[0].effects[0]: input"),
        ("permissions.rules", [{}], "permissions.rules[0].action: field required."),
        ("permissions.rules", ["deny"], "permissions.rules[0]: input should be a valid dictionary."),
        ("permissions.rules", {"action": "deny"}, ": input should be a valid list."),
        ("mcp_servers", [{"name": "files", "command": "npx", "url": "http://a:1/"}],
         "mcp_servers[0]: a server has either a `url` or a `command`: give one of them"),
        ("mcp_servers", [{"name": "files"}], "mcp_servers[0]: a server has either a `url` or a `command`"),
        ("mcp_servers", [{"name": "files", "command": "npx", "headers": {"a": "b"}}],
         "mcp_servers[0]: `headers` does not go with a `command`: remove it"),
        ("mcp_servers", [{"name": "files", "url": "http://a:1/", "read": ["/srv"]}],
         "mcp_servers[0]: `read` does not go with a `url`: remove it"),
        ("mcp_servers", {"files": {"url": "http://files:1/mcp"}}, ": input should be a valid list."),
        ("mcp_servers", [{"name": "a", "url": "a:1"}], "mcp_servers[0].url: it must be an address such as"),
        ("mcp_servers", [{"name": "a", "url": "http://a:1/", "tokn": "sk-key"}], "mcp_servers[0].tokn: unknown."),
        ("mcp_servers", [{"url": "http://a:1/", "token": "sk-key"}], "mcp_servers[0].name: field required."),
        ("mcp_servers", [{"name": "a", "url": "http://a:1/", "token": 12345}], "mcp_servers[0].token: input should"),
        ("prices", {"gpt-4o": {"promt": 1, "completion": 2}}, "prices.gpt-4o.promt: unknown."),
        ("deployments.tools", [{"name": "a", "description": "b", "deploymnt": "c"}],
         "deployments.tools[0].deploymnt: unknown."),
    ],
)  # fmt: skip
def test_a_fault_inside_a_setting_is_named(tmp_path: Path, key: str, value: object, words: str, source: str) -> None:
    variable, environ = f"AGENT_{key.upper().replace('.', '__')}", dict[str, str]()
    if "environment" in source:
        environ[variable] = json.dumps(value)
    elif ".env" in source:
        (tmp_path / ".env").write_text(f"{variable}='{json.dumps(value)}'\n")
    else:
        whole = reduce(lambda inner, name: {name: inner}, reversed(key.split(".")), value)
        (tmp_path / "dial-agent.yaml").write_text(json.dumps(whole))
    message = refusal(tmp_path, environ)
    start = source.format(key if "yaml" in source else key.upper().replace(".", "__"))
    assert message.startswith(f"{start}: ")
    assert words in message
    assert ("\n" in message, "sk-key" in message, "12345" in message) == (False, False, False)


@pytest.mark.fault("configuration: time limits of which one is never reached")
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"AGENT_LIMITS__TOOL_SECONDS": "100", "AGENT_RAG__SECONDS": "900"},
            "AGENT_RAG__SECONDS in the environment: 900 seconds are never reached, because AGENT_LIMITS__TOOL_SECONDS "
            "is 100. Lower the one or raise the other.",
        ),
        ({"AGENT_LIMITS__TOOL_SECONDS": "2000"}, "because AGENT_LIMITS__RUN_SECONDS is 1500"),
        ({"AGENT_LIMITS__RUN_SECONDS": "20", "AGENT_INTERPRETER__SECONDS": "30"}, "AGENT_LIMITS__RUN_SECONDS is 20"),
        ({"AGENT_LIMITS__RUN_SECONDS": "20", "AGENT_DEPLOYMENTS__IMAGE_SECONDS": "30"}, "30 seconds are never"),
        ({"AGENT_LIMITS__TOOL_SECONDS": "20", "AGENT_LIMITS__READER_SECONDS": "30"}, "30 seconds are never"),
    ],
)
def test_a_limit_that_is_never_reached_stops_the_start(environ: dict[str, str], words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, environ)
    for name in ("AGENT_LIMITS__TOOL_SECONDS", "AGENT_LIMITS__RUN_SECONDS"):  # defaults give way
        assert load_settings(environ={name: "5"}, directory=tmp_path).rag.seconds == 900


@pytest.mark.fault("start: a list of servers with keys that is not JSON")
def test_keys_and_passwords_are_never_shown(tmp_path: Path) -> None:
    settings = load_settings(environ={"DIAL_API_KEY": "sk-key", "AGENT_STATE_SECRET": "sk-key"}, directory=tmp_path)
    not_json = refusal(tmp_path, {"AGENT_MCP_SERVERS": '[{"token": "sk-key", '})
    password = refusal(tmp_path, {"DIAL_ENDPOINT": "http://core:sk-key@evil.example"})
    assert not_json.startswith("AGENT_MCP_SERVERS in the environment: it is not valid JSON: ")
    assert "must not hold a user name" in password
    for text in (repr(settings), not_json, password):
        assert "sk-key" not in text


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "nowhere.yaml cannot be read: No such file" in refusal(tmp_path, config=tmp_path / "nowhere.yaml")
    (tmp_path / ".env").write_bytes(b"A=\xff\xfe\n")
    assert ".env cannot be read" in refusal(tmp_path)
