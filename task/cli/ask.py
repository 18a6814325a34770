"""`dial-agent ask`: one question to an agent behind DIAL Core, shown as `dial-agent chat -p` shows its answers."""

from __future__ import annotations

import asyncio
import mimetypes
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import orjson
import typer

from task.cli import Exit
from task.cli.addresses import CoreClient, CoreError, core_address, key_for
from task.cli.options import Config, JsonLines, read_settings, write
from task.console.attachments import saved
from task.console.ui_manager import UNNUMBERED, JsonUserInterface, Show, UserInterfaceManager
from task.conversation.messages import Attachment
from task.conversation.sources import TAGS
from task.conversation.state import PENDING_KEY, waits
from task.core_client.files import DialFiles
from task.errors import AgentError, InvalidRequest
from task.llm.chat_chunks import DONE
from task.llm.demo import SAMPLES
from task.runs.events import (
    Attached,
    RunAsks,
    RunError,
    RunEvent,
    RunFinished,
    RunText,
    StageClosed,
    StageOpened,
    StageText,
    data_of,
)
from task.store.records import Event

NO_TERMINAL = "Nothing has run: the call waits for an approval. Ask again at a terminal or in a chat."
START_IT = "start the product with `dial-agent up`."
PROMPT = "approve, always, or deny because …? [deny] "
SHORT_REPLIES = {"": "deny", "y": "yes", "n": "no"}
FILE_SECONDS = 300.0
app = typer.Typer(add_completion=False)
LOOK = {"assistant_prefix": "", "tool_prefix": "", "error_prefix": ""}


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question; `-` reads it from standard input.")] = "",
    file: Annotated[
        list[Path] | None,
        typer.Option(
            *("--file", "-f"), exists=True, dir_okay=False, metavar="FILE", help="File to attach; may be repeated."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Ask three questions about files that come with the product.")
    ] = False,
    model: Annotated[str, typer.Option(help="Deployment to ask.")] = "general-purpose-agent",
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save the answer's files there.")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="DIAL Core to ask.")] = None,
    as_json: JsonLines = False,
    config: Config = None,
) -> None:
    """Ask one question, or with --demo three about sample files."""
    text = sys.stdin.read() if question == "-" else question
    settings = read_settings(config, dial_endpoint=endpoint or None)
    if demo and (text or file):
        raise InvalidRequest("--demo has its own questions and files; leave yours out.")
    if not (demo or text.strip()):
        raise InvalidRequest("The question is empty; write it in quotes after `ask`, or try `ask --demo`.")
    if save is not None:
        try:
            save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"--save {save} cannot be used as a folder: {error.strerror}.") from error
    address = core_address(settings)
    client = CoreClient(address, key_for(settings, address))
    ui = JsonUserInterface() if as_json else UserInterfaceManager(LOOK, plain=True)
    questions = [(sample.question, [sample.path]) for sample in SAMPLES] if demo else [(text, file or [])]
    code = Exit.DONE
    try:
        for number, (asked, paths) in enumerate(questions, 1):
            if demo:
                write(f"\n{number} of {len(questions)}: {asked} ({paths[0]})", err=True)
            code = max(code, _ask(client, ui, asked, paths, model, save))
    except AgentError as error:
        message, code = _explained(error, address, model)
        ui.display_error_message("", message)
    raise typer.Exit(code)


def _explained(error: AgentError, address: str, model: str) -> tuple[str, Exit]:
    match error:
        case CoreError(status=0):
            return f"{error}; {START_IT}", Exit.UNREACHABLE
        case CoreError(status=401):
            return f"{address} refuses the key ({error}); set DIAL_API_KEY to the one it knows.", Exit.USAGE
        case CoreError(status=404):
            return f"{address} answers: {error}; --model {model} is not deployed there.", Exit.USAGE
        case CoreError(status=502 | 503 | 504):  # Core is there, the agent behind it is not
            return f"{address} answers, but {model} behind it does not ({error}); {START_IT}", Exit.UNREACHABLE
        case _:  # also where Core did not take a file
            return str(error), Exit.FAILED


def _ask(
    client: CoreClient, ui: UserInterfaceManager, text: str, paths: Sequence[Path], model: str, folder: Path | None
) -> Exit:
    files, unsaved = DialFiles(client.endpoint, seconds=FILE_SECONDS), list[Attachment]()

    def save(attachment: Attachment) -> Path | None:
        if folder is None:
            return None
        try:
            return asyncio.run(saved(files, client.api_key, attachment, folder))
        except AgentError:
            unsaved.append(attachment)
            raise

    ui.save = save
    attachments: list[Attachment] = []
    if paths:
        asyncio.run(client.bucket())  # a Core that is absent or refuses the key has an exit code of its own
    for path in paths:
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        upload = files.upload(path.name, path.read_bytes(), kind, client.api_key, f"ask/{uuid4().hex[:12]}/")
        attachments.append(Attachment(type=kind, title=path.name, url=asyncio.run(upload)))
    messages, conversation = [_user_message(text, attachments)], uuid4().hex
    while True:
        answer = AnswerReader()
        with ui.answering() as show:
            asyncio.run(_show(answer, client.ask(model, messages, conversation), show))
        if not answer.asks:
            return Exit.FAILED if answer.failed or unsaved else Exit.DONE
        reply = ui.type_line(PROMPT) if ui.interactive else None
        if reply is None:
            ui.display_error_message("", NO_TERMINAL)
            return Exit.WAITING
        decision = reply.strip()
        messages += [answer.message(), _user_message(SHORT_REPLIES.get(decision.lower(), decision))]


async def _show(answer: AnswerReader, payloads: AsyncGenerator[bytes], show: Show) -> None:
    # Closed here, and not by the end of the loop, where output is a pipe that nothing reads any more.
    async with aclosing(payloads), aclosing(answer.events(payloads)) as events:
        async for event in events:
            show(Event(UNNUMBERED, event.type, data_of(event)))


def _user_message(text: str, attachments: Sequence[Attachment] = ()) -> dict[str, Any]:
    custom = {"attachments": [item.as_dict() for item in attachments]}
    return {"role": "user", "content": text, **({"custom_content": custom} if attachments else {})}


@dataclass(slots=True)
class AnswerReader:
    """Turns the chunks of a DIAL answer into the events of a run, and keeps what a chat keeps of the answer.

    `asks`: the agent waits for the user's decision. `failed`: the last event is an error.
    """

    asks: bool = False
    failed: bool = False
    _text: str = ""
    _state: dict[str, Any] | None = None
    _names: dict[int, str] = field(default_factory=dict[int, str])
    _ended: bool = False

    def message(self) -> dict[str, Any]:
        """The answer as the next request sends it back."""
        return {"role": "assistant", "content": self._text, "custom_content": {"state": self._state or {}}}

    async def events(self, payloads: AsyncIterable[bytes]) -> AsyncGenerator[RunEvent]:
        """Every event of the answer; the last one is RunFinished or RunError."""
        failure = "The answer was interrupted before its end."
        async for payload in payloads:
            if payload == DONE:
                break
            try:
                chunk: dict[str, Any] = orjson.loads(payload)
                if error := chunk.get("error"):
                    message = error.get("display_message") or error.get("message")
                    self._ended, failure = False, str(message or "The answer failed without a reason.")
                    break
                found = [event for choice in chunk.get("choices") or () for event in self._choice(choice)]
            except (ValueError, LookupError, AttributeError, TypeError):
                self._ended, failure = False, "The response is not a DIAL answer."
                break
            for event in found:
                yield event
        if not self._ended:
            self.failed = True
            yield RunError({"message": failure})

    def _choice(self, choice: dict[str, Any]) -> Iterator[RunEvent]:
        delta: dict[str, Any] = choice.get("delta") or {}
        custom: dict[str, Any] = delta.get("custom_content") or {}
        for stage in custom.get("stages") or ():
            index, before = stage["index"], self._names.get(stage["index"], "")
            name = self._names[index] = before + (stage.get("name") or "")
            if name and not before:  # the duration, which follows at the end, belongs to the name as well
                yield StageOpened(index, stage.get("parent_stage_index"), name)
            if stage.get("content"):
                yield StageText(index, stage["content"])
            if status := stage.get("status"):
                yield StageClosed(index, name, "failed" if status.lower() == "failed" else "completed")
        if text := delta.get("content"):
            self._text += text
            yield RunText(TAGS.sub("", text))
        if (state := custom.get("state")) is not None:
            self._state = state
            if waits(state):
                self.asks = True
                asked = [{name: item.get(name) for name in ("call_id", "code")} for item in state[PENDING_KEY]]
                yield RunAsks(asked, "")  # the question itself is the end of the answer's text
        for item in custom.get("attachments") or ():
            yield Attached(None, {name: item[name] for name in Attachment.__slots__ if item.get(name) is not None})
        if (reason := choice.get("finish_reason")) and not self._ended:
            self._ended = True
            yield RunFinished("finished", "", None, None, reason)
