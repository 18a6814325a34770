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

import typer
from pydantic import BaseModel, ValidationError

from task.cli import Exit
from task.cli.addresses import CoreClient, CoreError, Unreachable, core_address, key_for
from task.cli.options import Config, JsonLines, read_settings
from task.console.attachments import saved
from task.console.ui_manager import UNNUMBERED, JsonUserInterface, Show, UserInterfaceManager
from task.conversation.messages import Attachment
from task.conversation.state import PENDING_KEY, waits
from task.core_client.files import UnpooledFiles
from task.errors import AgentError, InvalidRequest
from task.llm.chat_chunks import DONE
from task.runs.events import (
    Attached,
    FinishReason,
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
from task.settings import Settings
from task.store.records import Event

NO_TERMINAL = "Nothing has run: the call waits for an approval. Ask again at a terminal or in a chat."
START_IT = "start the product with `make run` or `dial-agent up`."
BEHIND_CORE = (502, 503, 504)  # Core is there, the agent behind it is not
PROMPT = "approve, always, or deny because …? [deny] "
SHORT_REPLIES = {"": "deny", "y": "yes", "n": "no"}
FILE_SECONDS = 300.0
app = typer.Typer(add_completion=False)
LOOK = {"assistant_prefix": "", "tool_prefix": "", "error_prefix": ""}


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, of which deployment, with which files; the files of the answer go to the folder `save`."""

    text: str
    files: tuple[Path, ...] = ()
    model: str = "general-purpose-agent"
    save: Path | None = None
    as_json: bool = False


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question; `-` reads it from standard input.")],
    file: Annotated[
        list[Path] | None,
        typer.Option(
            *("--file", "-f"), exists=True, dir_okay=False, metavar="FILE", help="File to attach; may be repeated."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Deployment to ask.")] = "general-purpose-agent",
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save the answer's files there.")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="DIAL Core to ask.")] = None,
    as_json: JsonLines = False,
    config: Config = None,
) -> None:
    """Ask one question."""
    text = sys.stdin.read() if question == "-" else question
    settings = read_settings(config, dial_endpoint=endpoint or None)
    raise typer.Exit(run(settings, Question(text, tuple(file or ()), model, save, as_json)))


def run(settings: Settings, question: Question) -> int:
    """Ask and show the answer.

    Raises:
        InvalidRequest: an empty question, or a folder for files that cannot be made.
        SettingsError: no key for this Core.
    """
    if not question.text.strip():
        raise InvalidRequest("The question is empty; write it in quotes after `ask`.")
    if question.save is not None:
        try:
            question.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"--save {question.save} cannot be used as a folder: {error.strerror}.") from error
    address = core_address(settings)
    ui = JsonUserInterface() if question.as_json else UserInterfaceManager(LOOK, plain=True)
    try:
        return _ask(address, key_for(settings, address), question, ui)
    except Unreachable as error:
        message, code = f"{error}; {START_IT}", Exit.UNREACHABLE
    except CoreError as error:
        message, code = str(error), Exit.FAILED
        if error.status == 401:
            message = f"{address} refuses the key ({error}); set DIAL_API_KEY to the one it knows."
            code = Exit.USAGE
        elif error.status == 404:
            message = f"{address} answers: {error}; --model {question.model} is not deployed there."
            code = Exit.USAGE
        elif error.status in BEHIND_CORE:
            message = f"{address} answers, but {question.model} behind it does not ({error}); {START_IT}"
            code = Exit.UNREACHABLE
    except AgentError as error:  # Core did not take a file
        message, code = str(error), Exit.FAILED
    ui.display_error_message("", message)
    return code


def _ask(address: str, api_key: str, question: Question, ui: UserInterfaceManager) -> Exit:
    client, files = CoreClient(address, api_key), UnpooledFiles(address, seconds=FILE_SECONDS)
    unsaved: list[Attachment] = []

    def save(attachment: Attachment) -> Path | None:
        if question.save is None:
            return None
        try:
            return asyncio.run(saved(files, api_key, attachment, question.save))
        except AgentError:
            unsaved.append(attachment)
            raise

    ui.save = save
    attachments: Sequence[Attachment] = ()
    if question.files:
        asyncio.run(client.bucket())  # a Core that is absent or refuses the key has an exit code of its own
        attachments = [asyncio.run(_uploaded(files, api_key, path)) for path in question.files]
    messages, conversation = [_user_message(question.text, attachments)], uuid4().hex
    while True:
        answer = AnswerReader()
        with ui.answering() as show:
            asyncio.run(_show(answer, client.ask(question.model, messages, conversation), show))
        if not answer.asks:
            return Exit.FAILED if answer.failed or unsaved else Exit.DONE
        reply = ui.type_line(PROMPT) if ui.interactive else None
        if reply is None:
            ui.display_error_message("", NO_TERMINAL)
            return Exit.WAITING
        decision = reply.strip()
        messages += [answer.message(), _user_message(SHORT_REPLIES.get(decision.lower(), decision))]


async def _uploaded(files: UnpooledFiles, api_key: str, path: Path) -> Attachment:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = await asyncio.to_thread(path.read_bytes)
    url = await files.upload(path.name, content, kind, api_key, f"ask/{uuid4().hex[:12]}/")
    return Attachment(type=kind, title=path.name, url=url)


async def _show(answer: AnswerReader, payloads: AsyncGenerator[bytes], show: Show) -> None:
    # Closed here, and not by the end of the loop, where output is a pipe that nothing reads any more.
    async with aclosing(payloads), aclosing(answer.events(payloads)) as events:
        async for event in events:
            show(Event(UNNUMBERED, event.type, data_of(event)))


def _user_message(text: str, attachments: Sequence[Attachment] = ()) -> dict[str, Any]:
    custom = {"attachments": [item.as_dict() for item in attachments]}
    return {"role": "user", "content": text, **({"custom_content": custom} if attachments else {})}


class _StageChange(BaseModel):
    index: int
    parent_stage_index: int | None = None
    name: str | None = None
    content: str | None = None
    status: str | None = None


class _CustomDelta(BaseModel):
    attachments: list[Attachment] | None = None
    stages: list[_StageChange] | None = None
    state: dict[str, Any] | None = None


class _Delta(BaseModel):
    content: str | None = None
    custom_content: _CustomDelta | None = None


class _ChoiceChunk(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: FinishReason | None = None


class _AnswerChunk(BaseModel):
    choices: list[_ChoiceChunk] = []
    error: dict[str, Any] | None = None


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
                chunk = _AnswerChunk.model_validate_json(payload)
            except ValidationError:
                self._ended, failure = False, "The response is not a DIAL answer."
                break
            if chunk.error is not None:
                message = chunk.error.get("display_message") or chunk.error.get("message")
                self._ended, failure = False, str(message or "The answer failed without a reason.")
                break
            for choice in chunk.choices:
                for event in self._choice(choice):
                    yield event
        if not self._ended:
            self.failed = True
            yield RunError({"message": failure})

    def _choice(self, choice: _ChoiceChunk) -> Iterator[RunEvent]:
        custom = choice.delta.custom_content or _CustomDelta()
        for stage in custom.stages or ():
            before = self._names.get(stage.index, "")
            name = self._names[stage.index] = before + (stage.name or "")
            if name and not before:  # the duration, which follows at the end, belongs to the name as well
                yield StageOpened(stage.index, stage.parent_stage_index, name)
            if stage.content:
                yield StageText(stage.index, stage.content)
            if stage.status:
                yield StageClosed(stage.index, name, "failed" if stage.status.lower() == "failed" else "completed")
        if choice.delta.content:
            self._text += choice.delta.content
            yield RunText(choice.delta.content)
        if custom.state is not None:
            self._state = custom.state
            if waits(custom.state):
                self.asks = True
                asked = [{name: item.get(name) for name in ("call_id", "code")} for item in custom.state[PENDING_KEY]]
                yield RunAsks(asked, "")  # the question itself is the end of the answer's text
        for item in custom.attachments or ():
            yield Attached(None, item.as_dict())
        if choice.finish_reason and not self._ended:
            self._ended = True
            yield RunFinished("finished", "", None, None, choice.finish_reason)
