"""Collect what code writes and shows, within bounds."""

import asyncio
import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Any, cast

from mcp_servers.python_interpreter.config import Limits
from mcp_servers.python_interpreter.envelope import Message, scalar

PLOTLY = "application/vnd.plotly.v1+json"
# What a display is kept as, best first: a file, because no model can use its text.
_PICTURES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "application/pdf": "pdf"}
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class Shown:
    """A display as a file; `stem` names its kind."""

    stem: str
    suffix: str
    mime_type: str
    content: bytes


@dataclass(slots=True)
class Collector:
    """The output of one call. `overflow` is set when there is more than may be kept; the rest is thrown away."""

    limits: Limits
    stdout: list[str] = field(default_factory=list[str])
    stderr: list[str] = field(default_factory=list[str])
    result: str = ""
    traceback: str = ""
    overflow: asyncio.Event = field(default_factory=asyncio.Event)
    _displays: dict[str, str | Shown] = field(default_factory=dict[str, "str | Shown"])
    _bytes: int = 0
    _clear_first: bool = False

    def __call__(self, message: Message) -> None:
        """Take one message of the kernel, whatever its shape."""
        content = message.content
        self._bytes += message.size
        if self._bytes > self.limits.output_bytes:
            self.overflow.set()
            return
        match message.kind:
            case "stream":
                self._clear_if_asked()
                lines = self.stderr if content.get("name") == "stderr" else self.stdout
                lines.append(scalar(content.get("text")))
            case "display_data" | "execute_result" | "update_display_data":
                self._clear_if_asked()
                self._display(message.kind, content)
            case "error":
                lines = content.get("traceback")
                self.traceback = plain("\n".join(map(scalar, lines if isinstance(lines, list) else ())))
            case "clear_output":
                self._clear_first = True
                if not content.get("wait"):
                    self._clear_if_asked()
            case _:
                pass

    @property
    def displays(self) -> list[str]:
        """The displays that are text, in order."""
        return [item for item in self._displays.values() if isinstance(item, str)]

    @property
    def shown(self) -> list[Shown]:
        """The displays that are files, in order."""
        return [item for item in self._displays.values() if isinstance(item, Shown)]

    def _clear_if_asked(self) -> None:
        if self._clear_first:
            self.stdout, self.stderr, self._displays, self._clear_first = [], [], {}, False

    def _display(self, kind: str, content: dict[str, Any]) -> None:
        data = _mapping(content.get("data"))
        name = scalar(_mapping(content.get("transient")).get("display_id")) or f"#{len(self._displays)}"
        if kind == "update_display_data" and name not in self._displays:
            return
        shown = _as_file(data, explicit=kind != "execute_result")
        text = scalar(data.get("text/markdown") or data.get("text/plain"))
        if shown is not None:
            self._displays[name] = shown
        elif kind == "execute_result":
            self.result = plain(text)
        elif text:
            self._displays[name] = plain(text)


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_file(data: dict[str, Any], *, explicit: bool) -> Shown | None:
    if PLOTLY in data:
        return _chart(data[PLOTLY])
    for mime_type, suffix in _PICTURES.items():
        if mime_type in data:
            content = _decoded(data[mime_type])
            return Shown("figure", suffix, mime_type, content) if content else None
    if "image/svg+xml" in data:
        return Shown("figure", "svg", "image/svg+xml", scalar(data["image/svg+xml"]).encode())
    if explicit and "text/html" in data and "text/markdown" not in data:  # as a result it is mostly decoration
        return Shown("output", "html", "text/html", scalar(data["text/html"]).encode())
    return None


def _chart(figure: Any) -> Shown | None:
    try:
        return Shown("plotly", "json", PLOTLY, json.dumps(figure).encode())
    except RecursionError:  # nested deeper than any chart
        return None


def _decoded(value: Any) -> bytes:
    try:
        return base64.b64decode(scalar(value))
    except (binascii.Error, ValueError):
        return b""


def plain(text: str) -> str:
    """The text without terminal colours and without what was overwritten."""
    clean = _ANSI.sub("", text) if "\x1b" in text else text
    if "\r" not in clean:
        return clean
    return "\n".join(line.rpartition("\r")[2] for line in clean.replace("\r\n", "\n").split("\n"))


def capped(text: str, limits: Limits) -> tuple[str, bool]:
    """Head and tail of a long text, and whether something was left out."""
    head, tail = limits.text_head, limits.text_tail
    if len(text) <= head + tail:
        return text, False
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[-tail:]}", True
