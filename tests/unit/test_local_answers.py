"""The judge of the local model's answers, and the questions it is measured and tuned with."""

from __future__ import annotations

import pytest

from scripts.local_answers import MEASURED, Outcome, Question, numbers, questions_of, summary


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 1,234.50 euros.", 1234.5),
        ("Es sind 1.234,50 Euro.", 1234.5),
        ("16", 16),
        ("7 126,25", 7126.25),
        ("-3", -3),
    ],
)
def test_numbers_are_found_in_each_notation(text: str, number: float) -> None:
    assert number in numbers(text)


def test_an_answer_is_right_only_when_it_fulfils_everything() -> None:
    who = Question("Who?", contains=("Fay|Ms F",), without=("Anna",))
    assert who.right("Ms F has.", 2)
    assert not who.right("Fay, before Anna.", 2)
    assert not who.right("Ben.", 2)
    much = Question("How much?", number=12.5, within=0.01)
    assert much.right("That is 12.50 in all.", 0)
    assert not much.right("112.5", 0)
    assert not much.right("", 0)
    assert not Question("Hello", tools=False).right("Hello!", 1)


@pytest.mark.parametrize("name", ["measured.toml", "measured_2.toml", "measured_3.toml", "measured_4.toml"])
def test_forty_and_ten_questions_are_measured_and_none_of_them_is_tuned_for(name: str) -> None:
    path, tuning = MEASURED.with_name(name), MEASURED.with_name("tuning.toml")
    measured = [*questions_of(path), *questions_of(path, "two_steps")]
    tuned = {question.text for group in ("question", "two_steps") for question in questions_of(tuning, group)}
    assert (len(questions_of(path)), len(measured)) == (40, 50)
    assert not tuned & {question.text for question in measured}


def test_twenty_more_questions_about_tables_are_not_tuned_for() -> None:
    questions = questions_of(MEASURED.with_name("measured_5.toml"))
    tuned = {question.text for question in questions_of(MEASURED.with_name("tuning.toml"))}
    assert [question.kind for question in questions] == ["table"] * 20
    assert not tuned & {question.text for question in questions}


def test_seconds_and_tokens_are_summed_up_for_all_questions_and_for_each_kind() -> None:
    table, talk = Question("Most?", "table"), Question("Hello", "talk")
    outcomes = [
        Outcome(table, "Fay", "", True, 8, read=90, written=40),
        Outcome(table, "Ben", "", False, 12, read=130, written=44),
        Outcome(talk, "Hello!", "", True, 2, read=30, written=6),
    ]
    assert summary(outcomes).splitlines()[2:] == [
        "| all | 2 of 3 | 8.0 | 12.0 | 90, 40 |",
        "| table | 1 of 2 | 10.0 | 12.0 | 110, 42 |",
        "| talk | 1 of 1 | 2.0 | 2.0 | 30, 6 |",
    ]
