"""Forty questions for the model of this machine, written after its prompt was settled: 20 need a tool, 20 do not."""

from __future__ import annotations

from dataclasses import dataclass

CSV, PDF, XLSX, DOCX = "customers.csv", "user_manual.pdf", "employees.xlsx", "report.docx"
FOLDER = "files/7RkqBz2mWd9vT4xLhN"
READERS = ("file_content_extraction_tool", "rag_search_tool")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`tools` any of which is right, none for a reply; the arguments hold all `words`, or come to `value`."""

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


def _calculator(text: str, value: float) -> Prompt:
    return Prompt(text, ("calculator",), value=value)


def _reader(text: str, file: str) -> Prompt:
    return Prompt(text, READERS, (f"{FOLDER}/{file}",), file=file)


PROMPTS = (
    _calculator("What is 4,782 divided by 12?", 398.5),
    _calculator("Calculate the square root of 7,569.", 87),
    _calculator("Add up 48.50, 17.25, 126.75 and 9.75.", 202.25),
    _calculator("What is (125 + 378) * 16 - 94?", 7954),
    _calculator("If I save 135 a month, how much will I have after 28 months?", 3780),
    _reader("Which customers in this list are from Germany?", CSV),
    _reader("How do I reset the device?", PDF),
    _reader("What is the maximum load in kilograms?", PDF),
    _reader("List the safety warnings in this manual.", PDF),
    _reader("What is Maria Lopez's job title?", XLSX),
    _reader("What are the main conclusions of this report?", DOCX),
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
