"""Turn Markdown and messages into text for a terminal, in which nothing but our own sequences acts on it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Any, ClassVar, Literal, Self

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, ImageItem, ListItem, Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from task.conversation.inputs import Answer
from task.permissions.icerc import plain, shortened, spelt_out, visible

Colors = Literal["standard", "256"] | None

MOST_COLUMNS = 110  # longer lines are hard to read
# Terminals' sequences: strings such as titles and links (OSC, DCS, …), then CSI, then the short ones. What a sequence
# leaves open is only taken up to the end of its line.
_SEQUENCE = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0, C1 and DEL, half surrogates, and what reorders or hides text: marks and overrides of direction, tags.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_BLANK_ENDS = re.compile(r"(?<! ) +((?:\x1b\[0m)?)\n")
_EMPTY_START = re.compile(r"\A(?:(?:\x1b\[[0-9;]*m)*\n)+")
_EMPTY_LINE = re.compile(r"(?:\x1b\[[0-9;]*m)*")
# Of the colours that can be read on light and on dark backgrounds.
_STYLES = Theme(
    {"markdown.code": "cyan", "markdown.h2": "bold", "markdown.link": "cyan", "markdown.link_url": "underline"}
)
FOLDED_LINES, FOLDED_CHARS = 10, 1_000  # of an input; a longer one is shown as a line
_WORDS = re.compile(r"(?>(?:\\.|[^\s\\])+)\\?|\s++|\\")  # and the blanks between them
_ASCII = re.compile(r"[\n\t -~]*")


def safe(text: str) -> str:
    """The text without terminal sequences; other control characters and those that reorder text become `�`."""
    if _ASCII.fullmatch(text):
        return text
    return _UNSAFE.sub("\ufffd", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """The same in one line."""
    return " ".join(safe(text).split())


def local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def colors_of(environment: Mapping[str, str], *, enabled: bool = True) -> Colors:
    """The colours to use; none where NO_COLOR is set, the terminal has none, or the settings turn them off."""
    kind = environment.get("TERM", "")
    if not enabled or environment.get("NO_COLOR") or kind in ("", "dumb", "unknown"):
        return None
    return "256" if "256" in kind or environment.get("COLORTERM") else "standard"


def ansi(renderable: RenderableType, columns: int, colors: Colors) -> str:
    """The lines, each ended, with sequences for colours only."""
    plain: dict[str, Any] = {"highlight": False, "legacy_windows": False, "no_color": False, "theme": _STYLES}
    width = max(columns, 10)
    console = Console(file=StringIO(), width=width, color_system=colors, force_terminal=True, **plain)
    depth = console._color_system  # pyright: ignore[reportPrivateUsage]
    pieces: list[str] = []
    for text, style, control in console.render(renderable):
        if not control:
            shown = safe(text)  # Markdown's entities (`&#27;`) become characters only here
            pieces.append(style.render(shown, color_system=depth) if style and colors else shown)
    lines = _BLANK_ENDS.sub(r"\1\n", "".join(pieces))  # a narrower window would wrap them
    if isinstance(renderable, Markdown):
        *whole, rest = _EMPTY_START.sub("", lines).split("\n")
        while not rest and len(whole) > 1 and _EMPTY_LINE.fullmatch(whole[-1]):
            whole.pop()
        lines = "\n".join([*whole, rest])
    return lines if lines.endswith("\n") or not lines else lines + "\n"


class _PlainHeading(Heading):
    """A heading at the left margin, without a frame around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        if self.tag == "h1":
            self.text.stylize("underline")
        yield self.text


class _Code(CodeBlock):
    """Code: wrapped at its right end, on the terminal's own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        lexer = self.lexer_name if console.color_system else "text"
        yield Padding(Syntax(code, lexer, theme="ansi_dark", word_wrap=True, background_color="default"), (0, 0, 0, 2))


class _Image(ImageItem):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, f" ({self.destination})" if self.destination else "")


class _Item(ListItem):
    """Shows itself even without a text: an answer may be just `1175.`"""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self._markup = markup

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> Self:
        return cls(token.markup)

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().render_bullet(console, options) if self.elements._renderables else [Segment(f"{self._markup}\n")]

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        if self.elements._renderables:
            return super().render_number(console, options, number, last_number)
        return [Segment(f"{number}{self._markup}\n")]


class TerminalMarkdown(Markdown):
    """Markdown for a terminal: links show where they lead, images are their text and address."""

    elements: ClassVar[dict[str, type[Any]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _Code,
        "code_block": _Code,
        "image": _Image,
        "list_item_open": _Item,
    }

    def __init__(self, source: str) -> None:
        super().__init__(safe(source), code_theme="ansi_dark", hyperlinks=False)


def last_word(text: str) -> str:
    """The part of a typed text that a completion replaces; a blank after a backslash belongs to it."""
    parts = [found[0] for found in _WORDS.finditer(text)]
    return parts[-1] if parts and not parts[-1].isspace() else ""


def is_long(text: str) -> bool:
    """Whether only the size of a typed text is shown."""
    return len(text) > FOLDED_CHARS or text.count("\n") >= FOLDED_LINES


def folded(text: str) -> str:
    """A typed text, in a line if it is long."""
    return f"{' '.join(text[:60].split())}… [{size_of(text)}]" if is_long(text) else text


def size_of(text: str) -> str:
    return f"{len(text):,} characters, {text.count(chr(10)) + 1:,} lines"


LEVELS = {"low": "green", "medium": "yellow", "high": "bold red"}


@dataclass(frozen=True, slots=True)
class PermissionQuestion:
    """May this call run? `card` is the ICERC card, `code` answers it anywhere, `grant` is what "always" would allow."""

    request: Mapping[str, Any]
    card: Mapping[str, Any]
    code: str = ""
    grant: str = ""


def card(question: PermissionQuestion) -> RenderableType:
    """The card in a frame, its border in the colour of the risk; nothing is hidden, nothing acts on the terminal."""
    shown = question.card
    risk: Mapping[str, str] = shown.get("risk_assessment") or {}
    level = str(risk.get("level", ""))
    rows = {
        "Intent": plain(str(shown.get("intent", ""))) or "not given",
        "Command": spelt_out(shortened(str(shown.get("command", "")))),
        "Expected": plain(str(shown.get("expected_outcome", ""))) or "not given",
        "Risk": f"{plain(level).upper()} – {plain(str(risk.get('scope', '')))}".strip(" –"),
        "Details": "\n".join(plain(line) for line in str(risk.get("details", "")).splitlines() if line.strip()),
        "Always": plain(question.grant),
        "Elsewhere": f"approve {plain(question.code)}, or deny it" if question.code else "",
    }
    style = LEVELS.get(level, "yellow")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, text in rows.items():
        if text:
            table.add_row(name, Text(text, style if name == "Risk" else "bold" if name == "Command" else ""))
    title = Text(f"May I run {plain(str(question.request.get('tool_name') or 'this'))}?", "bold")
    note = Text("intent and expectation: the model's words", "dim not bold")
    return Panel(table, title=title, title_align="left", border_style=style, subtitle=note, subtitle_align="right")


def decision(answer: Answer, grant: str) -> Text:
    """The decision as a line."""
    if not answer.allowed:
        return Text(f"✗ Denied{f': {plain(answer.reason)}' if answer.reason else ''}", "red")
    once = "with changed arguments" if answer.arguments is not None else "this once"
    return Text(f"✓ Allowed {'always' if answer.always and grant else once}", "green")


def editable(arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON to be edited; characters that cannot be seen are escaped."""
    text = json.dumps(arguments, indent=2, ensure_ascii=False, default=str)
    return text if visible(text) == text else json.dumps(arguments, indent=2, default=str)


def edited(text: str) -> dict[str, Any]:
    """The arguments as they were edited.

    Raises:
        ValueError: what is wrong with them.
    """
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"This is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ValueError("This JSON is nested too deeply.") from error
    if not isinstance(arguments, dict):
        example = '{"path": "notes.txt"}'
        raise ValueError(f"The arguments are a JSON object, such as {example}.")  # noqa: TRY004 - the input is wrong
    return arguments
