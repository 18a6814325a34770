"""Fold the events of a run into what is printed once and what still changes: text, tool cards, sources, the end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from task.console.terminal.blocks import MarkdownBlock, MarkdownBlocks
from task.console.terminal.rendering import TerminalMarkdown, one_line, safe
from task.conversation.messages import Attachment
from task.conversation.sources import number_of
from task.store.records import Event

RESULT_LINES, MOST_RESULT = 3, 20_000
MOST_OPEN_CARDS = 8
_TOOK = re.compile(r" \[(\d+(?:\.\d+)?)s\]$")
_RESPONSE = "## Response:"
_SECRET = re.compile(  # also in JSON that is text in other JSON; bounded, because pieces of any size come
    r"(?i)((?:api[-_]?key|token(?!s)|secret|password|passwd|authorization|credential)[\w-]{0,40}\\*[\"']?\s?[:=]\s?)"
    r"(?:\\*\"[^\"]+|\\*'[^']+|(?:bearer\s|basic\s)?[^\s\"',;}&]+)"
    r"|\b(sk|pk|ghp|xox[abp]|AKIA)[-_]?[\w-]{12,}"
)
MOST_SUMMARY = 600
_ENDS = {
    "cancelled": ("Stopped.", "yellow"),
    "limited": ("The limit of this turn was reached: {limit}.", "yellow"),
    "interrupted": ("The answer was interrupted.", "red"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How answers look: the prefixes of the configuration, whether times are shown, and a summary of every event."""

    assistant_prefix: str = "Assistant: "
    error_prefix: str = "Error: "
    tool_prefix: str = "Tool: "
    timestamps: bool = False


@dataclass(slots=True)
class _Stage:
    title: str
    since: float
    parent: _Stage | None
    text: str = ""
    seconds: float | None = None
    failed: bool = False
    children: list[_Stage] = field(default_factory=list["_Stage"])


class RunView:
    """One run. `finished()` gives each part once, in order; `unfinished()` is short, whatever the answer's length.

    `attachments` are the answer's own files; its citations are listed at its end.
    """

    def __init__(
        self, look: Look, debug: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._debug, self._clock = look, debug, clock
        self._blocks = MarkdownBlocks()
        self._stages: dict[int, _Stage] = {}
        self._cards: list[_Stage] = []
        self._sources: list[Attachment] = []
        self.attachments: list[Attachment] = []
        self._printed: list[RenderableType] = []
        self._before, self._headed = "", False
        self._thought = ""
        self._started, self._over = clock(), False

    def show(self, event: Event) -> None:
        """Add the next event of the run."""
        data = event.data
        if self._debug() and event.type not in ("text", "reasoning"):
            self._printed.append(Text(summary(event), "dim"))
        match event.type:
            case "text":
                self._thought = ""
                self._print_blocks(self._blocks.add(data["text"]))
            case "reasoning":
                self._thought = (self._thought + data["text"])[-200:]
            case "stage_opened":
                self._open(data)
            case "stage_text" if stage := self._stages.get(data["stage"]):
                stage.text += data["text"][: max(MOST_RESULT - len(stage.text), 0)]
            case "stage_closed":
                self._close(data)
            case "attachment" if data["stage"] is None:
                self._attach(data["attachment"])
            case "error":
                self._end_text()
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
        for stage in self._cards[:MOST_OPEN_CARDS]:
            shown.append(self._card(stage))
        if len(self._cards) > MOST_OPEN_CARDS:
            shown.append(Text(f"  and {len(self._cards) - MOST_OPEN_CARDS} more calls", "dim"))
        return shown

    @property
    def activity(self) -> str:
        """What the person waits for, in a line; empty once the run is over."""
        if self._over:
            return ""
        doing = one_line(self._thought)[-60:] if self._thought else ""
        took = f"{self._clock() - self._started:.0f} s"
        return f"Thinking: …{doing} · {took}" if doing else f"Working · {took}"

    def _open(self, data: Mapping[str, Any]) -> None:
        self._end_text()
        parent = self._stages.get(data["parent"]) if data["parent"] is not None else None
        stage = self._stages[data["stage"]] = _Stage(one_line(data["name"]), self._clock(), parent)
        (parent.children if parent is not None else self._cards).append(stage)

    def _close(self, data: Mapping[str, Any]) -> None:
        stage = self._stages.pop(data["stage"], None)
        if stage is None:
            return
        took = _TOOK.search(data["name"])
        stage.title = one_line(_TOOK.sub("", data["name"])) or stage.title
        stage.seconds = float(took[1]) if took else self._clock() - stage.since
        stage.failed = data["status"] == "failed"
        # Calls of one step run in parallel: their cards are printed in the order in which they were opened.
        done = list(takewhile(lambda card: card.seconds is not None, self._cards))
        del self._cards[: len(done)]
        for card in done:
            self._print("card", self._card(card))

    def _card(self, stage: _Stage, depth: int = 0) -> RenderableType:
        name, _, argument = stage.title.partition(": ")
        mark, style = ("✗", "red") if stage.failed else ("✓", "green") if stage.seconds is not None else ("●", "yellow")
        seconds = stage.seconds if stage.seconds is not None else self._clock() - stage.since
        line = Text.assemble(
            (f"{mark} ", style), (self._look.tool_prefix if depth == 0 else "", "dim"), (name, "bold"),
            f" {argument}" if argument else "", (f" · {_duration(seconds)}", "dim"), overflow="fold",
        )  # fmt: skip
        parts: list[RenderableType] = [line]
        if stage.seconds is not None:
            parts += [_cut(text, "red" if stage.failed else "dim") for text in result_lines(stage.text)]
        parts += [self._card(child, depth + 1) for child in stage.children]
        return Padding(Group(*parts), (0, 0, 0, 2 if depth else 0))

    def _attach(self, data: Mapping[str, Any]) -> None:
        attachment = attachment_of(data)
        if number_of(attachment) is not None:
            self._sources.append(attachment)
        else:
            self.attachments.append(attachment)

    def _finish(self, data: Mapping[str, Any]) -> None:
        self._end_text()
        for stage in self._cards:
            stage.seconds, stage.failed = self._clock() - stage.since, True
            self._print("card", self._card(stage))
        self._cards.clear()
        if self._sources:
            self._print("sources", Group(*source_lines(self._sources)))
        if ending := _ENDS.get(data["status"]):
            self._print("end", Text(ending[0].format(limit=data.get("limit") or "steps"), ending[1]))
        self._over = True

    def _end_text(self) -> None:
        self._print_blocks(self._blocks.end())

    def _print_blocks(self, blocks: Iterable[MarkdownBlock]) -> None:
        for block in blocks:
            self._print("continued" if block.continues else "text", TerminalMarkdown(block.text))

    def _print(self, kind: str, part: RenderableType) -> None:
        if kind == "text" or kind not in (self._before, "continued"):
            self._printed.append(Text())
        if kind == "text" and not self._headed:
            self._printed += heading(self._look.assistant_prefix, self._look.timestamps)
            self._headed = True
        self._printed.append(part)
        self._before = "text" if kind == "continued" else kind


def heading(prefix: str, timestamps: bool) -> list[Text]:
    """The line above a message: who wrote it and, where wanted, when."""
    parts = [(time.strftime("%H:%M:%S "), "dim")] if timestamps else []
    return [Text.assemble(*parts, (prefix.rstrip(), "bold green"))] if parts or prefix.strip() else []


def result_lines(text: str) -> list[str]:
    """The first lines of a tool's result, as its stage shows it."""
    request, found, response = text.partition(_RESPONSE)
    result = response if found else "" if request.startswith("## Request") else request
    lines = [line.rstrip() for line in safe(result).splitlines() if line.strip() and not line.startswith("```")]
    more = len(lines) - RESULT_LINES
    return lines if more <= 1 else [*lines[:RESULT_LINES], f"… {more} more lines"]


def attachment_of(data: Mapping[str, Any]) -> Attachment:
    """The attachment of an event."""
    return Attachment(**{name: data.get(name) for name in ("type", "title", "data", "url", "reference_url")})


def attachment_line(item: Attachment, place: str) -> Text:
    """An attachment as a line: its title, its type, and where it is."""
    kind = f" ({item.type})" if item.type else ""
    return Text(f"📎 {one_line(item.title or 'attachment')}{safe(kind)} {one_line(place)}".rstrip(), "cyan")


def source_lines(sources: Iterable[Attachment]) -> list[Text]:
    """The sources of an answer, by their numbers."""
    lines = [Text("Sources", "bold")]
    for item in sources:
        address = "" if (item.reference_url or "") in (item.title or "") else f" {one_line(item.reference_url or '')}"
        lines.append(Text.assemble("  ", one_line(item.title or ""), (address, "dim"), overflow="fold"))
    return lines


def summary(event: Event) -> str:
    """An event in a line, without secrets."""
    text = json.dumps(_filled(event.data), ensure_ascii=False, default=str)
    return f"debug: {event.type} {masked(one_line(text[: 10 * MOST_SUMMARY]))[:MOST_SUMMARY]}"


def _filled(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    fields = {name: _filled(item) for name, item in cast("Mapping[str, Any]", value).items()}
    return {name: item for name, item in fields.items() if item not in (None, "", {}, [], ())}


def masked(text: str) -> str:
    """The text with everything that looks like a key or a password as `***`."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)


def _cut(text: str, style: str) -> RenderableType:
    return Padding(Text(text, style, no_wrap=True, overflow="ellipsis"), (0, 0, 0, 2))


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
