"""Measure the answers of this machine's model through the whole product: questions, files, and a strict judge.

python -m scripts.local_answers [--set question|two_steps] [--questions evaluation/local_model/measured.toml]
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import re
import sys
import tempfile
import tomllib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import aiohttp

from task.cli.model_choice import embedded_model
from task.settings import load_settings

if TYPE_CHECKING:
    from tests.support.chat_reader import Answer, ChatReader

MEASURED = Path(__file__).parents[1] / "evaluation/local_model/measured.toml"
TYPES = {
    ".csv": "text/csv", ".tsv": "text/tab-separated-values", ".json": "application/json", ".txt": "text/plain",
    ".md": "text/markdown", ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.,])[-−]?\d[\d., \u00a0\u202f]*")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what a right answer fulfils; `file` is the name and content of the attached file."""

    text: str
    kind: str = "two steps"
    file: tuple[str, str] | None = None
    contains: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    number: float | None = None
    within: float = 1e-6
    tools: bool = True

    def right(self, answer: str, calls: int) -> bool:
        """Whether the answer, given after so many calls, fulfils everything."""
        low = answer.lower()
        return (
            bool(answer.strip())
            and (self.tools or not calls)
            and all(any(word.lower() in low for word in words.split("|")) for words in self.contains)
            and not any(word.lower() in low for word in self.without)
            and (self.number is None or any(abs(n - self.number) <= self.within + 1e-9 for n in numbers(answer)))
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer with its seconds and tokens; `read` are those of all prompts, also where they were computed already."""

    question: Question
    answer: str
    stages: str
    right: bool
    seconds: float
    read: int = 0
    written: int = 0


def numbers(text: str) -> set[float]:
    """The numbers in a text, each as it reads with a decimal point and with a decimal comma."""
    found: set[float] = set()
    for match in _NUMBER.finditer(text):
        for piece in (match[0], *match[0].split()):
            plain = re.sub(r"[\s\u00a0\u202f]", "", piece).replace("−", "-").rstrip(".,")
            for written in (plain.replace(",", ""), plain.replace(".", "").replace(",", ".")):
                if re.fullmatch(r"-?\d+(\.\d+)?", written):
                    found.add(float(written))
    return found


def questions_of(path: Path, group: str = "question") -> list[Question]:
    """The questions of one group in a file such as `evaluation/local_model/measured.toml`."""
    data = tomllib.loads(path.read_text("utf-8"))
    files: dict[str, Any] = data.get("files", {})
    questions: list[Question] = []
    for fields in data.get(group, ()):
        name = fields.pop("file", None)
        contains, without = (tuple(fields.pop(key, ())) for key in ("contains", "without"))
        file = (name, files[name]["content"].lstrip("\n")) if name else None
        questions.append(Question(**fields, contains=contains, without=without, file=file))
    return questions


def content_of(name: str, text: str) -> bytes:
    """The file's bytes; an .xlsx has the rows of the text."""
    if not name.endswith(".xlsx"):
        return text.encode()
    from openpyxl import Workbook

    book, out = Workbook(), io.BytesIO()
    for row in csv.reader(io.StringIO(text)):
        book.worksheets[0].append([float(cell) if re.fullmatch(r"\d+(\.\d+)?", cell) else cell for cell in row])
    book.save(out)
    return out.getvalue()


@asynccontextmanager
async def person_with_the_model(home: Path, **settings: str) -> AsyncGenerator[ChatReader]:
    """The whole product as `dial-agent up` starts it, with this machine's model and further `settings`, which are
    variables, and a person at its chat."""
    from tests.support.chat_reader import ChatReader
    from tests.support.isolation import OUTSIDE
    from tests.support.up import running_product

    model = embedded_model(load_settings(environ=OUTSIDE))
    environ = {"FOLDER": str(model.store.folder), "THREADS": str(model.threads)}
    settings |= {f"AGENT_LOCAL_MODEL__{name}": value for name, value in environ.items()}
    async with running_product(home, **settings) as up:
        if up.ready["model"] != model.name:
            raise SystemExit("The model is not on this machine: dial-agent model pull")
        key = (home / ".local/share/dial-agent/core.key").read_text().strip()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(900)) as session:
            yield ChatReader(session, up.ready["core"], key, "general-purpose-agent")


async def asked(person: ChatReader, question: str, *attachments: dict[str, Any], **custom: Any) -> Answer:
    """The answer to a question in a new conversation; a small model may take its time. `custom` is further content of
    the message, such as the `skills` that the person has picked."""
    from tests.support.chat_reader import Answer, read_line

    message: dict[str, Any] = {"role": "user", "content": question}
    if attachments:
        custom["attachments"] = list(attachments)
    if custom:
        message["custom_content"] = custom
    person.messages = [message]
    answer, started = Answer(), perf_counter()
    async with asyncio.timeout(900), person._post(True) as response:
        async for chunk in response.content:
            read_line(answer, chunk, perf_counter() - started)
    assert answer.error is None, answer.error
    return answer


def staged(answer: Answer) -> str:
    """What the stages show: names and contents."""
    return "\n".join(f"{stage.name}\n{stage.content}" for stage in answer.stages.values())


async def outcome(person: ChatReader, question: Question) -> Outcome:
    """One try, in a new conversation."""
    attached: list[dict[str, Any]] = []
    if question.file:
        name, text = question.file
        kind = TYPES[Path(name).suffix]
        attached.append(await person.upload(name, content_of(name, text), kind, by_program=True))
    started = perf_counter()
    answer = await asked(person, question.text, *attached)
    right, usage = question.right(answer.content, len(answer.stages)), answer.usage or {}
    read, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return Outcome(question, answer.content, staged(answer), right, perf_counter() - started, read, written)


async def measured(questions: Sequence[Question], verbose: bool = False) -> list[Outcome]:
    """One try for each question."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        async with person_with_the_model(Path(home)) as person:
            for question in questions:
                outcomes.append(await outcome(person, question))
                print(line(outcomes[-1]), flush=True)
                if verbose:
                    print(outcomes[-1].stages, flush=True)
    return outcomes


def line(item: Outcome) -> str:
    word = "right" if item.right else "WRONG"
    counts = f"{item.seconds:5.1f} s {item.read:4} read {item.written:3} written"
    return f"{word} {counts}  {item.question.text}  {' '.join(item.answer.split())[:200]!r}"


def summary(outcomes: Sequence[Outcome]) -> str:
    """Right answers, and median seconds and tokens, of all and of each kind."""
    kinds = dict.fromkeys(item.question.kind for item in outcomes)
    groups = {"all": outcomes, **{kind: [item for item in outcomes if item.question.kind == kind] for kind in kinds}}
    lines = ["| questions | right | median s | longest s | median tokens read, written |", "|---|---|---|---|---|"]
    for name, group in groups.items():
        seconds = [item.seconds for item in group]
        right = sum(item.right for item in group)
        tokens = f"{median(item.read for item in group):.0f}, {median(item.written for item in group):.0f}"
        lines.append(f"| {name} | {right} of {len(group)} | {median(seconds):.1f} | {max(seconds):.1f} | {tokens} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the answers of this machine's model.")
    parser.add_argument("--questions", type=Path, default=MEASURED)
    parser.add_argument("--set", default="question", help="the group of questions in that file")
    parser.add_argument("--kind", default="", help="questions of this kind only")
    parser.add_argument("--last", type=int, default=0, help="only so many, from the end")
    parser.add_argument("--verbose", action="store_true", help="print the stages as well")
    given = parser.parse_args()
    chosen = [q for q in questions_of(given.questions, given.set) if given.kind in ("", q.kind)]
    if not chosen:
        parser.error(f"there are no questions of the kind {given.kind!r}")
    print(summary(asyncio.run(measured(chosen[-given.last :], given.verbose))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
