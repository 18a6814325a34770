"""Where an answer goes: choices and stages, and the choice through which nothing passes that would deceive."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from task.output.links import Suspicion
from task.output.sanitizer import Defanger, defanged

logger = logging.getLogger(__name__)

ARGUMENT_CHARS, ARGUMENTS_CHARS, RESPONSE_CHARS = 4_000, 8_000, 30_000  # one, all, and the result, in a stage
STAGE_BYTES = 39_000  # DIAL Chat replaces the text of a stage above 40 KB by a download button
# A piece without any of these neither begins nor ends anything that must be checked, except "www."
_MARKED = re.compile(r"[\[\]<`~/:$!&\\\n\rW]").search
_UPPER = {"url": "URL", "id": "ID", "sql": "SQL"}
_readable_json = json.JSONEncoder(ensure_ascii=False, default=str).encode  # `json.dumps` makes one for each text
_REST = "\n\n[... the rest is too long for a stage]\n"


class _Sink(Protocol):
    def append_content(self, content: str) -> None: ...
    def add_attachment(
        self,
        *,
        type: str | None = None,
        title: str | None = None,
        data: str | None = None,
        url: str | None = None,
        reference_url: str | None = None,
        reference_type: str | None = None,
    ) -> None: ...
    def create_stage(self, name: str | None = None) -> StageSink: ...


class StageSink(_Sink, Protocol):
    """One collapsible box under the answer. Append between `open` and `close` only; open and close once."""

    def open(self) -> None: ...
    def close(self, status: Any = ...) -> None: ...
    def append_name(self, name: str) -> None: ...


class ChoiceSink(_Sink, Protocol):
    """The answer itself: text, attachments, stages and the hidden state, which is set at most once."""

    def append_reasoning_content(self, content: str) -> None: ...
    def set_state(self, state: dict[str, object]) -> None: ...


_S = TypeVar("_S", bound=_Sink)


class NullChoice:
    """A choice and its stages that discard everything, except that the choice's are shown `below` a stage."""

    def __init__(self, below: StageSink | None = None) -> None:
        self._below = below

    def append_content(self, content: str) -> None: ...
    def append_reasoning_content(self, content: str) -> None: ...
    def append_name(self, name: str) -> None: ...
    def add_attachment(self, **_: str | None) -> None: ...
    def set_state(self, state: dict[str, object]) -> None: ...
    def open(self) -> None: ...
    def close(self, status: object = None) -> None: ...

    def create_stage(self, name: str | None = None) -> StageSink:
        return self._below.create_stage(name) if self._below is not None else NullChoice()


class StageStatus(StrEnum):
    """How a stage ended; equal, member by member, to `aidial_sdk.chat_completion.Status`."""

    # The SDK's own enum would pull its web framework under the loop, which knows no network.
    COMPLETED = "completed"
    FAILED = "failed"


class _Forwarding(Generic[_S]):
    def __init__(self, sink: _S) -> None:
        self._sink = sink

    def append_content(self, content: str) -> None:
        self._sink.append_content(content)

    def add_attachment(self, **attachment: str | None) -> None:
        self._sink.add_attachment(**attachment)

    def create_stage(self, name: str | None = None) -> StageSink:
        return self._sink.create_stage(name)


class ForwardingChoice(_Forwarding[ChoiceSink]):
    """Passes everything on to a choice; the base of choices that change a part of it."""

    def append_reasoning_content(self, content: str) -> None:
        self._sink.append_reasoning_content(content)

    def set_state(self, state: dict[str, object]) -> None:
        self._sink.set_state(state)


class ForwardingStage(_Forwarding[StageSink]):
    """Passes everything on to a stage; the base of stages that change a part of it."""

    def open(self) -> None:
        self._sink.open()

    def close(self, status: object = StageStatus.COMPLETED) -> None:
        self._sink.close(status)

    def append_name(self, name: str) -> None:
        self._sink.append_name(name)


class StageProcessor:
    """Opens and closes stages. Source: API reference, StageProcessor."""

    @staticmethod
    def open_stage(choice: ChoiceSink, name: str | None = None) -> StageSink:
        """A new stage of `choice`, already open."""
        stage = choice.create_stage(name)
        stage.open()
        return stage

    @staticmethod
    def close_stage_safely(stage: StageSink, *, failed: bool = False) -> None:
        """Close the stage COMPLETED or FAILED; never raises, so it is safe in any `finally`."""
        try:
            stage.close(StageStatus.FAILED if failed else StageStatus.COMPLETED)
        except Exception:
            logger.warning("a stage could not be closed", exc_info=True)


class _Filter:
    def __init__(self, append: Callable[[str], None], suspicion: Suspicion) -> None:
        self._append = append
        self._defanger = Defanger(suspicion)
        self._quiet = False

    def append(self, content: str) -> None:
        # Almost every piece of an answer takes this path: measured in tests/benchmarks/bench_gate.py.
        if (
            self._quiet
            and _MARKED(content) is None
            and ("w" not in content or (len(content) > 2 and "ww" not in content))
        ):
            self._append(content)
            return
        self._shown(self._defanger.feed(content))

    def pause(self) -> None:
        """Show a held-back mark at the end of the text, before something else is shown."""
        self._shown(self._defanger.pause())

    def close(self) -> None:
        self._shown(self._defanger.feed("", last=True))

    def _shown(self, text: str) -> None:
        self._quiet = self._defanger.quiet
        if text:
            self._append(text)


class DefangedStage(ForwardingStage):
    """A stage whose text goes through a `Defanger`, as the model writes a call's arguments too, and is as long as DIAL
    Chat shows it at most, whatever tools write and the `Defanger` adds."""

    def __init__(self, stage: StageSink, suspicion: Suspicion) -> None:
        super().__init__(stage)
        self._suspicion = suspicion
        self._content = _Filter(self._append_what_fits, suspicion)
        self._left = STAGE_BYTES

    def append_content(self, content: str) -> None:
        self._content.append(content)

    def _append_what_fits(self, content: str) -> None:
        if self._left >= 0:
            raw = content.encode(errors="replace")
            fits = len(raw) <= self._left
            self._sink.append_content(content if fits else raw[: self._left].decode(errors="ignore") + _REST)
            self._left -= len(raw)

    def append_name(self, name: str) -> None:
        self._sink.append_name(defanged(name, self._suspicion))

    def create_stage(self, name: str | None = None) -> StageSink:
        # A stage's name holds an argument of its call, and not every chat shows names as plain text.
        shown = name and defanged(name, self._suspicion)
        return DefangedStage(self._sink.create_stage(shown), self._suspicion)

    def close(self, status: object = StageStatus.COMPLETED) -> None:
        self._content.close()
        self._sink.close(status)


class ProgressStages:
    """Shows what an answer waits for, one stage after the other; `seconds` counts how long it has waited."""

    def __init__(self, choice: ChoiceSink) -> None:
        self.seconds = 0.0
        self._choice = choice
        self._open: tuple[StageSink, float] | None = None

    def show(self, text: str) -> None:
        self.end()
        self._open = StageProcessor.open_stage(self._choice, text), perf_counter()

    def end(self, *, failed: bool = False) -> None:
        if self._open is None:
            return
        (stage, since), self._open = self._open, None
        waited = perf_counter() - since
        self.seconds += waited
        stage.append_name(f" [{waited:.2f}s]")
        StageProcessor.close_stage_safely(stage, failed=failed)


class DefangedChoice(ForwardingChoice):
    """A choice whose texts go through `Defanger`s, those of its stages included; `close` it when the answer ends."""

    def __init__(self, choice: ChoiceSink, suspicion: Suspicion) -> None:
        super().__init__(choice)
        self._suspicion = suspicion
        self._content = _Filter(choice.append_content, suspicion)
        self._reasoning = _Filter(choice.append_reasoning_content, suspicion)

    def append_content(self, content: str) -> None:
        self._content.append(content)

    def append_reasoning_content(self, content: str) -> None:
        self._reasoning.append(content)

    def create_stage(self, name: str | None = None) -> StageSink:
        self._content.pause()
        shown = name and defanged(name, self._suspicion)
        return DefangedStage(self._sink.create_stage(shown), self._suspicion)

    def close(self) -> None:
        """Show the text that was held back."""
        self._reasoning.close()
        self._content.close()


def request_arguments(arguments: Mapping[str, object]) -> str:
    """The arguments of a call as its stage shows them."""
    share = min(ARGUMENT_CHARS, ARGUMENTS_CHARS // max(len(arguments), 1))
    parts = ["## Request arguments:"]
    for name, value in arguments.items():
        is_text = isinstance(value, str)
        shown = clipped(value if is_text else _readable_json(value), share)
        block = f"\n\n```\n{shown}\n```" if is_text and "\n" in shown else shown
        parts.append(f"**{label(name)}**: {block}")
    return "\n\n".join([*parts, ""])


def response(text: str) -> str:
    return f"## Response:\n\n{clipped(text, RESPONSE_CHARS)}\n"


@lru_cache(maxsize=1_000)
def label(name: str) -> str:
    """An argument's name as users read it: `file_url` is "File URL"."""
    return " ".join(_UPPER.get(word, word.capitalize()) for word in name.split("_") if word)


def clipped(text: str, characters: int) -> str:
    """At most that many characters and, as JSON may take several bytes for one, that many bytes of UTF-8."""
    raw = text.encode(errors="replace")
    if len(raw) <= characters:
        return text
    return raw[:characters].decode(errors="ignore") + f"\n\n[... {len(raw) - characters:,} more bytes]"
