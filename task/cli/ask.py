"""One question to the product, its answer streamed to the terminal, and an exit code."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

from task.cli.addresses import core_address, key_for
from task.cli.answer import (
    AnswerOutput,
    AnswerReader,
    JsonOutput,
    TerminalOutput,
    failed,
)
from task.cli.core_client import TIMEOUT, CoreClient, CoreError, Unreachable
from task.cli.exits import Exit
from task.console.terminal.saving import decoded, file_name, free_name
from task.conversation.messages import Attachment
from task.errors import InvalidRequest
from task.runs.events import Attached, AttachmentSaved, RunAsks, RunError
from task.settings import Settings

NOBODY = "Nothing has run: the call waits for an approval. Ask again at a terminal or in a chat."
START_IT = "start the product with `make run` or `dial-agent up`."
BEHIND_CORE = (502, 503, 504)  # Core is there, the agent behind it is not


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, of which deployment, with which files; answers' files go to the folder `save`."""

    text: str
    files: tuple[Path, ...] = ()
    model: str = "general-purpose-agent"
    save: Path | None = None
    as_json: bool = False


def run(settings: Settings, question: Question) -> int:
    """Ask and show the answer.

    Raises:
        InvalidRequest: an empty question, or a file that cannot be read.
        SettingsError: no key for this Core.
    """
    check(question)
    address = core_address(settings)
    return asyncio.run(_run(address, key_for(settings, address), question))


def check(question: Question) -> None:
    """Refuse what cannot be asked before anything is sent, and make the folder for saved files.

    Raises:
        InvalidRequest: which part is wrong and what to do about it.
    """
    if not question.text.strip():
        raise InvalidRequest("The question is empty; write it in quotes after `ask`.")
    for path in question.files:
        _check_file(path)
    if question.save is not None:
        try:
            question.save.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"--save {question.save} cannot be used as a folder: {error.strerror}.") from error


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InvalidRequest(f"--file {path} is a folder; name the files in it one by one.")
        if not stat.S_ISREG(mode):
            raise InvalidRequest(f"--file {path} is not a file; save what it gives and attach that.")
        path.open("rb").close()
    except OSError as error:
        raise InvalidRequest(f"--file {path} cannot be read: {error.strerror}.") from error


async def _run(address: str, api_key: str, question: Question) -> int:
    output: AnswerOutput = JsonOutput() if question.as_json else TerminalOutput(saves=question.save is not None)
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        client = CoreClient(session, address, api_key)
        try:
            return await _ask(client, question, output)
        except Unreachable as error:
            output.show(failed(f"{error}; {START_IT}"))
            return Exit.UNREACHABLE
        except CoreError as error:
            message, code = _refusal(error, address, question.model)
            output.show(failed(message))
            return code


async def _ask(client: CoreClient, question: Question, output: AnswerOutput) -> int:
    attachments: list[Attachment] = []
    if question.files:
        folder = f"{await client.bucket()}/ask/{uuid4().hex[:12]}"  # no other question uses it
        attachments = [await client.upload(path, f"{folder}/{n}") for n, path in enumerate(question.files, 1)]
    messages: list[dict[str, Any]] = [_user_message(question.text, attachments)]
    received: list[Attachment] = []
    conversation = uuid4().hex
    while True:
        code, answer = await _show(client.ask(question.model, messages, conversation), output, received)
        if code is not Exit.WAITING:
            break
        decision = await output.decision()
        if decision is None:
            output.show(failed(NOBODY))
            break
        messages += [answer, _user_message(decision)]
    if question.save is not None:
        await _save(client, received, question.save, output)
    return code


def _user_message(text: str, attachments: Sequence[Attachment] = ()) -> dict[str, Any]:
    custom = {"attachments": [item.as_dict() for item in attachments]}
    return {"role": "user", "content": text, **({"custom_content": custom} if attachments else {})}


async def _show(
    payloads: AsyncIterator[bytes], output: AnswerOutput, received: list[Attachment]
) -> tuple[Exit, dict[str, Any]]:
    # The exit code, and the message that a chat would keep; attachments go to `received`.
    reader, code = AnswerReader(), Exit.DONE
    async for event in reader.events(payloads):
        output.show(event)
        if isinstance(event, Attached):
            received.append(Attachment(**event.attachment))
        elif isinstance(event, RunAsks):
            code = Exit.WAITING
        elif isinstance(event, RunError):
            code = Exit.FAILED
    return code, {"role": "assistant", "content": reader.text, "custom_content": {"state": reader.state or {}}}


async def _save(client: CoreClient, attachments: list[Attachment], folder: Path, output: AnswerOutput) -> None:
    for attachment in attachments:
        if attachment.url and attachment.url.startswith("files/"):
            target = free_name(folder, file_name(attachment))
            await client.download(attachment.url, target)
        elif attachment.data is not None and attachment.reference_url is None:
            target = free_name(folder, file_name(attachment))
            target.write_bytes(decoded(attachment.data, attachment.type or ""))
        else:
            continue
        output.show(AttachmentSaved(attachment.title, attachment.url, str(target)))


def _refusal(error: CoreError, address: str, model: str) -> tuple[str, Exit]:
    if error.status == 401:
        return f"{address} refuses the key ({error}); set DIAL_API_KEY to the one it knows.", Exit.USAGE
    if error.status == 404:
        return f"{address} answers: {error}; --model {model} is not deployed there.", Exit.USAGE
    if error.status in BEHIND_CORE:
        return f"{address} answers, but {model} behind it does not ({error}); {START_IT}", Exit.UNREACHABLE
    return str(error), Exit.FAILED
