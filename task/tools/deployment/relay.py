"""What a called deployment shows beside its text, below the stage of its call: its stages, their files, its sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from task.conversation.messages import Attachment
from task.conversation.sources import Sources
from task.llm.base import DialDelta
from task.output.sinks import StageProcessor, StageSink

MAX_STAGES, MAX_FILES, MAX_SOURCES = 50, 20, 50
LEFT_OUT = "\n\n[Further stages of it were left out.]\n"
CARD_CHARS = 40_000  # a longer text is a file
MAX_NAMES, LONGEST_NAME = 5_000, 200  # characters of all stages' names, and of a piece of one
_PLACES = ("files/", "https://", "http://")
_TAG = re.compile(r"<cit\s[^<>]{0,100}?id=[\"']?([\w.:-]{1,100})[\"']?[^<>]{0,100}>(?:\s*</cit>)?")


class Relay:
    """Shows in `stage` what the deployment streams, until the block ends.

    What is malformed, and what comes after the bounds, is left out. `state` is the deployment's own of its answer,
    `annotations` are those of its text; neither is validated. `asks`: the answer has a form for the user.
    """

    def __init__(self, stage: StageSink) -> None:
        self.stage = stage
        self.state: Any = None
        self.annotations: list[Any] = []
        self.asks = False
        self._stages: dict[int, StageSink | None] = {}  # None once it is closed
        self._files, self._names, self._whole = MAX_FILES, MAX_NAMES, True

    def add(self, delta: DialDelta) -> None:
        """Take a piece of the answer."""
        self.state = delta.content.get("state") or self.state
        self.asks |= "form_schema" in delta.content
        self.annotations += _items(delta.content, "annotations")[: MAX_SOURCES - len(self.annotations)]
        for item in _items(delta.content, "stages"):
            if isinstance(index := item.get("index"), int):
                self._show(index, item)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for stage in filter(None, reversed(self._stages.values())):
            StageProcessor.close_stage_safely(stage, failed=error is not None)
        if not self._whole:
            self.stage.append_content(LEFT_OUT)

    def _show(self, index: int, item: Mapping[str, Any]) -> None:
        name, content, status = (str(item.get(key) or "") for key in ("name", "content", "status"))
        if index not in self._stages and len(self._stages) < MAX_STAGES:
            parent = item.get("parent_stage_index")
            below = self._stages.get(parent) if isinstance(parent, int) else None
            self._stages[index] = stage = (below or self.stage).create_stage()
            stage.open()
        if (stage := self._stages.get(index)) is None:
            self._whole &= index in self._stages
            return
        if name := name[: min(LONGEST_NAME, self._names)]:
            self._names -= len(name)
            stage.append_name(name)
        if content:
            stage.append_content(content)
        for file in filter(None, map(_attachment, _items(item, "attachments")[: self._files])):
            self._files -= 1
            stage.add_attachment(**file.as_dict())
        if status in ("completed", "failed"):
            StageProcessor.close_stage_safely(stage, failed=status == "failed")
            self._stages[index] = None


def _items(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = content.get(name)
    return [item for item in cast("list[Any]", found) if isinstance(item, dict)] if isinstance(found, list) else []


def _attachment(fields: Mapping[str, Any]) -> Attachment | None:
    # A card with a short text, a file, or a page, of which only the address is shown: contents are not copied.
    file = Attachment(**{name: value for name in Attachment.__slots__ if isinstance(value := fields.get(name), str)})
    fits = all(url is None or url.startswith(_PLACES) for url in (file.url, file.reference_url))
    if not fits or (file.data is None) == (file.url is None) or len(file.data or "") > CARD_CHARS:
        return None
    return link(file) if (file.url or "").startswith("http") else file


def link(file: Attachment) -> Attachment:
    """The attachment as a card that leads to its address, which is not fetched before; there is none but of a page."""
    page = file.url if file.url and file.url.startswith(_PLACES) else None
    return Attachment("text/markdown", file.title, data=file.title or "Link", reference_url=page)


def cited(text: str, annotations: Sequence[Any], sources: Sources) -> tuple[str, list[Attachment]]:
    """The text with the number of each source in place of its tag, and the citations."""
    citations, numbers = list[Attachment](), dict[str, int]()
    for item in annotations:
        match item:
            case {
                "body": {"source": {"url": str(url)} | {"attachment": {"url": str(url)}}} as body,
                "target": {"selector": {"id": str(tag) | int(tag)}},
            } if url.startswith(_PLACES):
                title = str(body.get("title") or url)
                numbers[str(tag)], citation = sources.of_others(url, title, str(body.get("quote") or title))
                citations.append(citation)
            case _:  # without a place in the text, or what is malformed
                pass
    return _TAG.sub(lambda tag: f"[{numbers[tag[1]]}]" if tag[1] in numbers else "", text), citations
