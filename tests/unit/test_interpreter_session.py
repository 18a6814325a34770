"""What tool messages remember of a conversation's interpreter session, and how requests find its server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, message_from
from task.conversation.state import StateSeal, TurnState
from task.tools.mcp.connection import conversation_meta
from task.tools.py_interpreter.execution import MAX_RESTORED, MadeFile, SessionMemo, remembered
from task.tools.py_interpreter.interpreter_server import Way


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
