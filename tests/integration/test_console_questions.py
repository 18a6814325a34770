"""Questions of the console's runs: asked one by one, answered here or elsewhere, resumed once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.closing import run_blocking
from task.conversation.inputs import Answer
from task.conversation.messages import user
from task.errors import Conflict
from task.llm.scripted import Reply, says, wants
from task.product import Profile, Services, opened
from task.runs.request import RunOptions
from task.runs.runner import Runner
from task.runs.table import Preparing
from tests.support.command_console import AtTheTerminal, ListedConsole, command_console, talking
from tests.support.upstream import Upstream, openai_upstream

YES, NO = Answer(True), Answer(False, "not today")


def bash(command: str, **more: Any) -> Reply:
    return wants("bash", command=command, **more)


def results(upstream: Upstream) -> list[str]:
    """What the model got for its calls."""
    return [item["content"] for item in upstream.requests[-1].messages if item["role"] == "tool"]


async def runs(console: ListedConsole) -> list[str]:
    """How the session's runs ended, the oldest first."""

    async def statuses() -> list[str]:
        found = await (await console.product.services.store.get()).runs.list(console.caller.owner, console.session_id)
        return [run.status for run in reversed(found.items)]

    return await asyncio.to_thread(run_blocking, statuses)


async def test_an_approved_call_runs_once_and_a_denied_one_tells_the_model_why(tmp_path: Path) -> None:
    person = AtTheTerminal(YES, NO)
    script = (
        bash("touch made", icerc={"intent": "read only", "risk": "low"}),
        says("Done."),
        bash("rm -rf made"),
        says("Kept."),
    )
    async with talking(tmp_path, *script, output=person) as console:
        await console.types("Make it.")
        made = (console.folder / "made").exists()
        await console.types("Delete it.")
        assert (console.folder / "made").exists()
        denied = results(console.upstream)[-1]
        shown = [item["content"] for item in console.history.get_messages(include_roles=["assistant"])]
    assert made
    assert "denied it: not today" in denied
    assert [question.request["tool_name"] for question in person.asked] == ["bash", "bash"]
    assert [question.card["command"] for question in person.asked] == ["touch made", "rm -rf made"]
    assert [question.card["risk_assessment"]["level"] for question in person.asked] == ["medium", "high"]
    assert shown[-1] == "Kept."


@pytest.mark.fault("console: several calls of one turn that all wait")
async def test_the_calls_of_one_turn_are_asked_one_by_one_and_resumed_once(tmp_path: Path) -> None:
    person = AtTheTerminal(YES, NO, YES)
    calls = bash("touch a") & bash("touch b") & bash("touch c") & wants("calculator", expression="25*47")
    async with talking(tmp_path, calls, says("Two of three."), output=person) as console:
        await console.types("Make three.")
        assert sorted(path.name for path in console.folder.iterdir()) == ["a", "c"]
        assert await runs(console) == ["suspended", "finished"]
        assert len(console.upstream.requests) == 2
        assert len(results(console.upstream)) == 4


@pytest.mark.fault("console: a question that is answered elsewhere, too late, or not at all")
async def test_a_question_that_is_not_answered_in_time_is_a_no(tmp_path: Path) -> None:
    person = AtTheTerminal(None)
    async with talking(tmp_path, bash("touch a"), says("Then not."), output=person) as console:
        await console.types("Make it.")
        assert not (console.folder / "a").exists()
        assert "came too late" in results(console.upstream)[0]


@pytest.mark.fault("console: arguments that a person changes and that do not fit")
async def test_changed_arguments_run_and_those_that_do_not_fit_are_asked_again(tmp_path: Path) -> None:
    wrong = Answer(True, arguments={"cmd": 7})
    right = Answer(True, arguments={"command": "touch other"})
    person = AtTheTerminal(wrong, right)
    async with talking(tmp_path, bash("touch a"), says("Done."), output=person) as console:
        shown = await console.types("Make it.")
        assert [path.name for path in console.folder.iterdir()] == ["other"]
    assert len(person.asked) == 2
    assert any("cmd" in line for line in shown)


def own(console: ListedConsole) -> tuple[Services, Profile]:
    return console.product.services, console.product.profile


@pytest.mark.fault("console: a question that is answered elsewhere, too late, or not at all")
@pytest.mark.parametrize("resumes", [False, True], ids=["answers", "answers_and_resumes"])
async def test_an_answer_given_elsewhere_ends_the_question_and_counts_once(tmp_path: Path, resumes: bool) -> None:
    console: ListedConsole

    async def elsewhere() -> None:
        store = await console.product.services.store.get()
        [asked] = await store.approvals.list(console.caller.owner)
        await Preparing(*own(console)).answer(console.caller, asked.approval_id, YES)
        if resumes and asked.run_id is not None:
            request = await Preparing(*own(console)).resumed(console.caller, asked.run_id)
            assert request is not None
            await Runner(*own(console), detach_seconds=30).start(request)

    person = AtTheTerminal(lambda: run_blocking(elsewhere))
    async with talking(tmp_path, bash("echo once >> a"), says("Done elsewhere."), output=person) as console:
        await console.types("Make it.")
        assert (console.folder / "a").read_text() == "once\n"
        assert await runs(console) == ["suspended", "finished"]
        assert console.history.get_messages()[-1]["content"] == "Done elsewhere."
    assert len(console.upstream.requests) == 2


@pytest.mark.fault("console: a question that is answered elsewhere, too late, or not at all")
async def test_a_question_that_was_left_open_is_answered_by_its_code_or_when_the_session_continues(
    tmp_path: Path,
) -> None:
    def leaves() -> None:
        raise KeyboardInterrupt

    left, back = AtTheTerminal(leaves, leaves), AtTheTerminal(YES)
    async with openai_upstream(bash("touch a"), says("Done."), bash("touch b"), says("Again.")) as upstream:
        async with command_console(tmp_path, upstream.url, output=left) as console:
            shown = await console.types("Make it.")
            await console.types(f"approve {left.asked[0].code}")
            assert console.history.get_messages()[-1]["content"] == "Done."
            await console.types("Make another.")
            session = console.session_id
        async with command_console(tmp_path, upstream.url, output=back) as console:
            await console.types(f"/resume {session}")
            assert console.history.get_messages()[-1]["content"] == "Again."
            assert sorted(path.name for path in console.folder.iterdir()) == ["a", "b"]
    assert "approve" in shown[-1]
    assert [question.code for question in back.asked] == [left.asked[1].code]


async def test_always_holds_in_its_session_until_it_is_revoked(tmp_path: Path) -> None:
    person = AtTheTerminal(Answer(True, always=True), Answer(True, always=True), NO)
    script = [item for name in "abcde" for item in (bash(f"touch {name}"), says("Done."))]
    asked = list[int]()
    async with talking(tmp_path, *script, output=person) as console:
        for line in ("one", "two", "/permissions", "/permissions revoke 1", "three", "four", "/clear", "five"):
            shown = await console.types(line)
            asked.append(len(person.asked))
            if line == "/permissions":
                assert "1. shell_run: commands that begin with 'touch', until 20" in shown[0]
        assert sorted(path.name for path in console.folder.iterdir()) == ["a", "b", "c", "d"]
        assert "not today" in results(console.upstream)[-1]
    assert asked == [1, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.fault("teps: a question of the console that is answered at a server, while it waits or when it is gone")
@pytest.mark.parametrize("how", ["waits", "gone", "by a code"])
async def test_a_server_takes_the_answer_and_the_console_runs_the_call(tmp_path: Path, how: str) -> None:
    async def at_the_server() -> None:
        services, profile = opened(console.config.settings)
        store, preparing = await services.store.get(), Preparing(services, profile)
        [asked] = await store.approvals.list(console.caller.owner)
        if how == "by a code":
            options, sent = RunOptions("http", profile.model), [user(f"approve {asked.code}")]
            with pytest.raises(Conflict, match="Your answer counts"):
                await preparing.prepare(console.caller, sent, options, console.session_id)
        else:
            await preparing.answer(console.caller, asked.approval_id, YES)
            assert await preparing.resumed(console.caller, asked.run_id or "") is None
        await services.close()

    def meanwhile() -> None:
        run_blocking(at_the_server)
        if how == "gone":
            raise KeyboardInterrupt

    person = AtTheTerminal(meanwhile)
    async with openai_upstream(bash("echo once >> a"), says("Done.")) as upstream:
        async with command_console(tmp_path, upstream.url, output=person) as console:
            await console.types("Make it.")
            session = console.session_id or ""
        if how == "gone":
            async with command_console(tmp_path, upstream.url) as console:
                await console.types(f"/resume {session}")
    assert (console.folder / "a").read_text() == "once\n"


async def test_a_session_that_waits_for_a_programs_own_tool_is_shown_and_continued_with_a_message(
    tmp_path: Path,
) -> None:
    lookup = {"name": "lookup", "description": "", "parameters": {"type": "object", "properties": {}}}

    async def asked_by_a_program(console: ListedConsole) -> str:
        options = RunOptions("http", console.conversation.model, tools=(lookup,))
        request = await Preparing(*own(console)).in_session(console.caller, [user("Look it up.")], options)
        run = await Runner(*own(console), detach_seconds=30).start(request)
        ended = await (await console.product.services.store.get()).runs.ended(console.caller.owner, run.run_id)
        assert ended.status == "suspended"
        return run.session_id or ""

    async with talking(tmp_path, wants("lookup"), says("Then without it."), output=AtTheTerminal()) as console:
        session_id = await asyncio.to_thread(run_blocking, asked_by_a_program, console)
        assert await console.types(f"/resume {session_id}") == ["> Look it up."]
        await console.types("Go on.")
        assert console.history.get_messages()[-1]["content"] == "Then without it."
