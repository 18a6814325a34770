"""What a called deployment shows beside its text, below the stage of its call: its stages, their files, its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from task.conversation.messages import Attachment
from task.conversation.sources import Sources
from task.llm.base import DialDelta
from task.output.sinks import StageProcessor, StageSink

MAX_STAGES, MAX_FILES, MAX_SOURCES = 50, 20, 50
LEFT_OUT = "\n\n[Further stages of it were left out.]\n"
CARD_CHARS = 40_000  # a longer text is a file
_LONGEST_NAME, _LONGEST_TITLE, _LONGEST_QUOTE = 200, 200, 600
_FIELDS = Attachment.__slots__
_PLACES = ("files/", "https://", "http://")
_TAG = re.compile(r"<cit\s[^<>]{0,100}?id=[\"']?([\w.:-]{1,100})[\"']?[^<>]{0,100}>(?:\s*</cit>)?")
_ACTIVE = re.compile(r"[\[\]<]")  # what would be a link or a picture in the chat, which shows a citation as Markdown


class Relay:
    """Shows in `stage` what the deployment streams; `close` it when the answer ends, however it does.

    What is malformed, and what comes after the bounds, is left out. `state` is the deployment's own of its answer,
    `annotations` are those of its text; neither is validated.
    """

    def __init__(self, stage: StageSink) -> None:
        self.stage = stage
        self.state: Any = None
        self.annotations: list[Any] = []
        self._open: dict[int, StageSink] = {}
        self._room: dict[int, int] = {}  # characters that a stage's name may still have
        self._files, self._complete = MAX_FILES, True

    def add(self, delta: DialDelta) -> None:
        """Take a piece of the answer."""
        self.state = delta.content.get("state") or self.state
        self.annotations += _items(delta.content, "annotations")[: MAX_SOURCES - len(self.annotations)]
        for item in _items(delta.content, "stages"):
            if isinstance(index := item.get("index"), int):
                self._stage(index, item)

    def close(self, *, failed: bool) -> None:
        """Close the stages that are open, the newest first."""
        for stage in reversed(self._open.values()):
            StageProcessor.close_stage_safely(stage, failed=failed)
        self._open.clear()
        if not self._complete:
            self.stage.append_content(LEFT_OUT)

    def _stage(self, index: int, item: Mapping[str, Any]) -> None:
        name, content, status = (str(item.get(key) or "") for key in ("name", "content", "status"))
        if index not in self._room and len(self._room) < MAX_STAGES:
            parent = item.get("parent_stage_index")
            below = self._open.get(parent, self.stage) if isinstance(parent, int) else self.stage
            self._open[index] = below.create_stage(name[:_LONGEST_NAME])
            self._open[index].open()
            self._room[index], name = _LONGEST_NAME - len(name), ""
        if (stage := self._open.get(index)) is None:
            self._complete &= index in self._room
            return
        if name and self._room[index] > 0:
            stage.append_name(name[: self._room[index]])
            self._room[index] -= len(name)
        if content:
            stage.append_content(content)
        for file in filter(None, map(_attachment, _items(item, "attachments")[: self._files])):
            self._files -= 1
            stage.add_attachment(**file.as_dict())
        if status in ("completed", "failed"):
            StageProcessor.close_stage_safely(self._open.pop(index), failed=status == "failed")


def _items(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = content.get(name)
    return [item for item in cast("list[Any]", found) if isinstance(item, dict)] if isinstance(found, list) else []


def _attachment(fields: Mapping[str, Any]) -> Attachment | None:
    # A card with a short text, or a file or page that is named: contents are not copied.
    file = Attachment(**{name: value for name in _FIELDS if isinstance(value := fields.get(name), str)})
    places = [url for url in (file.url, file.reference_url) if url is not None]
    fits = all(url.startswith(_PLACES) for url in places) and (file.data is None) != (file.url is None)
    return file if fits and len(file.data or "") <= CARD_CHARS else None


def cited(text: str, annotations: Sequence[Any], sources: Sources) -> tuple[str, list[Attachment]]:
    """The text with the number of each source where its annotation stands, and the citations."""
    citations, numbers, ends = list[Attachment](), dict[str, int](), list[tuple[int, int]]()
    for item in annotations:
        match item:
            case {
                "body": {"source": {"url": str(url)} | {"attachment": {"url": str(url)}}} as body,
                "target": {"selector": selector},
            } if url.startswith(_PLACES):
                number = sources.number(url)
                title = " ".join(str(body.get("title") or url).split())[:_LONGEST_TITLE]
                quote = _ACTIVE.sub(r"\\\g<0>", str(body.get("quote") or title)[:_LONGEST_QUOTE])
                citations.append(sources.citation(number, title, data=quote, reference_url=url))
                match selector:
                    case {"id": str(tag) | int(tag)}:
                        numbers[str(tag)] = number
                    case {"end": int(end)} if 0 <= end <= len(text):
                        ends.append((end, number))
                    case _:
                        pass
            case _:
                pass
    for end, number in sorted(ends, reverse=True):
        text = f"{text[:end]} [{number}]{text[end:]}"
    return _TAG.sub(lambda tag: f"[{numbers[tag[1]]}]" if tag[1] in numbers else "", text), citations
