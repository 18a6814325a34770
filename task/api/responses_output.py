"""A run in the shapes of OpenAI's Responses API: whole, streamed as events, or stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any
from urllib.parse import unquote

from task.api.service import sse
from task.conversation.messages import Attachment
from task.conversation.sources import marker_of, number_of
from task.core_client.files import file_id_of
from task.runs.events import BROKEN_OFF, RunState
from task.runs.runner import LiveRun, Runner
from task.store.records import Run

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by chat completions' finish reason


def response_body(state: RunState) -> dict[str, Any]:
    """The response up to its latest event."""
    options, run, text, extra = state.options, state.run, state.answer, state.options.model_options.extra
    choice = options.choice or "auto"
    wanted: Mapping[str, Any] = extra.get("response_format") or {"type": "text"}
    form = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    output = [_message(run, text, citations(state.attachments, text))] if text else []
    counted = state.usage
    return {
        "id": response_id(run.run_id),
        "object": "response",
        "created_at": int(run.started_at),
        "model": options.model,
        "instructions": options.prompt,
        "previous_response_id": options.previous,
        "store": run.session_id is not None,
        "temperature": options.model_options.temperature,
        "top_p": options.model_options.top_p,
        "max_output_tokens": options.model_options.max_tokens,
        "tools": [{"type": "function", "strict": None, **tool} for tool in options.tools],
        "tool_choice": choice if isinstance(choice, str) else {"type": "function", "name": choice["function"]["name"]},
        "parallel_tool_calls": extra.get("parallel_tool_calls", True),
        "text": form | ({"verbosity": extra["verbosity"]} if "verbosity" in extra else {}),
        "reasoning": {"effort": options.model_options.reasoning_effort, "summary": None},
        "background": False,
        "metadata": dict(options.metadata),
        **state.ids,
        **_ending(state),
        "output": output + [_call(call) for call in state.calls],
        "attachments": list(state.attachments),
        "usage": counted
        and {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        },
    }


def _ending(state: RunState) -> dict[str, Any]:
    broke = state.failure is not None or state.status in ("failed", "interrupted")
    error = reason = None
    if not state.over:
        status = "in_progress"
    elif state.status == "cancelled":
        status = "cancelled"
    elif state.finish_reason is None and broke:
        status = "failed"
        found = state.failure["error"] if state.failure is not None else {"message": state.run.error or BROKEN_OFF}
        shown = found.get("display_message") or found["message"]
        error = {"code": found.get("code") or "server_error", "message": shown}
    else:
        reason = _INCOMPLETE.get(state.finish_reason or "")
        status = "incomplete" if reason is not None else "completed"
    return {"status": status, "error": error, "incomplete_details": {"reason": reason} if reason else None}


async def response_events(runner: Runner, live: LiveRun) -> AsyncGenerator[bytes]:
    """The stream's events in their documented order."""
    state, run, parts = live.state, live.run, _Parts(live.run)
    started = False
    async with aclosing(runner.events(run.owner, run.run_id)) as events:
        async for event in events:
            if event.type == "attachment" and event.data["stage"] is None:
                parts.attachments.append(event.data["attachment"])
            if event.type not in ("text", "approval", "tool_calls", "finished"):
                continue
            if not started:
                started = True
                head = response_body(RunState(run, state.options, run.session_id))
                yield parts.event("response.created", response=head)
                yield parts.event("response.in_progress", response=head)
            if event.type == "text":
                yield parts.delta(event.data["text"])
            elif event.type == "approval":
                yield parts.delta(("\n\n" if parts.text else "") + event.data["text"])
            elif ended := parts.end_of_message():
                yield ended
            if event.type == "tool_calls":
                yield b"".join(map(parts.call, event.data["tool_calls"]))
            elif event.type == "finished":
                body = response_body(state)
                kind = "incomplete" if body["status"] == "cancelled" else body["status"]
                yield parts.event(f"response.{kind}", response=body)


class _Parts:
    """The items of one streamed response: its message, then its calls."""

    def __init__(self, run: Run) -> None:
        self.text, self.attachments = "", list[Mapping[str, str]]()
        self._run, self._numbers, self._items, self._open = run, count(), 0, False

    def event(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers), **data}, event=kind)

    def delta(self, text: str) -> bytes:
        opening, place = b"", self._place()
        if not self._open:
            self._open = True
            item = {**_message(self._run, "", []), "status": "in_progress", "content": []}
            opening = self.event("response.output_item.added", output_index=self._items, item=item)
            opening += self.event("response.content_part.added", **place, part=_part("", []))
        self.text += text
        return opening + self.event("response.output_text.delta", **place, delta=text, logprobs=[])

    def end_of_message(self) -> bytes:
        if not self._open:
            return b""
        text, place, noted, index = self.text, self._place(), citations(self.attachments, self.text), self._items
        self._open, self._items = False, self._items + 1
        parts = b""
        for number, item in enumerate(noted):
            kind = "response.output_text.annotation.added"
            parts += self.event(kind, **place, annotation_index=number, annotation=item)
        parts += self.event("response.output_text.done", **place, text=text, logprobs=[])
        parts += self.event("response.content_part.done", **place, part=_part(text, noted))
        item = _message(self._run, text, noted)
        return parts + self.event("response.output_item.done", output_index=index, item=item)

    def call(self, call: Mapping[str, Any]) -> bytes:
        item, index = _call(call), self._items
        self._items += 1
        place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        empty = {**item, "arguments": "", "status": "in_progress"}
        return (
            self.event("response.output_item.added", output_index=index, item=empty)
            + self.event("response.function_call_arguments.delta", **place, delta=arguments)
            + self.event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
            + self.event("response.output_item.done", output_index=index, item=item)
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": _message_id(self._run), "output_index": self._items, "content_index": 0}


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
    head = {"id": f"fc_{call['id']}", "type": "function_call", "status": "completed", "call_id": call["id"]}
    return {**head, "name": function["name"], "arguments": function["arguments"]}


def citations(attachments: Sequence[Mapping[str, str]], text: str) -> list[dict[str, Any]]:
    """What an answer carries beside its text as the annotations that OpenAI's clients read.

    There is one for each attachment that is a file at `/v1/files` or has an address; others have no kind of their own.

    Positions are those of the source's number in the text, else of the address, else the text's end.
    """
    files, pages = list[dict[str, Any]](), list[dict[str, Any]]()
    for item in attachments:
        url = item.get("url") or item.get("reference_url") or ""
        if url.startswith("files/"):
            url = url.partition("#")[0]
            named = {"file_id": file_id_of(url), "filename": unquote(url.rpartition("/")[2]), "index": len(files)}
            files.append({"type": "file_citation", **named})
        elif url.startswith(("http://", "https://")):
            number = number_of(Attachment(**item))
            place = marker_of(number, text) if number is not None else None
            if place is None:
                before, _, after = text.partition(url)
                place = len(before), len(text) - len(after)
            where = {"start_index": place[0], "end_index": place[1]}
            pages.append({"type": "url_citation", "url": url, "title": item.get("title") or url, **where})
    return [*files, *pages]
