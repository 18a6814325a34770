"""Reading, writing, listing, editing and searching files, as functions and as tools: a result whatever goes wrong."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.tools.toolbox import Toolbox
from task.tools.workspace import files as fs
from task.tools.workspace import fs as documented
from task.tools.workspace.framework import framework_tools
from task.tools.workspace.fs import FSResult, fs_edit, fs_list, fs_read, fs_search, fs_write
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import FsEditTool, FsReadTool, FsWriteTool, workspace_tools
from tests.support.choices import CALLER, RecordingChoice
from tests.support.tool_calls import call_of, called


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the documented functions work."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_what_was_written_is_read_and_listed() -> None:
    assert fs_write("src/app.py", "a = 1\nb = 2\n") == FSResult(True, "wrote src/app.py (2 lines, 12 bytes)")
    assert fs_write("naïve.txt", "é") == FSResult(True, "wrote naïve.txt (1 lines, 2 bytes)")
    assert fs_write("empty.txt", "") == FSResult(True, "wrote empty.txt (1 lines, 0 bytes)")
    assert fs_read("src/app.py") == FSResult(True, "a = 1\nb = 2\n")
    assert fs_list(".") == FSResult(True, "empty.txt\nnaïve.txt\nsrc/")
    assert documented._safe_path("a/./b") == Path.cwd() / "a" / "b"
    assert documented._safe_path("/a") == Path.cwd() / "a"
    with pytest.raises(ValueError, match="path escapes sandbox"):
        documented._safe_path("../a")


@pytest.mark.fault("workspace: a binary file, NUL characters, or half a character as text")
@pytest.mark.parametrize(
    ("result", "detail"),
    [
        (lambda: fs_read("missing"), "read: not found: missing"),
        (lambda: fs_list("missing"), "list: not found: missing"),
        (lambda: fs_list("file"), "list: not a directory: file"),
        (lambda: fs_read("folder"), "read: is a directory: folder"),
        (lambda: fs_write("folder", "x"), "write: is a directory: folder"),
        (lambda: fs_write("file/x", "x"), "write: not a directory: file/x"),
        (lambda: fs_read("../x"), "read: path escapes sandbox: ../x"),
        (lambda: fs_write("../x", "x"), "write: path escapes sandbox: ../x"),
        (lambda: fs_read("link"), "read: path escapes sandbox: link"),
        (lambda: fs_read("fifo"), "read: not a regular file: fifo"),
        (lambda: fs_write("x", "a\0b"), "write: a text file has no NUL characters: x"),
        (lambda: fs_write("x", "\ud800"), "write: a text file has no halves of characters: x"),
        (lambda: fs_read("\ud800"), "read: a path has no halves of characters: \\ud800"),
        (lambda: fs_read("binary"), "read: not a text file (not UTF-8): binary"),
        (lambda: fs_read("nul"), "read: not a text file (it has NUL characters): nul"),
        (lambda: fs_edit("binary", "a", "b"), "edit: not a text file (not UTF-8): binary"),
        (lambda: fs_search("x", "missing"), "search: not found: missing"),
    ],
)
def test_a_failure_is_a_result_that_names_the_path(project: Path, result: object, detail: str) -> None:
    (project / "folder").mkdir()
    (project / "file").write_text("x")
    (project / "link").symlink_to("/etc/hostname")
    (project / "binary").write_bytes(b"\x89PNG\xff")
    (project / "nul").write_bytes(b"a\0b")
    os.mkfifo(project / "fifo")
    assert callable(result)
    assert result() == FSResult(False, detail)


@pytest.mark.fault("workspace: a byte order mark, CRLF, or mixed line ends")
@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfa\r\nb\r\n", b"a\rb\nc\r\n", b"no end", b"\n\n", "ünïcode\u2028\n".encode()]
)
def test_a_text_that_was_read_is_written_back_byte_for_byte(project: Path, content: bytes) -> None:
    (project / "a.txt").write_bytes(content)
    fs_write("a.txt", fs_read("a.txt").detail)
    assert (project / "a.txt").read_bytes() == content


@pytest.mark.fault("workspace: a byte order mark, CRLF, or mixed line ends")
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"\xef\xbb\xbfa\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", b"\xef\xbb\xbfx\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\n", "b", "x\ny", b"a\r\nx\r\ny\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\nb\n", "a\n", "", b"b\n"),
        (b"a b", "a", "\\1 $1", b"\\1 $1 b"),
    ],
)
def test_an_edit_keeps_line_ends_and_the_byte_order_mark(
    project: Path, before: bytes, old: str, new: str, after: bytes
) -> None:
    (project / "a.txt").write_bytes(before)
    assert fs_edit("a.txt", old, new).ok
    assert (project / "a.txt").read_bytes() == after
    assert fs_write("a.py", "a\nb\na\n").ok
    assert fs_edit("a.py", "b", "c") == FSResult(True, "edited a.py (line 2)")
    assert fs_edit("a.py", "a", "c", replace_all=True) == FSResult(True, "edited a.py (2 replacements)")


@pytest.mark.fault("workspace: an edit of a text that is missing, or there several times")
@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        ("z", "x", "edit: old_text is not in the file; read it again, every space and line end counts: a.py"),
        ("return", "x", "edit: old_text occurs 2 times (lines 2, 4); add lines around it, or set replace_all: a.py"),
        ("", "x", "edit: old_text is empty; write a new file with fs_write: a.py"),
        ("def", "def", "edit: old_text and new_text are the same: a.py"),
    ],
)
def test_an_edit_that_cannot_be_meant_says_what_to_do(project: Path, old: str, new: str, detail: str) -> None:
    text = "def f():\n    return 1\ndef g():\n    return 2\n"
    (project / "a.py").write_text(text)
    assert fs_edit("a.py", old, new) == FSResult(False, detail)
    assert (project / "a.py").read_text() == text


def test_lines_are_read_by_number(project: Path) -> None:
    (project / "a.txt").write_text("one\ntwo\u2028still two\nthree")
    assert fs_read("a.txt", 2, 2).detail == "two\u2028still two\n[lines 2-2 of 3; go on with first_line=3]"
    assert fs_read("a.txt", 2).detail == "two\u2028still two\nthree\n[lines 2-3 of 3]"
    assert fs_read("a.txt", 9) == FSResult(False, "read: there are 3 lines, no line 9: a.txt")


@pytest.mark.fault("workspace: a file name with line ends, escape sequences or reversed text")
@pytest.mark.fault("workspace: a folder with very many files, or a very deep tree")
def test_names_that_deceive_are_spelt_out_and_very_many_are_listed_in_part(project: Path) -> None:
    for name in (b"new\nline", b"\xe9", "txt\u202efdp.exe".encode(), b"esc\x1b[31m"):
        Path(os.fsdecode(bytes(project) + b"/" + name)).touch()
    assert fs_list(".").detail.split("\n") == ["esc\\x1b[31m", "new\\nline", "txt\\u202efdp.exe", "\\xe9"]
    for number in range(2_010):
        (project / f"{number:05}").touch()
    assert fs_list(".").detail.split("\n")[1_999:] == ["01999", "[... 14 more]"]


def test_a_search_names_file_line_and_number(project: Path) -> None:
    for path, text in {"a.py": "x = 1\n", "b/c.py": "y\nX = x(\n", "b/d.txt": "x\n", "e.png": "x\0"}.items():
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
    assert fs_search("x").detail == "a.py:1: x = 1\nb/c.py:2: X = x(\nb/d.txt:1: x\n[3 lines]"
    assert fs_search("X", ignore_case=True, glob="*.py").detail == "a.py:1: x = 1\nb/c.py:2: X = x(\n[2 lines]"
    assert fs_search("x(", "b", glob="b/*").detail == "b/c.py:2: X = x(\n[1 lines]"
    assert fs_search(r"^[xy]\b(?! =)", regex=True).detail == "b/c.py:1: y\nb/d.txt:1: x\n[2 lines]"
    assert fs_search("^x", "b/c.py", regex=True, ignore_case=True).detail == "b/c.py:2: X = x(\n[1 lines]"
    assert fs_search("nothing").detail == "[0 lines]"
    (project / "a.py").write_text('print(f"{e}")\nprint(f"{x}")\naaa\n' + "_\n" * 1_000)
    assert fs_search('"{e}"', regex=True).detail == 'a.py:1: print(f"{e}")\n[1 lines]', "as in Python"
    assert fs_search(r"^a{2,3}$", regex=True).detail == "a.py:3: aaa\n[1 lines]"
    assert "more than 500 characters" in fs_search("a", glob="*" * 501).detail
    assert fs_search("_").detail.endswith("a.py:103: _\n[the first 100 lines; narrow the search to see others]")


@pytest.mark.fault("workspace: a search whose expression explodes, or is none")
@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:(((a*)*)*)*)*$", r"(a|aa)+$", "((a|b|c|d|e)*){1,50}$"])
def test_an_expression_that_explodes_is_stopped(project: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("task.tools.workspace.files.SECONDS", 0.2)
    (project / "a.txt").write_text("a" * 4_000 + "!\n")
    started = monotonic()
    result = fs_search(pattern, regex=True)
    assert result.ok
    assert monotonic() - started < 30


@pytest.mark.fault("workspace: a search whose expression explodes, or is none")
@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not a regular expression"),
        ("(?R)*a", "not a regular expression"),
        ("(?P<n>(?&n)a|b)", "not a regular expression"),
        ("(?:(?:(?:x{9999}){9999}){9999})", "repeats too much"),
        ("x{200}{200}", "repeats too much"),
        ("(?:" + "(?:a|)" * 60 + "){10000}", "repeats too much"),
        ("(" * 11_000, "too long"),
        ("x{" + "9" * 6_000 + "}", "repeats too much"),
        ("(" * 250 + ")" * 250, ""),
        ("", "the pattern is empty"),
    ],
)
def test_an_expression_that_could_take_the_memory_is_refused(project: Path, pattern: str, reason: str) -> None:
    (project / "a.txt").write_text("x" * 4_000)
    result = fs_search(pattern, regex=True)
    assert reason in result.detail
    assert result.ok == (not reason)


FULL = """
import resource, signal, sys
from task.tools.workspace.fs import fs_write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
print(fs_write("kept.txt", "new" * 1000).detail, fs_write("new/new.txt", "new" * 1000).detail)
"""


@pytest.mark.fault("workspace: a write that ends in the middle, as on a full disk")
def test_a_write_that_ends_in_the_middle_leaves_the_old_file_and_nothing_else(project: Path) -> None:
    (project / "kept.txt").write_text("old")
    run = [sys.executable, "-c", FULL]
    root = str(Path(fs.__file__).parents[3])
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": root})
    assert done.stdout == "write: file too large: kept.txt write: file too large: new/new.txt\n"
    assert (project / "kept.txt").read_text() == "old"
    assert fs_list(".").detail == "kept.txt\nnew/"
    assert fs_list("new").detail == ""


@pytest.mark.system
@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "reason"), [("size=64k", "no space left on device"), ("ro", "read-only file system")]
)
def test_a_full_and_a_read_only_disk_are_named(tmp_path: Path, options: str, reason: str) -> None:
    (tmp_path / "disk").mkdir()
    work = "from task.tools.workspace.fs import fs_write; print(fs_write('a.txt', 'x' * 200_000).detail)"
    script = f'mount -t tmpfs -o {options} tmpfs disk && cd disk && "$0" -c "$1" && ls -A'
    root = str(Path(fs.__file__).parents[3])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, work],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.stdout == f"write: {reason}: a.txt\n"


@pytest.fixture
def workspace(project: Path) -> Iterator[Workspace]:
    with Workspace(project) as made:
        yield made


async def test_the_tools_do_what_they_say(workspace: Workspace) -> None:
    tools = {tool.name: tool for tool in workspace_tools(workspace)}
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("fs_read", {"path": "missing"}, "ERROR: read: not found: missing"),
        ("fs_write", {"path": "a\0b", "content": ""}, "ERROR: write: a path has no NUL characters: a\0b"),
        ("fs_write", {"path": "a.py", "content": "x = 1\n"}, "wrote a.py (1 lines, 6 bytes)"),
        ("fs_read", {"path": "a.py"}, "x = 1\n"),
        ("fs_edit", {"path": "a.py", "old_text": "1", "new_text": "2"}, "edited a.py (line 1)"),
        ("fs_list", {}, "a.py"),
        ("fs_search", {"pattern": "x"}, "a.py:1: x = 2\n[1 lines]"),
    ]
    for name, arguments, text in steps:
        message = await called(tools[name], **arguments)
        assert (message.text(), message.failed) == (text, text.startswith("ERROR"))


async def test_a_long_text_comes_in_pages_that_say_how_to_go_on(workspace: Workspace) -> None:
    lines = [f"line {number:05}" for number in range(1, 10_001)]
    workspace.write("long.txt", "\n".join(lines).encode())
    first = (await called(FsReadTool(workspace), path="long.txt")).text()
    assert len(first) < 31_000
    assert first.endswith("line 02727\n[lines 1-2727 of 10000; go on with first_line=2728]")
    last = (await called(FsReadTool(workspace), path="long.txt", first_line=9_999)).text()
    assert last == "line 09999\nline 10000\n[lines 9999-10000 of 10000]"
    workspace.write("wide.txt", b"x" * 100_000)
    wide = (await called(FsReadTool(workspace), path="wide.txt")).text()
    assert len(wide) < 31_000
    assert wide.endswith("\n[the beginning of line 1 of 1; the line is longer]")


def test_the_gate_sees_the_real_path(workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "src").mkdir()
    (workspace.path / "link").symlink_to("src")
    (workspace.path / "out").symlink_to(tmp_path)
    tool = FsReadTool(workspace)
    for given, seen in [
        ("link/../link/a.py", "src/a.py"),
        (f"{workspace.path}/link/a.py", "src/a.py"),
        ("/", "."),
        ("../other", str(tmp_path / "other")),
        ("out/secret", str(tmp_path / "secret")),
    ]:
        arguments = tool.parse(call_of("fs_read", {"path": given}))
        access = tool.workspace_access(arguments)
        assert access is not None
        assert (access.root, access.paths) == (str(workspace.path), (seen,))
    assert tool.parse(call_of("fs_read", {"path": "link/a.py"})) == {"path": "src/a.py"}
    unreachable = tool.workspace_access({"path": "a\0b"})
    assert unreachable is not None
    assert unreachable.paths == ()


@pytest.mark.fault("workspace: several changes of one file in one step")
async def test_the_changes_of_one_step_come_one_after_another(workspace: Workspace) -> None:
    workspace.write("a.txt", b"0")
    toolbox = Toolbox([FsEditTool(workspace), FsWriteTool(workspace)])
    calls = [
        ToolCall(str(n), FunctionCall("fs_edit", f'{{"path": "a.txt", "old_text": "{n}", "new_text": "{n},{n + 1}"}}'))
        for n in range(20)
    ]
    messages = await asyncio.wait_for(toolbox.call_all(calls, RecordingChoice(), CALLER), 60)
    assert all(isinstance(message, Message) and not message.failed for message in messages)
    assert workspace.read("a.txt").decode() == ",".join(map(str, range(21)))


async def test_a_person_sees_the_text_of_results_that_are_json_for_the_model(workspace: Workspace) -> None:
    (workspace.path / "picture.png").write_bytes(b"\x89PNG\xff")
    choice, toolbox = RecordingChoice(), Toolbox(framework_tools(workspace))
    calls = [
        call_of("file_write", {"file_path": "a.txt", "content": "It rains."}),
        call_of("file_read", {"file_path": "a.txt"}),
        call_of("file_read", {"file_path": "picture.png"}),
        call_of("file_read", {"file_path": "missing"}),
    ]
    for call in calls:
        await toolbox.call_all([call], choice, CALLER)
    shown = [stage.content.partition("## Response:\n\n")[2].split("\n")[0] for stage in choice.stages]
    assert shown == ["wrote 9 bytes", "It rains.", "(not text)", "ERROR: read: not found: missing"]
