"""`dial-agent chat`: the console at a terminal, one question with `-p`, or the lines of standard input."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import SecretStr

from task.commands.addresses import base_url, core_address, core_is_ours, key_for, local_core_key
from task.commands.companions import HOST
from task.commands.exits import Exit
from task.commands.model_choice import choose_model
from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.console.ui_manager import AnswerView, UserInterfaceManager
from task.errors import InvalidRequest, SettingsError
from task.llm.dial import ModelListings
from task.settings import Settings
from task.settings.installation import installation_secret
from task.store.records import Event

NO_MODEL = (
    "No model is connected: start the product with `make run` or `dial-agent up`, run Ollama, or name a model, for "
    "example with OPENAI_API_KEY."
)
NO_CORE = "No DIAL Core: chat, calculator and the files of this folder work; documents, pictures and charts need one."
CORE_TIMEOUT = aiohttp.ClientTimeout(total=2)


@dataclass(frozen=True, slots=True)
class ChatArguments:
    """The command's own arguments. `prompt` is one question, `resume` the session to continue."""

    prompt: str | None = None
    resume: str | None = None
    as_json: bool = False
    debug: bool = False


def run(config: Path | None, given: ChatArguments) -> int:
    """Chat until the end; the exit code.

    Raises:
        SettingsError: a setting cannot be used, or no model is connected.
        InvalidRequest: an empty question, or no such session.
    """
    if given.prompt is not None and not given.prompt.strip():
        raise InvalidRequest("The question is empty; write it in quotes after -p.")
    configuration = ConfigurationManager(str(config) if config else None, complete=completed)
    settings = configuration.settings
    _start_log(settings)
    ui = _JsonLines() if given.as_json else UserInterfaceManager(configuration.get_ui_settings())
    controller = FrameworkController(configuration, ui=ui)
    controller.errors.debug = ui.debug_mode = given.debug or settings.console.debug_mode
    try:
        if not controller.initialize():
            return Exit.FAILED
        return _chat(controller, given)
    finally:
        controller.shutdown()


def completed(settings: Settings) -> Settings:
    """The settings with the model that they leave open: that of a running product, else of what is connected.

    Raises:
        SettingsError: there is none.
    """
    return asyncio.run(_completed(settings))


async def _completed(settings: Settings) -> Settings:
    if "backend" in settings.model_fields_set and settings.backend != "dial":
        return settings
    address = core_address(settings)
    if not core_is_ours(settings) or "backend" in settings.model_fields_set:
        return settings.model_copy(
            update={"dial_endpoint": address, "dial_api_key": SecretStr(key_for(settings, address))}
        )
    chosen = await choose_model(settings)
    if await _answers(address):
        return await _behind_core(settings, address, chosen.name)
    backend = {"ollama": "ollama", "upstream": "openai"}.get(chosen.rule)
    if backend is None:
        raise SettingsError(NO_MODEL)
    return settings.model_copy(update={"backend": backend, "deployment_name": chosen.name})


async def _answers(address: str) -> bool:
    try:
        async with aiohttp.ClientSession(timeout=CORE_TIMEOUT) as session, session.get(f"{address}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return False


async def _behind_core(settings: Settings, address: str, model: str) -> Settings:
    key = local_core_key(settings)
    async with aiohttp.ClientSession() as session:
        listed = await ModelListings(session, address).chat_models(key)
    found = {
        "dial_endpoint": address,
        "dial_api_key": SecretStr(key),
        "deployment_name": model if model in listed or not listed else listed[0],
    }
    return settings.model_copy(update={**found, **await _companions(settings)})


async def _companions(settings: Settings) -> dict[str, Any]:
    """What leads to the servers that a running product has beside it."""
    found: dict[str, Any] = {}
    places = {"ddg_mcp_url": settings.search_port, "pyinterpreter_mcp_url": settings.interpreter.port}
    for name, port in places.items():
        address = base_url(HOST, port)
        if getattr(settings, name) is None and port and await _answers(address):
            found[name] = f"{address}/mcp"
    if found and settings.mcp_token is None:
        found["mcp_token"] = SecretStr(installation_secret(settings.data_dir / "mcp.key"))
    return found


def _chat(controller: FrameworkController, given: ChatArguments) -> int:
    if given.resume is not None:
        controller.resume(given.resume)
    if given.prompt is not None:
        controller.take(given.prompt)
    else:
        controller.run()
    return _exit(controller, ended=given.prompt is not None or not controller.ui.interactive)


def _exit(controller: FrameworkController, *, ended: bool) -> Exit:
    last = controller.last
    if not ended:
        return Exit.DONE
    if controller.failed:
        return Exit.FAILED
    return {"limited": Exit.LIMITED, "cancelled": Exit.INTERRUPTED}.get(last.status if last else "", Exit.DONE)


def _start_log(settings: Settings) -> None:
    """Log to the file of the settings; without one to standard error, unless that is the terminal of the chat."""
    file = settings.log_file or (settings.data_dir / "chat.log" if sys.stderr.isatty() else None)
    try:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        handler = WatchedFileHandler(file, encoding="utf-8") if file is not None else logging.StreamHandler()
    except OSError as error:
        raise SettingsError(f"AGENT_LOG_FILE: {file} cannot be written: {error.strerror}.") from error
    logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s %(message)s", handlers=[handler])


class _JsonLines(UserInterfaceManager):
    """Shows each event of a run as one JSON object per line, and asks nothing."""

    @property
    def interactive(self) -> bool:
        return False

    @contextmanager
    def answering(self) -> Generator[AnswerView]:
        yield self

    def show(self, event: Event) -> None:
        print(json.dumps(event.as_dict(), ensure_ascii=False), flush=True)

    def display_error_message(self, error_type: str, error_message: str) -> None:
        print(json.dumps({"type": "error", "error": {"message": error_message}}, ensure_ascii=False), flush=True)
