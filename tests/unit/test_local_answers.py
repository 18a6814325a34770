"""The judge of the local model's answers, and the questions it is measured and tuned with."""

import pytest

from scripts.local_answers import MEASURED, Question, numbers, questions_of


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


@pytest.mark.parametrize(
    ("name", "steps"), [("measured", 10), ("measured_2", 10), ("measured_3", 10), ("measured_4", 10), ("measured_6", 0)]
)
def test_forty_and_ten_questions_are_measured_and_none_of_them_is_tuned_for(name: str, steps: int) -> None:
    path, tuning = MEASURED.with_name(f"{name}.toml"), MEASURED.with_name("tuning.toml")
    measured = [*questions_of(path), *questions_of(path, "two_steps")]
    tuned = {question.text for group in ("question", "two_steps") for question in questions_of(tuning, group)}
    assert (len(questions_of(path)), len(measured)) == (40, 40 + steps)
    assert not tuned & {question.text for question in measured}
