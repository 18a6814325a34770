"""The buttons of a question and of the list of permissions, as either version of DIAL Chat shows and sends them."""

import copy

import pytest

from task.approvals.forms import form_schema, revoked_by, revoking_form
from task.llm.scripted import says, wants
from task.permissions.gate import Grant
from task.permissions.icerc import ICERC
from task.tools.toolbox import Pending
from tests.support.chat_reader import Version, buttons
from tests.support.choices import RecordingChoice
from tests.support.codes import codes_shown
from tests.support.note_scene import scene
from tests.support.tool_calls import call_of

VERSIONS: tuple[Version, ...] = ("0.x", "1.x")
TWO = wants("write", text="a") & wants("write", text="b")
PERMISSIONS = "/permissions"


def titles(asked: RecordingChoice, version: Version = "1.x") -> list[str]:
    return [*buttons(asked.form_schema, version)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_button_decides_about_one_call_and_the_others_are_asked_again(version: Version) -> None:
    async with scene(TWO, says("Both.")) as s:
        asked = await s.chat.say("Note them")
        one, two = codes_shown(asked.content)
        rest = await s.chat.press(f"Approve {two}", asked, version)
        assert (s.written, len(s.model.requests)) == (["b"], 1)
        answer = await s.chat.press("Deny", rest, version)
    choices = ("Approve", "Deny", "Always")
    shown = [f"{choice} {code}: write {text}" for code, text in ((one, "a"), (two, "b")) for choice in choices]
    assert titles(asked, version) == shown
    assert titles(rest) == [f"{choice} {codes_shown(rest.content)[0]}: write a" for choice in choices]
    assert (s.written, answer.content, answer.form_schema) == (["b"], "Both.", None)
    assert s.sent_texts()[2:] == ["Error: This call was not allowed: the user denied it.", "wrote b"]


async def test_the_form_is_one_row_of_buttons_that_send_a_text_with_a_code() -> None:
    async with scene(TWO) as s:
        asked = await s.chat.say("Note them")
    [(name, shape)] = (asked.form_schema or {})["properties"].items()
    assert (name, sorted(shape)) == ("button", ["dial:widget", "oneOf", "type"])  # without a description
    consts = [option["const"] for option in shape["oneOf"]]
    assert len(set(consts)) == len(consts) == 6
    assert {type(const) for const in consts} == {int}
    texts = [option["dial:widgetOptions"]["populateText"] for option in shape["oneOf"]]
    assert texts == [f"{word} {code}" for code in codes_shown(asked.content) for word in ("approve", "deny", "always")]
    assert all(option["dial:widgetOptions"]["submit"] for option in shape["oneOf"])


@pytest.mark.parametrize(("press", "ran"), [("Approve all", 5), ("Deny all", 0)])
async def test_above_four_calls_all_can_be_decided_at_once(press: str, ran: int) -> None:
    calls = wants("write", text="0")
    for number in range(1, 5):
        calls &= wants("write", text=str(number))
    async with scene(calls, says("Done.")) as s:
        asked = await s.chat.say("Note them")
        answer = await s.chat.press(press, asked)
    assert (len(s.written), answer.content) == (ran, "Done.")
    assert (titles(asked)[:2], len(titles(asked))) == (["Approve all", "Deny all"], 17)


def test_always_is_a_button_only_where_it_is_offered() -> None:
    card = ICERC("", "write", "")
    pending = [
        Pending(call_of("write", {}), card, "digest", grant_description=offered, title="write")
        for offered in ("", "it")
    ]
    shown = buttons(form_schema(pending, ["k7f3", "p2x9"]), "1.x")
    assert [title for title in shown if title.startswith("Always")] == ["Always p2x9: write"]
    four = buttons(form_schema(pending * 2, ["k7f3", "p2x9", "m4q5", "b2b2"]), "1.x")
    assert not any("all" in title.split() for title in four)


CASES = ["a stale text", "a stale button", "a stale button and an edited text", "true", "out of range", "edited state"]


@pytest.mark.fault("approval: a button that is forged, or of another question")
@pytest.mark.parametrize("case", [*CASES, "another user"])
async def test_no_button_approves_what_its_own_question_did_not_ask(case: str) -> None:
    async with scene(wants("write", text="a"), says("No."), wants("write", text="b"), says("Hello.")) as s:
        first = await s.chat.say("Note a")
        stale, value = next(iter(buttons(first.form_schema, "1.x").values()))
        await s.chat.press("Deny", first)
        asked = await s.chat.say("Note b")
        text, fresh = next(iter(buttons(asked.form_schema, "1.x").values()))
        match case:
            case "a stale text":
                answer = await s.chat.say(stale, value)
            case "a stale button":
                answer = await s.chat.say("", value)
            case "a stale button and an edited text":
                answer = await s.chat.say("Well?", value)
            case "true":
                answer = await s.chat.say("", {"button": True, "decision": True})
            case "out of range":
                answer = await s.chat.say("", {"button": fresh["button"] + 3})
            case "another user":
                s.chat.key = "bob"
                answer = await s.chat.say(text, fresh)
            case _:  # so that the button of the first question would fit
                state = s.chat.messages[-1]["custom_content"]["state"]
                state["pending"][0]["code"] = stale.split()[1]
                answer = await s.chat.say("", value)
    assert s.written == []
    expected = {"a stale text": "There is no open question", "edited state": "cannot be", "another user": "cannot be"}
    assert expected.get(case, "Hello.") in answer.content


@pytest.mark.fault("approval: an approval used twice")
async def test_a_button_pressed_again_runs_nothing_and_an_edited_message_keeps_its_button() -> None:
    async with scene(wants("write", text="a"), says("Noted.")) as s:
        asked = await s.chat.say("Note a")
        before = copy.deepcopy(s.chat.messages)
        _, value = next(iter(buttons(asked.form_schema, "1.x").values()))
        await s.chat.say("Please do", value)
        s.chat.messages = before
        again = await s.chat.press("Approve", asked)
    assert (s.written, "was used before" in again.content) == (["a"], True)


@pytest.mark.fault("state: a turn that an older version saved")
@pytest.mark.parametrize("value", [{"decision": 1}, {"decision": 4, "calls": ["1", "2"]}])
async def test_the_buttons_of_older_questions_are_still_understood(value: object) -> None:
    async with scene(TWO, says("Both."), says("Bye.")) as s:
        await s.chat.say("Note them")
        await s.chat.say("approve the checked ones", value)
        await s.chat.say("Thanks")
    assert s.written == ["a", "b"]
    assert s.sent_texts() == ["Note them", "", "wrote a", "wrote b", "Both.", "Thanks"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_always_allowed_is_revoked_by_a_button_under_the_list(version: Version) -> None:
    async with scene(wants("write", text="a"), says("Noted."), says("Hello.")) as s:
        await s.chat.press("Always", await s.chat.say("Note a"), version)
        listed = await s.chat.say(PERMISSIONS)
        before = list(s.chat.messages)
        revoked = await s.chat.press("Revoke 1", listed, version)
        assert titles(listed, version) == ["Revoke 1: every call of write"]
        assert ("Revoked: every call of write" in revoked.content, revoked.form_schema) == (True, None)
        for value in ({"button": 1}, {"revoke": 1}, {"button": 1.0}):  # the button first, then the text
            s.chat.messages = list(before)
            assert "Revoked: " in (await s.chat.say("never mind", value)).content
        for value in ({"button": 2}, {"button": True}, {"button": -1}, {"revoke": "1"}):
            s.chat.messages = list(before)
            assert "no number 7" in (await s.chat.say(f"{PERMISSIONS} revoke 7", value)).content
        s.chat.messages = before[:-2]
        assert (await s.chat.say("Hi", {"button": 1})).content == "Hello."  # no list is above it


def test_above_four_permissions_all_can_be_revoked_at_once() -> None:
    grants = [Grant("tool", f"tool_{number}", "ann", "chat", 2e9) for number in range(5)]
    shown = buttons(revoking_form(grants), "0.x")
    assert [*shown][:2] == ["Revoke all", "Revoke 1: every call of tool_0"]
    assert [revoked_by(value, 5) for _, value in shown.values()] == ["all", "1", "2", "3", "4", "5"]
    assert revoking_form([]) is None
