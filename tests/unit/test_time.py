"""The date and the time in a prompt: in the caller's zone, in places that providers can keep the rest by."""

import pytest

from task.conversation.inputs import NO_ZONE, timed, user_message, without_time
from task.conversation.messages import Attachment, Message, Role, assistant, system, tool_message, user
from task.prompts import SYSTEM_PROMPT
from tests.support.in_process import NOON
from tests.support.tool_calls import call_of

NOW = "[Note from the system, not from the user: it is 08:00, UTC+0000.]"
MIDNIGHT = NOON + 16 * 3600  # in UTC


def noted(now: float, headers: dict[str, str], zone: str = "UTC") -> tuple[str, str, str]:
    """The date, the time behind a message without a text, and the warning."""
    warnings = list[str]()
    [message], today = timed([user("")], now, headers, zone, warnings.append)
    return today, message.text().strip(), "".join(warnings)


@pytest.mark.parametrize(
    ("headers", "zone", "shown", "time"),
    [
        ({}, "UTC", "UTC", "08:00, UTC+0000"),
        ({}, "America/New_York", "America/New_York", "03:00, UTC-0500"),
        ({"x-timezone": "Asia/Kolkata"}, "UTC", "Asia/Kolkata", "13:30, UTC+0530"),
        ({"X-TIMEZONE": "Pacific/Kiritimati"}, "UTC", "Pacific/Kiritimati", "22:00, UTC+1400"),
        ({"X-Timezone": "Etc/GMT+5"}, "Asia/Kolkata", "Etc/GMT+5", "03:00, UTC-0500"),
    ],
)
def test_the_zone_is_the_headers_else_that_of_the_setting(
    headers: dict[str, str], zone: str, shown: str, time: str
) -> None:
    today, now, warning = noted(NOON, headers, zone)
    assert f"Today is Friday, 15 January 2027 in the time zone {shown}." in today
    assert (time in now, warning) == (True, "")


@pytest.mark.fault("request: a time zone that does not exist, is a path, very long, or full of control characters")
@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Olympus", "Europe", "Europe/", "/etc/passwd", "../../etc/passwd", "Europe/../../../etc/passwd",
        "Z" * 2**20, "Europe/Berlin\n", "Europe/Berlin\x00", "\x1b[31mUTC", "UTC\r\nX-Evil: 1", "Zürich", "localtime",
    ],
)  # fmt: skip
def test_a_zone_that_does_not_exist_is_ignored_with_a_warning_that_does_not_repeat_it(zone: str) -> None:
    assert noted(NOON, {"X-Timezone": zone}) == (*noted(NOON, {})[:2], NO_ZONE)


def test_the_date_changes_once_a_day_and_the_time_every_minute() -> None:
    moments = [noted(MIDNIGHT - 86_400 + 60 * minute, {}) for minute in range(2 * 1440)]
    assert len({today for today, _, _ in moments}) == 2
    assert len({now for _, now, _ in moments[:1440]}) == 1440


def test_only_the_users_newest_message_has_the_time_behind_its_text_and_its_files() -> None:
    attached = (Attachment("text/csv", "a.csv", url="files/b/a.csv"),)
    file = user_message(Message(Role.USER, "Sum it", attachments=attached))
    with_time = Message(Role.USER, f"{file.text()}\n\n{NOW}", attachments=attached)
    made, parts = assistant("Let me see.", [call_of("calculator", "{}")]), [{"type": "text", "text": "And this?"}]
    past, ending = [user("Hi"), assistant("Hello!")], [made, tool_message(made.tool_calls[0], "2")]
    for before, after in [
        ([*past, file, *ending], [*past, with_time, *ending]),
        ([user(parts)], [user([*parts, {"type": "text", "text": NOW}])]),
        ([system("Greet me.")], [system("Greet me.")]),
    ]:
        assert timed(before, NOON, {}, "UTC", print)[0] == after


def test_a_small_model_reads_its_prompts_without_the_date_and_the_time() -> None:
    today, now, _ = noted(NOON, {"X-Timezone": "America/Argentina/ComodRivadavia"})
    assert without_time(f"{SYSTEM_PROMPT}\n\n{today}\n\nA server is away.") == f"{SYSTEM_PROMPT}\n\nA server is away."
    assert [without_time(text) for text in (today, f"What is 2+2?\n\n{now}", f"Say {now} twice")] == [
        "", "What is 2+2?", f"Say {now} twice",
    ]  # fmt: skip
