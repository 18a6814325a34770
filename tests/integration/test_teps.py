"""TEPS on its own, as the framework's reference uses it: tools under their documented names, and questions."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from task.closing import run_blocking
from task.console.configuration import ConfigurationManager
from task.console.conversation import OWNER
from task.console.teps import TEPSManager, ToolHandlerInterface
from task.console.tool_request_handler import ToolRequestHandler
from task.console.ui_manager import PermissionQuestion, UserInterfaceManager
from task.conversation.inputs import Answer
from task.errors import TEPSInitError, ToolExecutionError
from task.permissions.decisions import Effect
from task.store.trace_records import Trace
from tests.support.command_console import Person

YES, NO, ALWAYS = Answer(True), Answer(False, "not today"), Answer(True, always=True)
Teps = Callable[..., TEPSManager]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("It rains.\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return folder


@pytest.fixture
def teps(project: Path) -> Iterator[Teps]:
    with ExitStack() as opened:

        def made(person: UserInterfaceManager | None = None, **settings: Any) -> TEPSManager:
            manager = TEPSManager(settings, ui=person)
            manager.initialize()
            opened.callback(manager.shutdown)
            return manager

        yield made


class Overlapping(Person):
    """Counts questions that are open at the same time, and gives a second one the time to come."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.most, self.second = 0, 0, threading.Barrier(2)

    def ask_permission(
        self, question: PermissionQuestion, seconds: float, answered_elsewhere: Callable[[], bool]
    ) -> Answer | None:
        self.open += 1
        self.most = max(self.most, self.open)
        with suppress(threading.BrokenBarrierError):
            self.second.wait(2)
        self.open -= 1
        return Answer(question.request["parameters"]["command"] == "touch a")


def request(tool: str, icerc: Any = None, **parameters: Any) -> dict[str, Any]:
    return {"request_id": "req123", "tool_name": tool, "parameters": parameters, "icerc": icerc or {}}


def traces(manager: TEPSManager) -> list[Trace]:
    store = run_blocking(manager.product.services.store.get)
    run_blocking(store.writer.flush)
    return [
        run_blocking(store.traces.get, OWNER, item.trace_id) for item in run_blocking(store.traces.list, OWNER).items
    ]


def decisions(manager: TEPSManager) -> list[tuple[str, str]]:
    """Each decision's tool and verdict, oldest first."""
    return [(made.tool, made.verdict) for trace in reversed(traces(manager)) for made in trace.decisions]


@pytest.mark.parametrize("configured", [False, True])
def test_the_references_example_runs_as_it_stands(project: Path, configured: bool) -> None:
    settings = {"permission_required": True, "allowed_tools": ["file_read", "web_search"]}
    teps_manager = TEPSManager(ConfigurationManager().get_teps_settings() if configured else settings)
    teps_manager.initialize()
    risk = {"level": "low", "scope": "File system read-only operation", "details": "None"}
    icerc = {"intent": "Read", "command": "Read '/path'", "expected_outcome": "Content", "risk_assessment": risk}
    tool_result = teps_manager.execute_tool(request("file_read", icerc, file_path=str(project / "notes.txt")))
    teps_manager.shutdown()
    assert tool_result == {
        "request_id": "req123",
        "tool_name": "file_read",
        "success": True,
        "content": {"file_path": "notes.txt", "content": "It rains.\n"},
        "error": None,
    }


@pytest.mark.fault("teps: a request or a result in the shape of the framework's first version")
@pytest.mark.parametrize(
    ("tool", "parameters", "content"),
    [
        ("bash", {"command": "cat notes.txt; echo no >&2"}, {"stdout": "It rains.\n", "stderr": "no\n"}),
        ("file_read", {"file_path": "picture.png"}, {"file_path": "picture.png", "content": "", "is_binary": True}),
        ("file_write", {"file_path": "new/é.txt", "content": "né"}, {"status": "success", "bytes_written": 3}),
        ("executeBashCommand", {"command": "pwd", "working_directory": "sub"}, {"stdout": "{project}/sub\n"}),
        ("readFile", {"file_path": "notes.txt"}, {"content": "It rains.\n"}),
        ("writeFile", {"file_path": "a.txt", "content": ""}, {"bytes_written": 0}),
        ("fs_list", {}, "notes.txt\npicture.png\nsub/"),
        ("calculator", {"expression": "6*7"}, "42"),
    ],
)
def test_results_have_the_documented_shapes(
    project: Path, teps: Teps, tool: str, parameters: dict[str, Any], content: Any
) -> None:
    (project / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (project / "sub").mkdir()
    result = teps(permission_required=False).execute_tool(request(tool, **parameters))
    assert (result["tool_name"], result["success"], result["error"]) == (tool, True, None)
    found = result["content"]
    if isinstance(content, dict):
        found = {name: value for name, value in found.items() if name in content}
        content = {
            name: value.format(project=project) if isinstance(value, str) else value for name, value in content.items()
        }
    assert found == content


@pytest.mark.fault("teps: a tool that takes too long, or a command that fails")
def test_a_command_that_fails_keeps_what_it_printed(teps: Teps) -> None:
    result = teps(permission_required=False).execute_tool(request("bash", command="echo a; exit 3"))
    assert (result["success"], result["content"]["stdout"], result["content"]["exit_code"]) == (False, "a\n", 3)
    assert result["error"] == "The command ended with exit code 3."


LIE = {"intent": "Look around", "expected_outcome": "Nothing changes", "risk_assessment": {"level": "low"}}


@pytest.mark.fault("teps: a brief that lies about the risk")
@pytest.mark.fault("teps: a no, no answer in time, or nobody at a terminal")
@pytest.mark.parametrize("brief", [LIE, f"Intent: {LIE['intent']}\nExpected Outcome: {LIE['expected_outcome']}"])
def test_a_card_has_the_models_words_and_the_risk_that_was_computed(project: Path, teps: Teps, brief: Any) -> None:
    person = Person(NO)
    result = teps(person).execute_tool(request("bash", brief, command="rm -rf notes.txt"))
    [question] = person.asked
    assert (question.card["intent"], question.card["command"]) == ("Look around", "rm -rf notes.txt")
    assert question.card["expected_outcome"] == "Nothing changes"
    assert question.card["risk_assessment"]["level"] == "high"
    assert question.request["tool_name"] == "bash"
    assert question.request["parameters"] == {"command": "rm -rf notes.txt"}
    assert (result["success"], result["error"]) == (False, "User declined execution: not today.")
    assert (project / "notes.txt").exists()


@pytest.mark.fault("teps: a call beyond what was always allowed, or once more after it was allowed once")
def test_an_approved_call_runs_once_and_both_decisions_are_in_the_trace(project: Path, teps: Teps) -> None:
    person = Person(YES)
    manager = teps(person)
    assert manager.execute_tool(request("bash", command="echo x >> out.txt"))["success"] is True
    assert (project / "out.txt").read_text() == "x\n"
    assert decisions(manager) == [("shell_run", "deferred"), ("shell_run", "allowed")]
    again = manager.execute_tool(request("bash", command="echo x >> out.txt"))
    assert (again["success"], len(person.asked), (project / "out.txt").read_text()) == (False, 2, "x\n")


@pytest.mark.fault("teps: a call beyond what was always allowed, or once more after it was allowed once")
def test_always_covers_what_its_card_says_and_nothing_else(teps: Teps) -> None:
    person, asked = Person(ALWAYS), list[int]()
    manager = teps(person)
    for command in ("git status --short", "git status", "git push"):
        manager.execute_tool(request("bash", command=command))
        asked.append(len(person.asked))
    assert asked == [1, 1, 2]
    assert "git status" in person.asked[0].grant


@pytest.mark.fault("teps: a no, no answer in time, or nobody at a terminal")
def test_no_answer_in_time_is_a_no_and_without_a_terminal_nobody_is_asked(project: Path, teps: Teps) -> None:
    person, write = Person(), request("file_write", file_path="a.txt", content="x")
    result = teps(person, confirmation_seconds=0.5).execute_tool(write)
    assert person.patience == [0.5]
    assert result["error"].startswith("User declined execution: no answer came within 0.5 s")
    assert teps().execute_tool(write)["success"] is False
    assert not (project / "a.txt").exists()


BASH = {"blocked_commands": ["rm"], "allowed_commands": ["ls", "cat", "rm"]}


@pytest.mark.fault(
    "teps: a blocked command, a path or link outside the folder, a tool, an ending or a size that is not allowed"
)
@pytest.mark.parametrize(
    ("settings", "tool", "parameters", "sentence"),
    [
        ({"bash": BASH}, "bash", {"command": "rm x"}, "Command 'rm' is explicitly blocked by security policy"),
        ({"bash": BASH}, "bash", {"command": "ls; curl x"}, "Command 'curl' is not in the allowed commands list"),
        ({}, "file_read", {"file_path": "../x"}, "Access to path '../x' is denied. Operation confined to project"),
        ({}, "file_read", {"file_path": "/etc/passwd"}, "Access to path '/etc/passwd' is denied. Operation confined"),
        ({}, "file_read", {"file_path": "out"}, "Access to path 'out' is denied. Operation confined to project"),
        ({}, "file_write", {"file_path": "~/x", "content": ""}, "Access to path '~/x' is denied. Operation confined"),
        ({}, "bash", {"command": "ls", "working_directory": ".."}, "Access to path '..' is denied. Operation confined"),
        ({}, "bash", {"command": "ls", "working_directory": "nowhere"}, "There is no folder 'nowhere'"),
        ({"allowed_tools": ["file_read"]}, "bash", {"command": "ls"}, "shell_run is not among the allowed tools"),
        ({"file_read": {"allowed_extensions": [".md"]}}, "file_read", {"file_path": "notes.txt"}, "allowed file ext"),
        ({"file_read": {"allowed_extensions": ["md"]}}, "fs_edit",
         {"path": "notes.txt", "old_text": "It", "new_text": "He"}, "allowed file extensions (.md)"),
        ({"file_read": {"max_file_size": 5}}, "file_read", {"file_path": "notes.txt"}, "too large (10 bytes, at"),
        ({"file_write": {"allowed_extensions": ["md"]}}, "file_write", {"file_path": "a.sh", "content": ""}, "(.md)"),
        ({"file_write": {"max_file_size": 5}}, "file_write", {"file_path": "a", "content": "1" * 6}, "(6 bytes, at mo"),
        ({}, "file_read", {"file_path": "dial-agent.yaml"}, "holds the product's own settings"),
        ({}, "file_read", {}, "'path' is a required property"),
        ({}, "no_such_tool", {}, "There is no tool 'no_such_tool'"),
    ],
)  # fmt: skip
def test_what_may_not_run_is_refused_before_anybody_is_asked(
    project: Path, teps: Teps, settings: dict[str, Any], tool: str, parameters: dict[str, Any], sentence: str
) -> None:
    (project / "dial-agent.yaml").write_text("log_level: info\n")
    (project / "out").symlink_to(project.parent)
    person = Person(YES)
    result = teps(person, **settings).execute_tool(request(tool, **parameters))
    assert (result["success"], person.asked) == (False, [])
    assert sentence in result["error"]


@pytest.mark.parametrize("extensions", [[".TXT"], ["txt", "md"], ["*.txt"], ["*"]])
def test_endings_are_written_in_any_way(teps: Teps, extensions: list[str]) -> None:
    manager = teps(permission_required=False, file_read={"allowed_extensions": extensions})
    assert manager.execute_tool(request("file_read", file_path="notes.txt"))["success"] is True


@pytest.mark.fault("teps: a search for what may not be read")
def test_the_contents_of_files_that_may_not_be_read_are_not_found_either(project: Path, teps: Teps) -> None:
    (project / "key.pem").write_text("It is secret.\n")
    found = teps(file_read={"allowed_extensions": ["txt"]}).execute_tool(request("fs_search", pattern="It "))["content"]
    assert found.splitlines()[0] == "notes.txt:1: It rains."
    assert "secret" not in found


def test_without_permission_required_all_runs_silently_and_every_decision_is_in_the_trace(
    project: Path, teps: Teps
) -> None:
    person = Person()
    manager = teps(person, permission_required=False, bash={"blocked_commands": ["curl"]})
    assert manager.execute_tool(request("bash", command="touch made"))["success"] is True
    assert manager.execute_tool(request("file_write", file_path="a.txt", content="x"))["success"] is True
    assert manager.execute_tool(request("bash", command="curl http://127.0.0.1:1"))["success"] is False
    assert (person.asked, (project / "made").exists()) == ([], True)
    assert decisions(manager) == [("shell_run", "allowed"), ("fs_write", "allowed"), ("shell_run", "denied")]


def test_out_of_secure_mode_files_elsewhere_are_reached_after_a_question(project: Path, teps: Teps) -> None:
    outside = project.parent / "outside.txt"
    outside.write_text("Elsewhere.")
    person = Person(YES, YES)
    manager = teps(person, secure_mode=False)
    read = manager.execute_tool(request("file_read", file_path="../outside.txt"))
    assert read["content"] == {"file_path": str(outside), "content": "Elsewhere."}
    assert manager.execute_tool(request("file_write", file_path=str(outside), content="Here."))["success"] is True
    assert (outside.read_text(), len(person.asked)) == ("Here.", 2)
    assert manager.execute_tool(request("file_read", file_path="notes.txt"))["success"] is True
    assert len(person.asked) == 2


def test_commands_run_in_the_folder_of_the_settings(project: Path, teps: Teps) -> None:
    (project / "sub").mkdir()
    manager = teps(permission_required=False, bash={"working_directory": "sub"})
    assert manager.execute_tool(request("bash", command="pwd"))["content"]["stdout"] == f"{project}/sub\n"
    inner = manager.execute_tool(request("bash", command="pwd", working_directory="."))
    assert inner["content"]["stdout"] == f"{project}\n"


@pytest.mark.fault("teps: settings that cannot be used")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alowed_tools": []}, "allowed_tools"),
        ({"tool_timeout": "soon"}, "tool_timeout"),
        ({"bash": {"working_directory": "/nowhere"}}, "there is no folder /nowhere"),
        ({"bash": {"working_directory": ".."}}, "there is no folder .."),
        ({"bash": {"blocked_commands": ["a | b"]}}, "no command begins with"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(project: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TEPSInitError, match=words) as caught:
        TEPSManager(settings).initialize()
    assert "\n" not in str(caught.value)


@pytest.mark.fault("teps: a request that is none, a service that is not initialised, or a call inside an event loop")
def test_a_request_that_cannot_be_run_is_an_error_with_a_sentence(teps: Teps) -> None:
    manager, command = teps(), request("bash", command="ls")
    wrong: list[dict[str, Any]] = [{}, {"tool_name": ""}]
    wrong += [{"tool_name": "bash", "parameters": parameters} for parameters in ([], {"command": {1}})]
    for each in wrong:
        with pytest.raises(ToolExecutionError):
            manager.execute_tool(each)
    with pytest.raises(ToolExecutionError, match="initialize"):
        TEPSManager({}).execute_tool(command)

    async def called() -> None:
        manager.execute_tool(command)

    with pytest.raises(RuntimeError, match="event loop is running"):
        asyncio.run(called())


SEARCH = '''
from task.tools.declare import tool

@tool
def duckduckgo_web_search(query: str, max_results: int = 5) -> str:
    """Search the web."""
    return f"{max_results} results for {query}"
'''


def test_web_search_is_the_search_servers_tool_with_the_documented_arguments(
    project: Path, teps: Teps, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "search.py").write_text(SEARCH)
    monkeypatch.setenv("AGENT_TOOL_PATHS", str(project / "search.py"))
    manager = teps(allowed_tools=["web_search"])
    result = manager.execute_tool(request("web_search", query="otters", num_results=2))
    assert (result["tool_name"], result["content"]) == ("web_search", "2 results for otters")
    assert decisions(manager) == [("duckduckgo_web_search", "allowed")]


def test_without_permission_required_a_rule_of_the_operators_still_asks(
    teps: Teps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PERMISSIONS__RULES", '[{"action": "ask", "tool": "file_write"}]')
    person = Person(YES)
    manager = teps(person, permission_required=False)
    assert manager.execute_tool(request("file_write", file_path="a.txt", content="x"))["success"] is True
    assert manager.execute_tool(request("bash", command="ls"))["success"] is True
    assert [question.request["tool_name"] for question in person.asked] == ["file_write"]


class Lamp(ToolHandlerInterface):
    """Switch the lamp in a room."""

    parameters: ClassVar = {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}

    def execute(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters["room"] == "cellar":
            raise RuntimeError("no lamp")
        return {"room": parameters["room"], "on": True}


class Sensor(Lamp):
    """Says whether the lamp in a room is on."""

    effects = frozenset({Effect.READ})


@pytest.mark.fault("teps: a handler that fails, gets wrong arguments, or takes the name of a tool")
def test_a_handler_runs_by_its_name_through_the_same_gate(teps: Teps) -> None:
    person = Person(NO, YES, YES)
    manager = teps(person)
    manager.register_handler("lamp", Lamp())
    manager.register_handler("sensor", Sensor())
    refused, done, failed, wrong = (
        manager.execute_tool(request("lamp", **parameters))
        for parameters in ({"room": "hall"}, {"room": "hall"}, {"room": "cellar"}, {})
    )
    assert (refused["success"], done["success"], failed["success"], wrong["success"]) == (False, True, False, False)
    assert json.loads(done["content"]) == {"room": "hall", "on": True}
    assert manager.execute_tool(request("sensor", room="hall"))["success"] is True
    assert len(person.asked) == 3  # not for what only reads
    assert "no lamp" not in failed["error"]
    assert "'room' is a required property" in wrong["error"]


@pytest.mark.fault("teps: a handler that fails, gets wrong arguments, or takes the name of a tool")
def test_a_name_that_is_taken_is_refused(teps: Teps) -> None:
    manager = teps()
    manager.register_handler("lamp", Lamp())
    for name in ("calculator", "bash", "fs_read", "lamp"):
        with pytest.raises(TEPSInitError, match=f"already a tool '{name}'"):
            manager.register_handler(name, Lamp())


def test_the_handler_makes_messages_of_results_and_a_card_of_a_programs_own_is_put_to_the_person(teps: Teps) -> None:
    person = Person(YES, NO)
    manager = teps(person)
    handler = ToolRequestHandler(manager)
    message = handler.format_tool_result_as_message(
        handler.process_tool_request(request("file_read", file_path="notes.txt"))
    )
    assert (message["role"], message["tool_name"], message["tool_call_id"]) == ("tool_result", "file_read", "req123")
    assert json.loads(message["content"]) == {"file_path": "notes.txt", "content": "It rains.\n"}
    card = {"intent": "Greet", "command": "say hello", "expected_outcome": "Joy", "risk_assessment": {"level": "low"}}
    assert [manager.request_permission(card) for _ in range(2)] == [True, False]
    assert (manager.answer, person.asked[0].card["command"]) == (NO, "say hello")


@pytest.mark.fault("teps: a request or a result in the shape of the framework's first version")
@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"success": False, "error": "User declined execution."}, "Error: User declined execution."),
        ({"success": False, "content": {"exit_code": 1}, "error": "failed"}, 'Error: failed\n{"exit_code": 1}'),
        ({"success": True, "content": "42"}, "42"),
        ({"status": "success", "data": {"stdout": "a"}}, '{"stdout": "a"}'),
        ({"status": "declined_by_user", "data": {}}, "User declined execution."),
        ({"status": "error", "data": {"error_message": "no such file"}}, "Error: no such file"),
    ],
)
def test_results_of_either_version_become_messages(result: dict[str, Any], content: str) -> None:
    message = ToolRequestHandler(TEPSManager({})).format_tool_result_as_message(result)
    assert message["content"] == content


def test_calls_of_several_threads_are_asked_one_after_the_other_and_get_their_own_answers(
    teps: Teps, project: Path
) -> None:
    person = Overlapping()
    manager = teps(person)
    with ThreadPoolExecutor(2) as threads:
        calls = [request("bash", command=command) for command in ("touch a", "rm notes.txt")]
        made, denied = threads.map(manager.execute_tool, calls)
    assert (made["success"], denied["success"]) == (True, False)
    assert sorted(path.name for path in project.iterdir()) == ["a", "notes.txt"]
    assert person.most == 1
