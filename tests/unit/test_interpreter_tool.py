"""The interpreter tool without a server: names for files, layout, refusals, and what its messages remember."""

import base64
from dataclasses import dataclass, field, replace

import pytest

from task.conversation.inputs import plain_name
from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall, assistant, message_from
from task.conversation.state import StateSeal, TurnState
from task.core_client.files import DialFiles, FileInfo
from task.errors import ToolError
from task.tools.mcp.connection import conversation_meta
from task.tools.models import ToolCallParams
from task.tools.py_interpreter.execution import (
    MAX_RESTORED,
    CodeError,
    Execution,
    MadeFile,
    SessionMemo,
    heading,
    inputs_of,
    outcome,
    remembered,
)
from task.tools.py_interpreter.interpreter_server import Way
from task.tools.py_interpreter.python_code_interpreter_tool import PythonCodeInterpreterTool
from tests.support.choices import CALLER, RecordedStage, RecordingChoice


@dataclass
class Files(DialFiles):
    """Files in memory; `etags` by URL."""

    etags: dict[str, str] = field(default_factory=dict[str, str])

    async def metadata(self, url: str, api_key: str) -> FileInfo:
        if url not in self.etags:
            raise ToolError(f"No access to {url!r}.")
        return FileInfo(url, url.rpartition("/")[2], None, None, self.etags[url])


def attached(title: str | None, url: str | None) -> Attachment:
    return Attachment("text/csv", title, url=url)


async def test_attached_files_keep_their_titles_and_clashes_get_a_number() -> None:
    files = Files({"files/b/1/report.csv": "1", "files/b/2/report.csv": "1", "files/b/a%20b.csv": "1"})
    given = [
        attached("report.csv", "files/b/1/report.csv"),
        attached("report.csv", "files/b/2/report.csv"),
        attached(None, "files/b/a%20b.csv"),
        attached("report.csv", "files/b/1/report.csv"),
        attached("folder", "files/b/folder/"),
        attached("web", "https://example.com/x.csv"),
        attached("inline", None),
    ]
    found, _ = await inputs_of(given, files, "key")
    assert {file.name: file.url for file in found} == {
        "report.csv": "files/b/1/report.csv",
        "report_2.csv": "files/b/2/report.csv",
        "a b.csv": "files/b/a%20b.csv",
    }


@pytest.mark.fault("interpreter: an attachment carried in the message, too large or unreadable")
async def test_what_a_message_carries_itself_becomes_a_file_within_bounds() -> None:
    def carried(kind: str, title: str | None, data: str, **more: str) -> Attachment:
        return Attachment(kind, title, data, **more)

    encoded = base64.b64encode(b"a,b\n1,2\n").decode()
    given = [
        carried("text/csv", "report", encoded),
        carried("text/csv", "report.csv", base64.b64encode(b"c").decode()),
        carried("image/png", None, base64.b64encode(b"\x89PNG").decode()),
        carried("text/markdown", "notes.md", "# as it is, no base64"),
        carried("image/png", "broken.png", "no base64!"),
        carried("application/zip", "large.zip", base64.b64encode(bytes(2000)).decode()),
        carried("text/markdown", "[1] a source", "quoted", reference_url="https://example.com"),
        carried("text/csv", "report", encoded),
    ]
    found, notes = await inputs_of(given, Files(), "key", max_bytes=1000)
    assert {file.name: file.content for file in found} == {
        "report.csv": b"a,b\n1,2\n",
        "report_2.csv": b"c",
        "file.png": b"\x89PNG",
        "notes.md": b"# as it is, no base64",
    }
    assert notes == [
        "broken.png is not in the working directory: the message contains it in no readable form.",
        "large.zip is not in the working directory: it is larger than 1,000 bytes.",
    ]


@pytest.mark.fault("interpreter: an attachment that may not be read")
async def test_a_changed_file_has_another_version_and_a_forbidden_one_is_reported() -> None:
    files = Files({"files/b/x.csv": "1"})
    given = [attached("x.csv", "files/b/x.csv"), attached("y.csv", "files/b/y.csv")]
    [first], notes = await inputs_of(given, files, "key")
    files.etags["files/b/x.csv"] = "2"
    [second], _ = await inputs_of(given, files, "key")
    assert first.name == second.name == "x.csv"
    assert first.version != second.version
    assert notes == ["y.csv is not in the working directory: No access to 'files/b/y.csv'."]


def test_titles_become_plain_names() -> None:
    assert plain_name("../../etc/passwd", "files/b/p") == "_.._etc_passwd"
    assert plain_name("Report", "files/b/r.csv") == "Report.csv"
    assert plain_name(" . ", "files/b/r") == "file"
    assert len(plain_name("x" * 500 + ".csv", "files/b/r")) < 130


def test_a_result_shows_notes_output_errors_and_tables_in_the_documented_layout() -> None:
    table = "|  | a |\n| --- | --- |\n| 0 | 1 |"
    text = outcome(Execution(files_path="/", result=table, notes=("The variables are lost.",)), [], ["x is missing."])
    assert text == (
        "**Note:** The variables are lost.\n\n**Note:** x is missing.\n\n"
        f"**Output:**\n```\n(nothing was printed)\n```\n\n{table}\n"
    )

    assert heading("'''\n```\n'''").startswith("## Execution Result\n\n````python\n")
    assert "`````\n````\n`````" in outcome(Execution(files_path="/", stdout="````\n"), [], [])

    error = CodeError(traceback="E: no")
    text = outcome(Execution(files_path="/", stderr="careful", error=error, sandbox_tier="none"), [], [])
    assert "[stderr]\ncareful\nE: no" in text
    assert "without a sandbox" in text


@pytest.mark.fault("interpreter: an interpreter server that is down")
async def test_empty_code_and_a_dead_server_are_sentences_for_the_model() -> None:
    tool = await PythonCodeInterpreterTool.create("http://127.0.0.1:9", "http://127.0.0.1:9/mcp")
    choice = RecordingChoice()

    async def run(code: str) -> str:
        stage = RecordedStage("s", opened=True, choice=choice)
        call = ToolCall("c1", FunctionCall("execute_code"))
        message = await tool.execute(ToolCallParams(call, stage, choice, "key", "c", {"code": code}, CALLER))
        assert message.failed
        return message.text()

    assert await run("  ") == "Error: There is no code to run. Send Python code."
    assert "the Python interpreter cannot be reached" in await run("1")
    assert tool.schema["function"]["parameters"]["required"] == ["code"]
    await tool.close()


def result(memo: str, tool: str = "execute_code") -> Message:
    return Message(Role.TOOL, "done", tool_call_id="c", name=tool, memo=memo)


def made(path: str, number: int = 1, size: int = 1) -> MadeFile:
    return MadeFile(path=path, url=f"files/b/{path}_{number}", size=size)


@pytest.mark.fault("interpreter: a remembered session of another version, or with too many files")
def test_the_newest_session_counts_and_of_each_file_its_newest_copy() -> None:
    first = SessionMemo(kernel="a.1", files=(made("x.csv"), made("y.csv")))
    second = SessionMemo(kernel="b.1", route=3, files=(made("x.csv", 2),))
    history = [result(memo.model_dump_json()) for memo in (first, second)]
    found = remembered(
        [*history, result('{"kernel": 5}'), result("no JSON"), result('{"kernel":"c.1"}', "other")], "execute_code"
    )
    assert (found.kernel, found.server, found.route) == ("b.1", "b", 3)
    assert [file.url for file in found.files] == ["files/b/y.csv_1", "files/b/x.csv_2"]
    assert remembered([], "execute_code") == SessionMemo()


@pytest.mark.fault("interpreter: a remembered session of another version, or with too many files")
def test_the_newest_files_are_put_back_within_bounds() -> None:
    many = SessionMemo(files=tuple(made(f"{number}") for number in range(MAX_RESTORED + 5)))
    assert {file.name for file in many.restorable()} == {f"{number}" for number in range(5, MAX_RESTORED + 5)}
    large = SessionMemo(files=(made("old", size=2**20), made("huge", size=2**30), made("new", size=2**20)))
    assert [file.name for file in large.restorable()] == ["new", "old"]


def test_a_memo_is_stored_with_its_message_and_never_sent_to_a_model() -> None:
    memo = SessionMemo(kernel="a.1", files=(made("x.csv"),)).model_dump_json()
    message = replace(result(memo), failed=True)
    assert message_from(message.as_stored()) == message
    assert memo not in str(message.as_dict())
    call = assistant(calls=[ToolCall("c", FunctionCall("execute_code"))])
    seal = StateSeal(b"secret")
    turn = seal.unpack(seal.pack(TurnState((call, message)), "somebody"), "somebody")
    assert remembered(turn.history, "execute_code").kernel == "a.1"


def test_requests_of_one_conversation_of_one_person_carry_one_header_without_their_names() -> None:
    mine = conversation_meta("conversations/bucket/New chat", "bucket")
    assert Way(mine).headers == Way(dict(mine)).headers
    [(name, value)] = Way(mine).headers.items()
    assert name == "X-Session-Affinity"
    assert Way(mine, 2).headers == {name: f"{value}-2"}
    others = [conversation_meta("conversations/bucket/New chat", "other"), conversation_meta("conversations", "bucket")]
    assert value not in [Way(other).headers[name] for other in others]
    assert "bucket" not in value
