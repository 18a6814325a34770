"""The framework's configuration file: its keys, variables, and what is refused."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest

from task.console.configuration import ConfigurationManager
from task.conversation.message_manager import MessageManager
from task.errors import ConfigError, FrameworkError, SettingsError
from task.settings import Settings, load_settings

DOCUMENTED = """\
framework:
  name: Team Assistant
  version: 1.2.0
  log_level: debug
  log_file: logs/team.log
  debug_mode: true
  default_persona: critic
llm:
  provider: gemini
  gemini:
    api_key: ${GEMINI_KEY}
    model: gemini-2.5-flash
    temperature: 0.2
    max_output_tokens: 2048
    top_p: 0.9
    top_k: 40
  anthropic:
    api_key: ${ANTHROPIC_KEY}
    model: claude
    max_tokens: 1000
  azure_openai: {api_key: "${AZURE_KEY}", endpoint: "https://x.openai.azure.com", deployment_name: gpt}
teps:
  permission_required: true
  allowed_tools: [bash, file_read]
  secure_mode: true
  tool_timeout: 30000
  remember_confirmations: false
  bash: {allowed_commands: [ls, git], blocked_commands: [rm], working_directory: /srv}
  file_read: {allowed_extensions: [.md], max_file_size: 1000}
  file_write: {allowed_extensions: [.txt], max_file_size: 2000}
message_history:
  max_length: 50
  pruning_strategy: summarize
  prioritize_system_messages: false
  default_initial_messages: [{role: system, content: Be brief.}]
ui:
  color_enabled: false
  debug_mode: true
  show_timestamps: true
  prompt_symbol: "$ "
  assistant_prefix: "A "
  system_prefix: "S "
  error_prefix: "E "
  tool_prefix: "T "
dcm:
  context_definition_path: config/FRAMEWORK_CONTEXT.md
  max_document_size: 5000
  document_cache_enabled: true
  document_cache_size: 7
  allow_absolute_paths: true
  allow_parent_traversal: true
  section_identification_regex: "^# (.+)$"
advanced: {state_file: state.json, max_retries: 4, retry_delay_base: 2, icerc_timeout: 90}
"""


def settings(folder: Path, content: str, environ: Mapping[str, str] | None = None) -> Settings:
    (folder / "dial-agent.yaml").write_text(content, encoding="utf-8")
    return load_settings(environ=environ or {}, directory=folder)


def refusal(folder: Path, content: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(folder, content, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_documented_key_arrives_in_the_tree(tmp_path: Path) -> None:
    found = settings(tmp_path, DOCUMENTED, {"GEMINI_KEY": "g-1"})
    assert (found.backend, found.deployment_name, found.temperature) == ("openai", "gemini-2.5-flash", 0.2)
    assert found.openai_api_key is not None
    assert found.openai_api_key.get_secret_value() == "g-1"
    assert found.openai_base_url == "https://generativelanguage.googleapis.com/v1beta/openai"
    assert (found.llm.max_tokens, found.llm.top_p, found.llm.top_k) == (2048, 0.9, 40)
    assert (found.llm.attempts, found.llm.retry_seconds) == (5, 2)
    assert (found.log_level, found.console.name, found.console.version) == ("DEBUG", "Team Assistant", "1.2.0")
    assert (found.limits.tool_seconds, found.teps.confirmation_seconds) == (30, 90)
    assert found.teps.bash.allowed_commands == ["ls", "git"]
    assert found.log_file == Path("logs/team.log")
    assert (found.history.max_length, found.history.pruning_strategy) == (50, "summarize")
    assert (found.console.prompt_symbol, found.console.color_enabled, found.console.debug_mode) == ("$ ", False, True)
    assert (found.context.definition_path, found.context.persona) == (Path("config/FRAMEWORK_CONTEXT.md"), "critic")
    assert (found.context.max_document_bytes, found.context.cached_documents) == (5000, 7)


@pytest.mark.parametrize(
    ("content", "key", "value"),
    [
        ("llm: {provider: dial, dial: {base_url: http://core:1}}", "dial_endpoint", "http://core:1"),
        ("llm: {provider: azure_openai, endpoint: https://x.openai.azure.com/}", "openai_base_url",
         "https://x.openai.azure.com/openai/v1"),
        ("llm: {provider: anthropic, base_url: http://proxy:1}", "openai_base_url", "http://proxy:1"),
        ("llm: {provider: ollama, model: 'qwen3:8b'}", "backend", "ollama"),
        ("llm: {provider: ollama, base_url: http://box:11434}", "ollama_local", "http://box:11434"),
        ("llm: {provider: ollama, ollama: {num_ctx: 16384}}", "ollama.context_tokens", 16_384),
        ("llm: {provider: ollama, keep_alive: 30m}", "ollama.keep_alive", "30m"),
        ("llm: {attempts: 7}", "llm.attempts", 7),
        ("teps: {tool_timeout: 5000}", "limits.tool_seconds", 5),
        ("dcm: {document_cache_enabled: false, document_cache_size: 9}", "context.cached_documents", 0),
        ("ui: {debug_mode: true}\nframework: {debug_mode: true}", "console.debug_mode", True),
    ],
)  # fmt: skip
def test_a_documented_key_sets_its_setting(tmp_path: Path, content: str, key: str, value: object) -> None:
    found: object = settings(tmp_path, content)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value
    named = settings(tmp_path, content, {"DEPLOYMENT_NAME": "b", "AGENT_BACKEND": "dapr"})
    assert (named.deployment_name, named.backend) == ("b", "dapr"), "the environment still wins"


@pytest.mark.fault("configuration: two spellings that disagree")
@pytest.mark.fault("configuration: an unknown key or provider")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("message_histroy: {max_length: 5}", "is not a setting; the nearest is message_history"),
        ("message_history: {max_lenght: 5}", "message_history.max_lenght in dial-agent.yaml is not a setting"),
        ("message_history: {max_lenght: 5}", "the nearest is message_history.max_length"),
        ("message_history: {max_length: 0}", "message_history.max_length in dial-agent.yaml: input should be"),
        ("message_history: {pruning_strategy: forget}", "'remove_oldest' or 'summarize'"),
        ("teps: {bash: {alowed_commands: [ls]}}", "teps.bash.alowed_commands in dial-agent.yaml is"),
        ("teps: {bash: {alowed_commands: [ls]}}", "the nearest is teps.bash.allowed_commands"),
        ("teps: {tool_timeout: soon}", "teps.tool_timeout in dial-agent.yaml: it must be a number"),
        ("llm: {provider: gemni}", "there is no provider 'gemni'; the nearest is gemini"),
        ("llm: {provider: [1]}", "there is no provider"),
        ("llm: {provider: gemini, gemini: {modle: x}}", "llm.gemini.modle in dial-agent.yaml is not"),
        ("llm: {provider: gemini, anthropic: {modle: x}}", "llm.anthropic.modle"),
        ("teps_settings: {tool_timeout: 5000}", "teps_settings in dial-agent.yaml is not a setting"),
        ("llm: {temprature: 1}", "the nearest is llm.temperature"),
        ("llm: {model: a, deployment_name: b}", "llm.deployment_name in dial-agent.yaml set the same"),
        ("ui: {debug_mode: true}\nframework: {debug_mode: false}", "set the same thing differently"),
        ("dcm: {section_identification_regex: '('}", "dcm.section_identification_regex in dial-agent.yaml: it is no"),
        ("dcm: {section_identification_regex: '^##'}", "its first group must be the section's title"),
        ("ui: 5", "ui in dial-agent.yaml must hold settings of its own"),
        ("ui: {color_enabled: perhaps}", "ui.color_enabled in dial-agent.yaml: input should be a valid boolean"),
    ],
)  # fmt: skip
def test_errors_use_the_names_of_the_file(tmp_path: Path, content: str, words: str) -> None:
    assert words in refusal(tmp_path, content)


def test_variables_are_filled_in_once_from_the_environment_then_dotenv_and_never_read_as_yaml(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HOST=core\nPORT=1\n")
    content = "dial_endpoint: http://${HOST}:${PORT}\nsystem_prompt: costs $5, $${HOST}, ${TRICK}\nprofile: ${NONE}"
    found = settings(tmp_path, content, {"PORT": "2", "NONE": "", "TRICK": "${HOST}\nport: 1"})
    assert (found.dial_endpoint, found.profile, found.port) == ("http://core:2", None, 5030)
    assert found.system_prompt == "costs $5, ${HOST}, ${HOST}\nport: 1"


@pytest.mark.fault("configuration: a key in a value that is refused")
@pytest.mark.fault("configuration: a variable that is not set")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("llm: {openai: {api_key: '${NOWHERE}'}, provider: openai}", "llm.openai.api_key in dial-agent.yaml: the var"),
        ("tool_paths: ['${NOWHERE}']", "tool_paths in dial-agent.yaml: the variable NOWHERE is not set"),
        ("system_prompt: '${A-b}'", "system_prompt in dial-agent.yaml: a ${ names no variable"),
        ("system_prompt: '${A'", "names no variable"),
        ("llm: {provider: openai, temperature: '${KEY}'}", "llm.temperature"),
    ],
)  # fmt: skip
def test_a_missing_or_malformed_variable_is_named_with_its_key(tmp_path: Path, content: str, words: str) -> None:
    message = refusal(tmp_path, content, {"KEY": "sk-secret"})
    assert words in message
    assert "sk-secret" not in message


def bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for before, name in pairwise("abcdefghi"):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.fault("configuration: a YAML bomb, a cycle, deep nesting, a huge file")
@pytest.mark.fault("configuration: duplicate keys", case="twice")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bomb(), "holds more than 20,000 values"),
        ("a: &a [*a]", "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("a: " + "{a: " * 3000 + "}" * 3000, "nested too deeply"),
        ("port: 1\nhost: x\nport: 2", "names 'port' twice, again in line 3"),
        ("limits:\n  steps: 1\n  steps: 2", "names 'steps' twice"),
        ("x: '" + "y" * 300_000 + "'", "has more than 262,144 bytes"),
        ("a: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("a: 2026-13-99", "is not valid YAML"),
        ("? [a]\n: b", "is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
    ],
    ids=["bomb", "cycle", "brackets", "maps", "twice", "twice-inside", "huge", "object", "date", "list-key", "two"],
)  # fmt: skip
def test_files_that_grow_loop_or_contradict_themselves_are_refused(tmp_path: Path, content: str, words: str) -> None:
    started = process_time()
    assert words in refusal(tmp_path, content)
    assert process_time() - started < 5


def test_anchors_and_merged_maps_still_work(tmp_path: Path) -> None:
    found = settings(tmp_path, "rag: &r {k: 5}\nlimits: {steps: 3}\ncontext: {persona: &p critic}\nsystem_prompt: *p\n")
    assert (found.rag.k, found.system_prompt) == (5, "critic")
    merged = "llm: {openai: &o {temperature: 1}, provider: gemini, gemini: {<<: *o, temperature: 0.5}}"
    assert settings(tmp_path, merged).temperature == 0.5


def managed(folder: Path, content: str) -> ConfigurationManager:
    path = folder / "config.yaml"
    path.write_text(content, encoding="utf-8")
    return ConfigurationManager(str(path))


def test_the_configuration_manager_is_a_view_of_the_tree_and_loads_other_files(tmp_path: Path) -> None:
    manager = managed(tmp_path, "port: 1")
    assert manager.get_llm_provider() == "dial"
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read") as caught:
        manager.load_config(str(tmp_path / "nowhere.yaml"))
    assert isinstance(caught.value, FrameworkError)
    assert manager.settings.port == 1
    with pytest.raises(ConfigError, match="the nearest is port"):
        managed(tmp_path, "prot: 1")
    (tmp_path / "other.yaml").write_text(DOCUMENTED.replace("${GEMINI_KEY}", "g-1"))
    loaded = manager.load_config(str(tmp_path / "other.yaml"))
    assert set(loaded) == {"framework", "llm", "teps", "message_history", "ui", "dcm", "advanced"}
    assert (loaded["framework"]["default_persona"], loaded["advanced"]["max_retries"]) == ("critic", 4)
    assert loaded["dcm"]["document_cache_size"] == 7
    assert manager.get_llm_provider() == "gemini"
    given, teps = manager.get_llm_settings(), manager.get_teps_settings()
    assert (given["model"], given["api_key"], given["max_tokens"]) == ("gemini-2.5-flash", "g-1", 2048)
    assert manager.get_context_definition_path() == "config/FRAMEWORK_CONTEXT.md"
    assert (teps["tool_timeout"], teps["bash"]["blocked_commands"]) == (30_000, ["rm"])
    assert manager.get_ui_settings()["prompt_symbol"] == "$ "
    history = MessageManager(manager.get_message_history_settings())
    assert [message["content"] for message in history.get_messages()] == ["Be brief."]


@pytest.mark.parametrize("llm", [
    "provider: openai", "provider: anthropic", "provider: ollama",
    "provider: azure_openai, endpoint: https://x.openai.azure.com", "provider: openai, base_url: http://localhost:1/v1",
])  # fmt: skip
def test_the_provider_is_reported(tmp_path: Path, llm: str) -> None:
    provider = llm.removeprefix("provider: ").partition(",")[0]
    assert managed(tmp_path, f"llm: {{{llm}}}").get_llm_provider() == provider
