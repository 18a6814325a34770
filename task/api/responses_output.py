"""A run in the shapes of OpenAI's Responses API, whole or as its stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from time import time
from typing import Any

from task.api.completions import content_of, finish_reason, usage_of
from task.api.rendering import sse
from task.api.runner import ActiveRun, Runner
from task.sessions.records import Event


def response_body(active: ActiveRun, previous: str | None) -> dict[str, Any]:
    """The response as it is at the end of the run."""
    result = active.result
    assert result is not None
    cut = result.error is None and finish_reason(active) == "length"
    told = result.failure
    error = {"code": told.code or "server_error", "message": told.message} if told is not None else None
    text = content_of(active)
    output = [_message(active, text)] if text else []
    output += [_call(call.as_dict()) for call in result.calls]
    usage = usage_of(active)
    return {
        **_head(active, previous, "failed" if error else "incomplete" if cut else "completed"),
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


async def response_events(runner: Runner, active: ActiveRun, previous: str | None) -> AsyncGenerator[bytes]:
    """The stream's events in their documented order."""
    stream = _Stream(active, previous)
    async with aclosing(runner.events(active.run.owner, active.run.run_id)) as events:
        async for event in events:
            if part := stream.told(event):
                yield part


class _Stream:
    def __init__(self, active: ActiveRun, previous: str | None) -> None:
        self._active, self._previous = active, previous
        self._numbers = count()
        self._begun = self._message_open = False
        self._text: list[str] = []
        self._items = 0

    def told(self, event: Event) -> bytes:
        match event.type:
            case "text":
                return self._begin() + self._delta(event.data["text"])
            case "approval":
                return self._begin() + self._delta(("\n\n" if self._text else "") + event.data["text"])
            case "tool_calls":
                return self._begin() + self._close_message() + self._calls(event.data["tool_calls"])
            case "finished":
                return self._begin() + self._close_message() + self._end()
            case _:
                return b""

    def _event(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers), **data}, event=kind)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        head = {**_head(self._active, self._previous, "in_progress"), "output": [], "usage": None}
        head |= {"error": None, "incomplete_details": None}
        return self._event("response.created", response=head) + self._event("response.in_progress", response=head)

    def _delta(self, text: str) -> bytes:
        opening = b""
        place = self._place()
        if not self._message_open:
            self._message_open = True
            item = {**_message(self._active, ""), "status": "in_progress", "content": []}
            opening = self._event("response.output_item.added", output_index=self._items, item=item)
            opening += self._event("response.content_part.added", **place, part=_part(""))
        self._text.append(text)
        return opening + self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _close_message(self) -> bytes:
        if not self._message_open:
            return b""
        self._message_open = False
        text, place, index = "".join(self._text), self._place(), self._items
        self._items += 1
        return (
            self._event("response.output_text.done", **place, text=text, logprobs=[])
            + self._event("response.content_part.done", **place, part=_part(text))
            + self._event("response.output_item.done", output_index=index, item=_message(self._active, text))
        )

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
        body = response_body(self._active, self._previous)
        return self._event(f"response.{body['status']}", response=body)

    def _place(self) -> dict[str, Any]:
        return {"item_id": _message_id(self._active), "output_index": self._items, "content_index": 0}


def _head(active: ActiveRun, previous: str | None, status: str) -> dict[str, Any]:
    manner = active.ask.manner
    return {
        "id": response_id(active.run.run_id),
        "object": "response",
        "created_at": int(active.run.started_at or time()),
        "status": status,
        "model": active.model,
        "instructions": manner.prompt,
        "previous_response_id": previous,
        "temperature": manner.options.temperature,
        "top_p": manner.options.top_p,
        "max_output_tokens": manner.options.max_tokens,
        "tools": [{"type": "function", "strict": None, **tool} for tool in manner.tools],
        "tool_choice": manner.choice if isinstance(manner.choice, str) else "auto",
        "parallel_tool_calls": True,
        "metadata": {},
        "session_id": active.session_id,
        "run_id": active.run.run_id,
        "trace_id": active.run.trace_id,
    }


def response_id(run_id: str) -> str:
    return f"resp_{run_id.removeprefix('run_')}"


def run_id_of(response: str) -> str:
    return f"run_{response.removeprefix('resp_')}"


def _message_id(active: ActiveRun) -> str:
    return f"msg_{active.run.run_id.removeprefix('run_')}"


def _message(active: ActiveRun, text: str) -> dict[str, Any]:
    head = {"id": _message_id(active), "type": "message", "status": "completed", "role": "assistant"}
    return {**head, "content": [_part(text)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


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
