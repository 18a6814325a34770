"""Fold the events of a run into what is printed once and what still changes: text, tool cards, sources, the end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from markdown_it import MarkdownIt
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from task.console.terminal.rendering import TerminalMarkdown, one_line, safe
from task.conversation.messages import Attachment
from task.conversation.sources import number_of
from task.store.records import Event

RESULT_LINES, MOST_RESULT = 3, 20_000
MOST_OPEN_CARDS = 8
MOST_SUMMARY = 600
MOST_CHARS = 4_000  # of a block of Markdown that does not end: more of it is printed in parts
_TOOK = re.compile(r" \[(\d+(?:\.\d+)?)s\]$")
_RESPONSE = "## Response:"
_SECRET = re.compile(  # also in JSON that is text in other JSON; bounded, because pieces of any size come
    r"(?i)((?:api[-_]?key|token(?!s)|secret|password|passwd|authorization|credential)[\w-]{0,40}\\*[\"']?\s?[:=]\s?)"
    r"(?:\\*\"[^\"]+|\\*'[^']+|(?:bearer\s|basic\s)?[^\s\"',;}&]+)"
    r"|\b(sk|pk|ghp|xox[abp]|AKIA)[-_]?[\w-]{12,}"
)
_ENDS = {
    "cancelled": ("Stopped.", "yellow"),
    "limited": ("The limit of this turn was reached: {limit}.", "yellow"),
    "interrupted": ("The answer was interrupted.", "red"),
}
_BLOCKS = MarkdownIt().enable("table").disable("inline")
_FENCE = re.compile(r"\A {0,3}(`{3,}+|~{3,}+).*+\n")
_TABLE = re.compile(r"\A[^|\n]*+\|.*+\n {0,3}\|?[ :|]*+-[ :|-]*+\n")
_ITEM = re.compile(r"^ {0,3}(?:[-*+]|\d{1,9}[.)])(?: |$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Look:
    """How the console looks, by the names of its settings."""

    assistant_prefix: str = "Assistant: "
    error_prefix: str = "Error: "
    system_prefix: str = "System: "
    tool_prefix: str = "Tool: "
    prompt_symbol: str = "> "
    show_timestamps: bool = False
    color_enabled: bool = True
    debug_mode: bool = False

    def stamp(self) -> list[tuple[str, str]]:
        """What stands before a message, where that is wanted: when it was written."""
        return [(time.strftime("%H:%M:%S "), "dim")] if self.show_timestamps else []


@dataclass(slots=True)
class _ToolCard:
    title: str
    since: float
    text: str = ""
    seconds: float | None = None
    failed: bool = False
    children: list[_ToolCard] = field(default_factory=list["_ToolCard"])


class RunView:
    """One run. `finished()` gives each part once, in order; `unfinished()` is short, whatever the answer's length.

    `attachments` are the answer's own files; its citations are listed at its end.
    """

    def __init__(
        self, look: Look, debug: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._debug, self._clock = look, debug, clock
        self._blocks = MarkdownBlocks()
        self._stages: dict[int, _ToolCard] = {}
        self._cards: list[_ToolCard] = []
        self._sources: list[Attachment] = []
        self.attachments: list[Attachment] = []
        self._printed: list[RenderableType] = []
        self._before, self._headed = "", False
        self._started, self._over = clock(), False

    def show(self, event: Event) -> None:
        """Add the next event of the run."""
        data = event.data
        if self._debug() and event.type not in ("text", "reasoning"):
            self._printed.append(Text(summary(event), "dim"))
        match event.type:
            case "text":
                self._print_blocks(self._blocks.add(data["text"]))
            case "stage_opened":
                self._print_blocks(self._blocks.end())
                stage = self._stages[data["stage"]] = _ToolCard(one_line(data["name"]), self._clock())
                parent = self._stages.get(data["parent"]) if data["parent"] is not None else None
                (parent.children if parent is not None else self._cards).append(stage)
            case "stage_text" if stage := self._stages.get(data["stage"]):
                stage.text += data["text"][: max(MOST_RESULT - len(stage.text), 0)]
            case "stage_closed" if stage := self._stages.pop(data["stage"], None):
                took = _TOOK.search(data["name"])
                stage.title = one_line(_TOOK.sub("", data["name"])) or stage.title
                stage.seconds = float(took[1]) if took else self._clock() - stage.since
                stage.failed = data["status"] == "failed"
                # Calls of one step run in parallel: their cards are printed in the order in which they were opened.
                while self._cards and self._cards[0].seconds is not None:
                    self._print("card", self._card(self._cards.pop(0)))
            case "attachment" if data["stage"] is None:
                attachment = Attachment(**{name: data["attachment"].get(name) for name in Attachment.__slots__})
                (self.attachments if number_of(attachment) is None else self._sources).append(attachment)
            case "error":
                self._print_blocks(self._blocks.end())
                self._print("error", Text(self._look.error_prefix + safe(data["error"]["message"]), "red"))
            case "finished":
                self._finish(data)
            case _:
                pass

    def finished(self) -> list[RenderableType]:
        """What is complete since the last time, to be printed once."""
        printed, self._printed = self._printed, []
        return printed

    def unfinished(self) -> list[RenderableType]:
        """The part of the answer that still changes."""
        if self._over:
            return []
        shown: list[RenderableType] = []
        if self._blocks.pending.strip():
            shown += [Text(), TerminalMarkdown(self._blocks.pending)]
        return [*shown, *map(self._card, self._cards[:MOST_OPEN_CARDS])]

    @property
    def activity(self) -> str:
        """What the user waits for, in a line; empty once the run is over."""
        return "" if self._over else f"Working · {self._clock() - self._started:.0f} s"

    def _card(self, stage: _ToolCard, depth: int = 0) -> RenderableType:
        name, _, argument = stage.title.partition(": ")
        mark, style = ("✗", "red") if stage.failed else ("✓", "green") if stage.seconds is not None else ("●", "yellow")
        took = stage.seconds if stage.seconds is not None else self._clock() - stage.since
        lasted = f"{took:.2f} s" if took < 10 else f"{took:.0f} s" if took < 120 else f"{took / 60:.1f} min"
        prefix = (self._look.tool_prefix if depth == 0 else "", "dim")
        rest = (f" {argument}" if argument else "", (f" · {lasted}", "dim"))
        parts: list[RenderableType] = [
            Text.assemble((f"{mark} ", style), prefix, (name, "bold"), *rest, overflow="fold")
        ]
        for text in result_lines(stage.text) if stage.seconds is not None else ():
            line = Text(text, "red" if stage.failed else "dim", no_wrap=True, overflow="ellipsis")
            parts.append(Padding(line, (0, 0, 0, 2)))
        parts += [self._card(child, depth + 1) for child in stage.children]
        return Padding(Group(*parts), (0, 0, 0, 2 if depth else 0))

    def _finish(self, data: Mapping[str, Any]) -> None:
        self._print_blocks(self._blocks.end())
        for stage in self._cards:
            stage.seconds, stage.failed = self._clock() - stage.since, True
            self._print("card", self._card(stage))
        self._cards.clear()
        if self._sources:
            lines = [Text("Sources", "bold")]
            for item in self._sources:
                title, place = one_line(item.title or ""), item.reference_url or ""
                address = "" if place in (item.title or "") else f" {one_line(place)}"
                lines.append(Text.assemble("  ", title, (address, "dim"), overflow="fold"))
            self._print("sources", Group(*lines))
        if ending := _ENDS.get(data["status"]):
            self._print("end", Text(ending[0].format(limit=data.get("limit") or "steps"), ending[1]))
        self._over = True

    def _print_blocks(self, blocks: Iterable[MarkdownBlock]) -> None:
        for block in blocks:
            self._print("continued" if block.continues else "text", TerminalMarkdown(block.text))

    def _print(self, kind: str, part: RenderableType) -> None:
        if kind == "text" or kind not in (self._before, "continued"):
            self._printed.append(Text())
        if kind == "text" and not self._headed:
            self._printed += heading(self._look)
            self._headed = True
        self._printed.append(part)
        self._before = "text" if kind == "continued" else kind


def heading(look: Look) -> list[Text]:
    """The line above an answer: who wrote it and, where wanted, when."""
    parts, prefix = look.stamp(), look.assistant_prefix.rstrip()
    return [Text.assemble(*parts, (prefix, "bold green"))] if parts or prefix else []


def result_lines(text: str) -> list[str]:
    """The first lines of a tool's result, as its stage shows it."""
    request, found, response = text.partition(_RESPONSE)
    result = response if found else "" if request.startswith("## Request") else request
    lines = [line.rstrip() for line in safe(result).splitlines() if line.strip() and not line.startswith("```")]
    more = len(lines) - RESULT_LINES
    return lines if more <= 1 else [*lines[:RESULT_LINES], f"… {more} more lines"]


def attachment_line(item: Attachment, place: str) -> Text:
    """An attachment as a line: its title, its type, and where it is."""
    kind = f" ({item.type})" if item.type else ""
    return Text(f"📎 {one_line(item.title or 'attachment')}{safe(kind)} {one_line(place)}".rstrip(), "cyan")


def summary(event: Event) -> str:
    """An event in a line, without secrets."""
    text = json.dumps(event.data, ensure_ascii=False, default=str)
    return f"debug: {event.type} {masked(one_line(text[: 10 * MOST_SUMMARY]))[:MOST_SUMMARY]}"


def masked(text: str) -> str:
    """The text with everything that looks like a key or a password as `***`."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    """A finished part of the answer; `continues`: it goes on where the one before it stopped."""

    text: str
    continues: bool = False


@dataclass(slots=True)
class MarkdownBlocks:
    """Cuts streamed Markdown, in pieces of any size, into blocks that are finished, so that each is rendered once.

    `pending` is the unfinished block; its size is bounded, however the text goes on.
    """

    pending: str = ""
    _continues: bool = False

    def add(self, text: str) -> list[MarkdownBlock]:
        """The blocks that this piece has finished."""
        self.pending, finished = self.pending + text, list[MarkdownBlock]()
        if "\n" in text and ("\n\n" in self.pending or "```" in self.pending):  # else it is a block that goes on
            blocks = _BLOCKS.parse(self.pending.replace("\r", " "))
            starts = [token.map[0] for token in blocks if token.level == 0 and token.map]
            if len(starts) > 1:  # all blocks but the last can no longer change
                finished += self._take(sum(len(line) + 1 for line in self.pending.split("\n")[: starts[-1]]))
        while len(self.pending) > MOST_CHARS:
            finished += self._cut_overlong()
        return finished

    def end(self) -> list[MarkdownBlock]:
        """What is left, at the end of the text or before something else is shown."""
        return self._take(len(self.pending))

    def _cut_overlong(self) -> list[MarkdownBlock]:
        # The opening line of code and the head of a table begin the next part again.
        fence, head, place = _FENCE.match(self.pending), _TABLE.match(self.pending), 0
        carried = fence[0] if fence and f"\n{fence[1]}" not in self.pending[fence.end() - 1 :] else ""
        carried = head[0] if head else carried
        carried = carried if len(carried) < MOST_CHARS // 2 else ""
        if _ITEM.match(self.pending):
            place = max((found.start() for found in _ITEM.finditer(self.pending, 1)), default=0)
        for end in ("\n", " "):  # no word is cut
            place = place if place > len(carried) else self.pending.rfind(end, len(carried)) + 1
        return self._take(place if place > len(carried) else len(self.pending), carried, continues=True)

    def _take(self, place: int, carried: str = "", *, continues: bool = False) -> list[MarkdownBlock]:
        block = MarkdownBlock(self.pending[:place].strip("\n"), self._continues)
        self.pending, self._continues = carried + self.pending[place:], continues
        return [block] if block.text.strip() else []
