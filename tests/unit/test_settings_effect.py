"""Every setting has its effect, and those of the console are named where they have none."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from task.settings import Settings, load_settings
from task.settings.sources import settings_of

ROOT = Path(__file__).parents[2]
TASK = ROOT / "task"
# It shows all settings in the documented shape, whether they have an effect or not.
VIEW = TASK / "console" / "configuration.py"
PASSED_ON = {("interpreter",), ("store",), ("context",), ("http",)}  # as a whole
CONSOLE = {setting.key for setting in settings_of(Settings, "") if setting.console}
# The documented views that `MessageManager` and `UserInterfaceManager` are made from read these as a whole.
VIEWED = ("console.", "history.")
# Each of the framework's own settings with the test that shows its effect.
TEPS, SEEN = "tests/integration/test_teps.py", "tests/integration/test_console_settings.py"
EFFECTS = {
    f"{SEEN}::test_the_console_looks_as_its_settings_say": """console.name console.version console.prompt_symbol
        console.assistant_prefix console.system_prefix console.error_prefix console.tool_prefix console.show_timestamps
        console.color_enabled console.debug_mode""",
    f"{SEEN}::test_the_state_file_keeps_the_conversation_for_the_next_console": "console.state_file",
    f"{SEEN}::test_summarize_asks_the_model_once_and_the_next_turn_begins_with_the_summary":
        "history.pruning_strategy history.summary_tokens history.max_length",
    f"{SEEN}::test_system_messages_go_with_the_old_ones_where_the_settings_say_so":
        "history.prioritize_system_messages",
    f"{SEEN}::test_messages_of_the_settings_begin_the_conversation": "history.default_initial_messages",
    f"{SEEN}::test_always_is_offered_where_confirmations_are_remembered":
        "teps.remember_confirmations teps.confirmation_seconds",
    f"{SEEN}::test_a_tool_of_the_console_has_the_documented_timeout": "limits.tool_seconds",
    f"{SEEN}::test_the_log_goes_to_its_file_at_its_level": "log_level log_file",
    f"{TEPS}::test_without_permission_required_all_runs_silently_and_every_decision_is_in_the_trace":
        "teps.permission_required",
    f"{TEPS}::test_out_of_secure_mode_files_elsewhere_are_reached_after_a_question": "teps.secure_mode",
    f"{TEPS}::test_commands_run_in_the_folder_of_the_settings": "teps.bash.working_directory",
    f"{TEPS}::test_what_may_not_run_is_refused_before_anybody_is_asked": """teps.allowed_tools
        teps.bash.allowed_commands teps.bash.blocked_commands teps.file_read.allowed_extensions
        teps.file_read.max_file_size teps.file_write.allowed_extensions teps.file_write.max_file_size""",
    "tests/integration/test_context_door.py::"
    "test_a_conversation_over_the_limit_is_shortened_for_the_model_and_whole_in_the_chat": "history.max_tokens",
}  # fmt: skip
ALL = {setting.key for setting in settings_of(Settings, "")}


def read_keys() -> set[str]:
    """The dotted keys of which every part is an attribute that code outside the settings' own package reads."""
    files = [path for path in TASK.rglob("*.py") if path != VIEW and path.parent.name != "settings"]
    files.append(TASK / "settings" / "tree.py")  # its properties read settings
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    known = settings_of(Settings, "")
    return {item.key for item in known if read.issuperset(item.path) or item.path[:-1] in PASSED_ON}


def test_every_setting_is_read() -> None:
    unread = ALL - read_keys()
    assert {key for key in unread if not (key in CONSOLE and key.startswith(VIEWED))} == set(), "nothing reads these"


def test_each_of_the_frameworks_settings_has_a_test_of_its_effect() -> None:
    tested = {key for keys in EFFECTS.values() for key in keys.split()}
    assert tested == {key for key in ALL if key.startswith(("teps.", *VIEWED))} | {
        "log_level", "log_file", "limits.tool_seconds",
    }  # fmt: skip
    for test in EFFECTS:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


@pytest.mark.fault("configuration: a setting without effect in a door")
@pytest.mark.parametrize(
    ("document", "environ", "named"),
    [
        ("", {}, ()),
        ("log_level: debug\nteps: {allowed_tools: [calculator]}", {}, ()),
        ("ui: {show_timestamps: true}", {}, ("ui.show_timestamps in dial-agent.yaml",)),
        ("teps: {secure_mode: true}", {}, ("teps.secure_mode in dial-agent.yaml",)),
        ("", {"AGENT_CONSOLE__NAME": "Desk"}, ("AGENT_CONSOLE__NAME in the environment",)),
        ("", {"AGENT_CONSOLE__NAME": ""}, ()),
        ("advanced: {icerc_timeout: 9}\nteps: {bash: {working_directory: /srv}}", {},
         ("advanced.icerc_timeout in dial-agent.yaml",
          "teps.bash.working_directory in dial-agent.yaml")),
    ],
)  # fmt: skip
def test_what_somebody_set_for_the_console_is_named_as_its_source_spells_it(
    tmp_path: Path, document: str, environ: Mapping[str, str], named: tuple[str, ...]
) -> None:
    (tmp_path / "dial-agent.yaml").write_text(document, encoding="utf-8")
    assert load_settings(environ=environ, directory=tmp_path).for_the_console == named
