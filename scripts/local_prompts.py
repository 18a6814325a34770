"""Forty questions for the model of this machine, written after its prompt was settled: 20 need a tool, 20 do not."""

from __future__ import annotations

from dataclasses import dataclass

CSV, PDF, XLSX, DOCX = "sales_2024.csv", "contract.pdf", "stock.xlsx", "lettre.docx"
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
    _calculator("What is 386 multiplied by 27?", 10422),
    _calculator("How much is 7.5% of 1,240?", 93),
    _calculator("What is 2 to the power of 20?", 1048576),
    _calculator("Split a bill of 187.20 between 6 people.", 31.2),
    _calculator("What is the cosine of 1.2 radians?", 0.3623577544766736),
    _reader("Which product sold best?", CSV),
    _reader("Summarise this in three sentences.", PDF),
    _reader("What are the column names?", XLSX),
    _reader("Translate this letter into English.", DOCX),
    _reader("What does the contract say about early termination?", PDF),
    _reader("How long is the notice period?", PDF),
    Prompt("Draw a cat riding a bicycle.", ("image_generation_tool",), ("cat", "bicycle")),
    Prompt("I need a picture of a mountain lake at sunrise.", ("image_generation_tool",), ("lake", "sunrise")),
    Prompt("Create a logo for a coffee shop called Bean There.", ("image_generation_tool",), ("Bean There",)),
    Prompt("Plot y = x**2 for x from -10 to 10.", ("execute_code",), ("**2", "10")),
    Prompt("Make a pie chart: rent 900, food 350, travel 120.", ("execute_code",), ("900", "350", "120")),
    Prompt("Simulate rolling two dice 10,000 times and chart the sums.", ("execute_code",), ("10000", "random")),
    Prompt("What's the weather in Nairobi right now?", ("duckduckgo_web_search",), ("Nairobi",)),
    Prompt("What is the current price of gold?", ("duckduckgo_web_search",), ("gold",)),
    Prompt("Summarise https://docs.python.org/3/library/asyncio.html", ("fetch_page",), ("docs.python.org/3/library",)),
    Prompt("Hey there!"),
    Prompt("What's the capital of Mongolia?"),
    Prompt("Explain photosynthesis to a child."),
    Prompt("Write a limerick about a penguin."),
    Prompt("Translate 'Where is the station?' into French."),
    Prompt("What is the difference between a virus and a bacterium?"),
    Prompt("Suggest five names for a bakery."),
    Prompt("Thank you, goodbye!"),
    Prompt("Who painted the Mona Lisa?"),
    Prompt("What does HTTP stand for?"),
    Prompt("Give me a recipe for pancakes."),
    Prompt("Rewrite this politely: send me the report now"),
    Prompt("Is a tomato a fruit?"),
    Prompt("Write an SQL query that selects all users older than 30."),
    Prompt("What are the primary colours?"),
    Prompt("Tell me a joke."),
    Prompt("How do I boil an egg?"),
    Prompt("Tell the plot of Romeo and Juliet in two sentences."),
    Prompt("What can you help me with?"),
    Prompt("Correct the grammar: 'She don't like apples'"),
)
