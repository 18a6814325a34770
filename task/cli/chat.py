"""`dial-agent chat`: the console at a terminal, one question with `-p`, or the lines of standard input."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
from pydantic import SecretStr

from task.cli.addresses import base_url, core_address, core_is_ours, key_for, local_core_key
from task.cli.companions import HOST
from task.cli.exits import Exit
from task.cli.model_choice import choose_model
from task.cli.run import IGNORED
from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.console.ui_manager import JsonUserInterface, UserInterfaceManager
from task.errors import InvalidRequest, SettingsError
from task.llm.dial import ModelListings
from task.settings import Settings
from task.settings.installation import installation_secret

NO_MODEL = (
    "No model is connected: start the product with `make run` or `dial-agent up`, run Ollama, or name a model, for "
    "example with OPENAI_API_KEY."
)
NO_ANSWER = (
    "No DIAL Core answers at {address}: start the product with `make run` or `dial-agent up`, or set DIAL_ENDPOINT."
)
NO_CORE = "No DIAL Core: chat, calculator and the files of this folder work; documents, pictures and charts need one."
NO_FILES = "The tools cannot work in this folder: {reason}."
ENDS: Mapping[str, Exit] = {"limited": Exit.LIMITED, "cancelled": Exit.INTERRUPTED}
SOON = aiohttp.ClientTimeout(total=2)


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
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # what comes may be anything, a terminal may not have it all
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    configuration = ConfigurationManager(str(config) if config else None, complete=completed, workspace=Path.cwd())
    if ignored := configuration.settings.ignored:
        print(IGNORED.format(names=", ".join(ignored)), file=sys.stderr)
    _start_log(configuration.settings)
    ui = JsonUserInterface() if given.as_json else UserInterfaceManager(configuration.get_ui_settings())
    ui.debug_mode = given.debug or configuration.settings.console.debug_mode
    controller = FrameworkController(configuration, ui=ui)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        return _chat(controller, given) if controller.initialize() else Exit.USAGE
    finally:
        controller.shutdown()


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(Exit.INTERRUPTED)  # the terminal is gone, or the machine shuts down: what runs is stopped first


def completed(settings: Settings) -> Settings:
    """The settings with the model that they leave open: that of a running product, else of what is connected.

    Raises:
        SettingsError: there is none.
    """
    return asyncio.run(_completed(settings))


async def _completed(settings: Settings) -> Settings:
    address, named = core_address(settings), "backend" in settings.model_fields_set
    if not core_is_ours(settings):
        needs_key = settings.backend == "dial"
        return _with_core(settings, address, key_for(settings, address)) if needs_key else settings
    key = local_core_key(settings)
    models = await _models_of(address, key)
    if models:
        settings = _with_core(settings, address, key).model_copy(update=await _companions(settings))
    elif named and settings.backend == "dial":
        raise SettingsError(NO_ANSWER.format(address=address))
    if named and settings.backend != "dial":
        return settings
    chosen = await choose_model(settings)
    if models:
        wanted = [settings.deployment_name] if "deployment_name" in settings.model_fields_set else []
        name = next(name for name in (*wanted, chosen.name, *models) if name in models)
        return settings.model_copy(update={"deployment_name": name})
    backend = {"ollama": "ollama", "upstream": "openai"}.get(chosen.rule)
    if backend is None:
        raise SettingsError(NO_MODEL)
    return settings.model_copy(update={"backend": backend, "deployment_name": chosen.name})


def _with_core(settings: Settings, address: str, key: str) -> Settings:
    return settings.model_copy(update={"dial_endpoint": address, "dial_api_key": SecretStr(key)})


async def _models_of(address: str, key: str) -> list[str]:
    """The chat models of a Core at this address; none where there is no Core."""
    async with aiohttp.ClientSession(timeout=SOON) as session:
        try:
            async with asyncio.timeout(SOON.total):
                return await ModelListings(session, address).chat_models(key)
        except TimeoutError:
            return []


async def _answers(address: str) -> bool:
    try:
        async with aiohttp.ClientSession(timeout=SOON) as session, session.get(f"{address}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return False


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
    if not controller.caller.core_key:
        controller.notes.append(NO_CORE)
    if refused := controller.product.refused:
        controller.notes.append(NO_FILES.format(reason=refused))
    if given.resume is not None:
        controller.resume(given.resume)
    if given.prompt is not None:
        controller.take(given.prompt)
    else:
        controller.run()
        if controller.ui.interactive:
            return Exit.DONE
    last = controller.last.status if controller.last is not None else ""
    return ENDS.get(last, Exit.FAILED if controller.failed else Exit.DONE)


def _start_log(settings: Settings) -> None:
    """Log to the file of the settings, else beside the product's data: the terminal belongs to the chat."""
    file = settings.log_file or settings.data_dir / "chat.log"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)  # what went wrong may quote the conversation
        handler = WatchedFileHandler(file, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"AGENT_LOG_FILE: {file} cannot be written: {error.strerror}.") from error
    logging.basicConfig(level=settings.log_level, format="%(levelname)s %(name)s %(message)s", handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # a line for every module loaded
