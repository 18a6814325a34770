"""Measure the model of this machine: its decisions on forty questions, its speed and memory; write the table.

python -m scripts.local_model [--write docs/evaluation.md] [--no-speed]
"""

import argparse
import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import orjson

from task.cli.model_choice import embedded_model
from task.conversation.messages import system, user
from task.errors import AgentError
from task.llm.base import Accumulator, ChatModel, ModelOptions, TextDelta, ToolSchema
from task.local.model.process import EmbeddedModel, ModelProcess
from task.prompts import SYSTEM_PROMPT
from task.settings import load_settings
from task.tools.calculator.calculator_tool import evaluate

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SHORT = ModelOptions(max_tokens=1)  # only the decision matters here, not the text
CSV, PDF, XLSX, DOCX = "customers.csv", "user_manual.pdf", "employees.xlsx", "report.docx"
FOLDER = "files/7RkqBz2mWd9vT4xLhN"
READERS, CALCULATOR = ("file_content_extraction_tool", "rag_search_tool"), ("calculator",)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tools` any of which is right, none for a reply; the arguments hold all `words` and the address of the `file`, or
    come to `value`."""

    text: str
    tools: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    value: float | None = None
    file: str = ""

    @property
    def message(self) -> str:
        """The user's message as the agent passes it on."""
        return f"{self.text}\n\nAttached files:\n- {self.file} (document): {self.url}" if self.file else self.text

    @property
    def url(self) -> str:
        return f"{FOLDER}/{self.file}"


# Written after the prompt was settled: 20 need a tool, 20 do not.
PROMPTS = (
    Prompt("What is 4,782 divided by 12?", CALCULATOR, value=398.5),
    Prompt("Calculate the square root of 7,569.", CALCULATOR, value=87),
    Prompt("Add up 48.50, 17.25, 126.75 and 9.75.", CALCULATOR, value=202.25),
    Prompt("What is (125 + 378) * 16 - 94?", CALCULATOR, value=7954),
    Prompt("If I save 135 a month, how much will I have after 28 months?", CALCULATOR, value=3780),
    Prompt("Which customers in this list are from Germany?", READERS, file=CSV),
    Prompt("How do I reset the device?", READERS, file=PDF),
    Prompt("What is the maximum load in kilograms?", READERS, file=PDF),
    Prompt("List the safety warnings in this manual.", READERS, file=PDF),
    Prompt("What is Maria Lopez's job title?", READERS, file=XLSX),
    Prompt("What are the main conclusions of this report?", READERS, file=DOCX),
    Prompt("Generate an image of a robot playing the violin.", ("image_generation_tool",), ("robot", "violin")),
    Prompt("Paint a lighthouse in a storm.", ("image_generation_tool",), ("lighthouse", "storm")),
    Prompt("Can you make a picture of a dragon holding a balloon?", ("image_generation_tool",), ("dragon", "balloon")),
    Prompt("Make a bar chart of visitors: Monday 45, Tuesday 62, Wednesday 58.", ("execute_code",), ("45", "62", "58")),
    Prompt("Run a Monte Carlo simulation to estimate pi.", ("execute_code",), ("random",)),
    Prompt("Fit a line to (1, 2.1), (2, 3.9), (3, 6.2) and plot it.", ("execute_code",), ("2.1", "3.9", "6.2")),
    Prompt("What is the latest news about NASA?", ("duckduckgo_web_search",), ("NASA",)),
    Prompt("Which films are showing in Dublin this week?", ("duckduckgo_web_search",), ("Dublin",)),
    Prompt("What does this page say? https://www.gutenberg.org/about/", ("fetch_page",), ("gutenberg.org/about",)),
    Prompt("Good morning, how are you?"),
    Prompt("How many continents are there?"),
    Prompt("Why is the sky blue?"),
    Prompt("Write a short poem about autumn."),
    Prompt("Translate into German: I would like a cup of tea, please."),
    Prompt("What causes the tides?"),
    Prompt("Give me three ideas for a birthday present for my dad."),
    Prompt("Nice to meet you, I'm Anna."),
    Prompt("Who wrote Pride and Prejudice?"),
    Prompt("What does the word 'ubiquitous' mean?"),
    Prompt("How can I fall asleep faster?"),
    Prompt("Make this shorter: I am writing in order to let you know that I will not be able to come."),
    Prompt("Explain what this line of Python means: squares = [n * n for n in numbers]"),
    Prompt("Write a thank-you note to my teacher."),
    Prompt("In which year did the Second World War end?"),
    Prompt("How do I get a coffee stain out of a shirt?"),
    Prompt("I'm nervous about my job interview tomorrow. Any advice?"),
    Prompt("Put these words in alphabetical order: pear, apple, fig, mango."),
    Prompt("I'm bored, let's chat."),
    Prompt("Ask me a riddle."),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the model decided for one prompt, in words, and whether that was right."""

    prompt: Prompt
    decided: str
    right: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds from a start to the first word of a short question, and again when warm; bytes of memory."""

    cold: float
    warm: float
    memory: int


async def verdict(model: ChatModel, prompt: Prompt, tools: Sequence[ToolSchema]) -> Verdict:
    """One decision of the model."""
    answer, started = Accumulator(), perf_counter()
    messages = [system(SYSTEM_PROMPT), user(prompt.message)]
    async with aclosing(model.stream(messages, tools, SHORT)) as deltas:
        async for delta in deltas:
            answer.add(delta)
    calls, decided = list[tuple[str, str]](), list[str]()
    for call in answer.message().tool_calls:
        calls.append((call.name, call.function.arguments))
        text = ", ".join(map(str, orjson.loads(call.function.arguments).values())).replace("\n", " ⏎ ")
        text = (text if len(text) <= 90 else f"{text[:90]} …").replace("|", "\\|").replace("`", "'")
        decided.append(f"{call.name} `{text}`")
    return Verdict(prompt, ", ".join(decided) or "reply", _right(prompt, calls), perf_counter() - started)


async def speed(model: EmbeddedModel, tools: Sequence[ToolSchema]) -> Speed:
    """The first word of a new process, and then of another short question."""
    started = perf_counter()
    async with ModelProcess(model, print) as process:
        chat = process.chat
        await _first_word(chat, "Who wrote Faust?", tools)
        cold, started = perf_counter() - started, perf_counter()
        await _first_word(chat, "Who wrote Emma?", tools)
        return Speed(cold, perf_counter() - started, _memory(process.pid or 0))


def table(verdicts: Sequence[Verdict], measured: Speed | None, cores: int) -> str:
    """The measured part of the page; without `measured`, as on a busy machine, it has no speed."""
    right = sum(item.right for item in verdicts)
    needing = [item for item in verdicts if item.prompt.tools]
    speed = measured and (
        f"On {cores} cores: first word {measured.cold:.1f} s after the start, {measured.warm:.1f} s warm; "
        f"{measured.memory / 1e9:.2f} GB of memory."
    )
    lines = [
        f"Right: {right} of {len(verdicts)} ({sum(item.right for item in needing)} of {len(needing)} that need a tool, "
        f"{right - sum(item.right for item in needing)} of {len(verdicts) - len(needing)} that need none).",
        *([speed] if speed else []),
        "",
        "| question | decided | right | s |",
        "|---|---|---|---|",
        *(
            f"| {item.prompt.text}{f' ({item.prompt.file})' if item.prompt.file else ''} | {item.decided} | "
            f"{'yes' if item.right else '**no**'} | {item.seconds:.1f} |"
            for item in verdicts
        ),
    ]
    return "\n".join(lines)


def _right(prompt: Prompt, calls: Sequence[tuple[str, str]]) -> bool:
    if not prompt.tools:
        return not calls
    if not calls or any(name not in prompt.tools for name, _ in calls):
        return False
    if prompt.value is not None:
        try:
            results = [float(evaluate(orjson.loads(arguments)["expression"])) for _, arguments in calls]
        except (AgentError, ValueError):
            return False
        return any(abs(result - prompt.value) < 1e-9 * max(1, abs(prompt.value)) for result in results)
    written = " ".join(arguments for _, arguments in calls).lower().replace("_", "").replace(",000", "000")
    words = (*prompt.words, *([prompt.url] if prompt.file else []))
    return all(word.lower().replace("_", "") in written for word in words)


async def _first_word(chat: ChatModel, question: str, tools: Sequence[ToolSchema]) -> None:
    messages = [system(SYSTEM_PROMPT), user(question)]
    async with aclosing(chat.stream(messages, tools, ModelOptions())) as deltas:
        async for delta in deltas:
            if isinstance(delta, TextDelta):
                return


def _memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


async def _measure(with_speed: bool) -> str:
    from tests.support.local_tools import DEFAULT_TOOLS

    model = embedded_model(load_settings())
    if model.found() is None:
        raise SystemExit("The model is not on this machine: dial-agent model pull")
    verdicts: list[Verdict] = []
    async with ModelProcess(model, print) as process:
        for prompt in PROMPTS:
            verdicts.append(await verdict(process.chat, prompt, DEFAULT_TOOLS))
            print(f"{'right' if verdicts[-1].right else 'WRONG'}  {prompt.text}  {verdicts[-1].decided}", flush=True)
    measured = None
    if with_speed:
        measured = await speed(model, DEFAULT_TOOLS)
    return table(verdicts, measured, os.cpu_count() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the model of this machine.")
    parser.add_argument("--write", type=Path, help="put the figures into this page")
    parser.add_argument("--no-speed", action="store_true", help="measure the decisions only, on a busy machine")
    given = parser.parse_args()
    text = asyncio.run(_measure(not given.no_speed))
    if given.write is None:
        print(text)
    else:
        before, _, rest = given.write.read_text("utf-8").partition(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
