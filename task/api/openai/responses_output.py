"""A run in the shapes of OpenAI's Responses API: as it ends, as a stream of events, or as it is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any
from urllib.parse import unquote

from task.api.edge.rendering import sse
from task.conversation.messages import Attachment
from task.conversation.sources import marker_of, number_of
from task.core_client.urls import file_id_of
from task.runs.request import RunOptions
from task.runs.runner import LiveRun, Runner
from task.runs.state import BROKEN_OFF, RunState
from task.store.records import Event, Run

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by chat completions' finish reason
_CANCELLED, _FAILED = "cancelled", frozenset({"failed", "interrupted"})


def incomplete(state: RunState) -> str | None:
    """OpenAI's reason why an answer is incomplete."""
    return _INCOMPLETE.get(state.finish_reason or "") if state.status != _CANCELLED else None


def status_of(state: RunState) -> str:
    """OpenAI's status of the response."""
    if not state.over:
        return "in_progress"
    if state.status == _CANCELLED:
        return _CANCELLED
    if state.finish_reason is None and (state.failure is not None or state.status in _FAILED):
        return "failed"
    return "incomplete" if incomplete(state) is not None else "completed"


def response_body(state: RunState) -> dict[str, Any]:
    """The response up to its latest event."""
    text, reason = state.answer, incomplete(state)
    output = [_message(state.run, text, citations(state.attachments, text))] if text else []
    output += [_call(call) for call in state.calls]
    return {
        **_head(state),
        "error": _error(state),
        "incomplete_details": {"reason": reason} if reason is not None else None,
        "output": output,
        "attachments": list(state.attachments),
        "usage": _usage(state.usage) if state.usage is not None else None,
    }


async def response_events(runner: Runner, live: LiveRun) -> AsyncGenerator[bytes]:
    """The stream's events in their documented order."""
    stream = _Stream(live.state)
    async with aclosing(runner.events(live.run.owner, live.run.run_id)) as events:
        async for event in events:
            if part := stream.render(event):
                yield part


class _Stream:
    def __init__(self, state: RunState) -> None:
        self._state, self._run = state, state.run
        self._numbers = count()
        self._started = self._message_open = False
        self._text: list[str] = []
        self._attachments: list[Mapping[str, str]] = []
        self._items = 0

    def render(self, event: Event) -> bytes:
        match event.type:
            case "text":
                return self._start() + self._delta(event.data["text"])
            case "approval":
                return self._start() + self._delta(("\n\n" if self._text else "") + event.data["text"])
            case "attachment" if event.data["stage"] is None:
                self._attachments.append(event.data["attachment"])
                return b""
            case "tool_calls":
                return self._start() + self._close_message() + self._calls(event.data["tool_calls"])
            case "finished":
                return self._start() + self._close_message() + self._end()
            case _:
                return b""

    def _event(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers), **data}, event=kind)

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        head = response_body(RunState(self._run, self._state.options, self._run.session_id))
        return self._event("response.created", response=head) + self._event("response.in_progress", response=head)

    def _delta(self, text: str) -> bytes:
        opening = b""
        place = self._place()
        if not self._message_open:
            self._message_open = True
            item = {**_message(self._run, "", []), "status": "in_progress", "content": []}
            opening = self._event("response.output_item.added", output_index=self._items, item=item)
            opening += self._event("response.content_part.added", **place, part=_part("", []))
        self._text.append(text)
        return opening + self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _close_message(self) -> bytes:
        if not self._message_open:
            return b""
        self._message_open = False
        text, place, index = "".join(self._text), self._place(), self._items
        self._items += 1
        noted = citations(self._attachments, text)
        parts = [
            *(
                self._event("response.output_text.annotation.added", **place, annotation_index=number, annotation=item)
                for number, item in enumerate(noted)
            ),
            self._event("response.output_text.done", **place, text=text, logprobs=[]),
            self._event("response.content_part.done", **place, part=_part(text, noted)),
            self._event("response.output_item.done", output_index=index, item=_message(self._run, text, noted)),
        ]
        return b"".join(parts)

    def _calls(self, calls: Sequence[Mapping[str, Any]]) -> bytes:
        parts = b""
        for call in calls:
            item, index = _call(call), self._items
            self._items += 1
            place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
            empty = {**item, "arguments": "", "status": "in_progress"}
            parts += self._event("response.output_item.added", output_index=index, item=empty)
            parts += self._event("response.function_call_arguments.delta", **place, delta=arguments)
            name = item["name"]
            parts += self._event("response.function_call_arguments.done", **place, name=name, arguments=arguments)
            parts += self._event("response.output_item.done", output_index=index, item=item)
        return parts

    def _end(self) -> bytes:
        body = response_body(self._state)
        kind = "incomplete" if body["status"] == _CANCELLED else body["status"]
        return self._event(f"response.{kind}", response=body)

    def _place(self) -> dict[str, Any]:
        return {"item_id": _message_id(self._run), "output_index": self._items, "content_index": 0}


def _head(state: RunState) -> dict[str, Any]:
    options, run = state.options, state.run
    return {
        "id": response_id(run.run_id),
        "object": "response",
        "created_at": int(run.started_at),
        "status": status_of(state),
        "model": options.model,
        "instructions": options.prompt,
        "previous_response_id": options.previous,
        "store": run.session_id is not None,
        "temperature": options.model_options.temperature,
        "top_p": options.model_options.top_p,
        "max_output_tokens": options.model_options.max_tokens,
        "tools": [{"type": "function", "strict": None, **tool} for tool in options.tools],
        "tool_choice": _choice(options),
        "parallel_tool_calls": options.model_options.extra.get("parallel_tool_calls", True),
        "text": _format(options.model_options.extra),
        "reasoning": {"effort": options.model_options.reasoning_effort, "summary": None},
        "background": False,
        "metadata": dict(options.metadata),
        "session_id": state.session_id,
        "run_id": run.run_id,
        "trace_id": run.trace_id,
    }


def _format(extra: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = extra.get("response_format") or {"type": "text"}
    settings: dict[str, Any] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    return settings | ({"verbosity": extra["verbosity"]} if "verbosity" in extra else {})


def _choice(options: RunOptions) -> Any:
    if options.choice is None or isinstance(options.choice, str):
        return options.choice or "auto"
    return {"type": "function", "name": options.choice["function"]["name"]}


def _error(state: RunState) -> dict[str, Any] | None:
    if status_of(state) != "failed":
        return None
    error = state.failure["error"] if state.failure is not None else {"message": state.run.error or BROKEN_OFF}
    return {"code": error.get("code") or "server_error", "message": error.get("display_message") or error["message"]}


def _usage(counted: Mapping[str, Any]) -> dict[str, Any]:
    # Runs that were stored by an older version have no details.
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted.get("prompt_tokens_details") or {"cached_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": counted.get("completion_tokens_details") or {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }


def response_id(run_id: str) -> str:
    return f"resp_{run_id.removeprefix('run_')}"


def run_id_of(response: str) -> str:
    return f"run_{response.removeprefix('resp_')}"


def _message_id(run: Run) -> str:
    return f"msg_{run.run_id.removeprefix('run_')}"


def _message(run: Run, text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    head = {"id": _message_id(run), "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": [_part(text, noted)]}


def _part(text: str, noted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(noted), "logprobs": []}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": f"fc_{call['id']}",
        "type": "function_call",
        "status": "completed",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
    }


def citations(attachments: Sequence[Mapping[str, str]], text: str) -> list[dict[str, Any]]:
    """What an answer carries beside its text as the annotations that OpenAI's clients read.

    There is one for each attachment that is a file at `/v1/files` or has an address; others have no kind of their own.

    Positions are those of the source's number in the text, else of the address, else the text's end.
    """
    places = [(item, item.get("url") or item.get("reference_url") or "") for item in attachments]
    files = [place.partition("#")[0] for _, place in places if place.startswith("files/")]
    pages = [(item, place) for item, place in places if place.startswith(("http://", "https://"))]
    return [
        *(_file_citation(url, number) for number, url in enumerate(files)),
        *(_page_citation(item, url, text) for item, url in pages),
    ]


def _file_citation(url: str, number: int) -> dict[str, Any]:
    name = unquote(url.rpartition("/")[2])
    return {"type": "file_citation", "file_id": file_id_of(url), "filename": name, "index": number}


def _page_citation(item: Mapping[str, str], url: str, text: str) -> dict[str, Any]:
    number = number_of(Attachment(**item))
    place = marker_of(number, text) if number is not None else None
    if place is None:
        before, _, after = text.partition(url)
        place = len(before), len(text) - len(after)
    title = item.get("title") or url
    return {"type": "url_citation", "url": url, "title": title, "start_index": place[0], "end_index": place[1]}
