"""`dial-agent chat`: the console at a terminal, one question with `-p`, or the lines of standard input."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from pydantic import SecretStr

from task.cli import Exit
from task.cli.addresses import base_url, core_address, core_is_ours, key_for, local_core_key
from task.cli.companions import HOST, servers_token
from task.cli.model_choice import choose_model
from task.cli.options import Config, JsonLines, agrees_to_skills, print_left_out
from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.console.ui_manager import JsonUserInterface, UserInterfaceManager
from task.errors import InvalidRequest, SettingsError
from task.llm.dial import ModelListings
from task.processes import answers
from task.product.backends import BACKENDS
from task.product.skills import workspace_skills
from task.settings import Settings
from task.telemetry.logs import set_up_logging

NO_MODEL = (
    "No model is connected: start the product with `dial-agent up`, run Ollama, or name a model, for "
    "example with OPENAI_API_KEY."
)
NO_ANSWER = "No DIAL Core answers at {address}: start the product with `dial-agent up`, or set DIAL_ENDPOINT."
NO_CORE = "No DIAL Core: chat, calculator and the files of this folder work; documents, pictures and charts need one."
NO_FILES = "The tools cannot work in this folder: {reason}."
ENDS: Mapping[str, Exit] = {"limited": Exit.LIMITED, "cancelled": Exit.INTERRUPTED}
app = typer.Typer(add_completion=False)
SOON = aiohttp.ClientTimeout(total=2)


@app.command()
def chat(
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this, print the answer, and end.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="SESSION", help="Continue this conversation.")] = None,
    as_json: JsonLines = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show requests and the details of errors.")] = False,
    config: Config = None,
) -> None:
    """Chat until the end."""
    if prompt is not None and not prompt.strip():
        raise InvalidRequest("The question is empty; write it in quotes after -p.")
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # what comes may be anything, a terminal may not have it all
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    configuration = ConfigurationManager(
        str(config) if config else None, complete=lambda given: asyncio.run(completed(given)), foreign=True
    )
    log = configuration.settings.log_file or configuration.settings.data_dir / "chat.log"  # the terminal is the chat's
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)  # what went wrong may quote the conversation
    set_up_logging(configuration.settings.log_level, log)
    ui = JsonUserInterface() if as_json else UserInterfaceManager(configuration.get_ui_settings())
    ui.debug_mode = debug or configuration.settings.console.debug_mode
    if prompt is None and ui.interactive:
        workspace_skills(configuration.settings, Path.cwd(), agrees_to_skills)  # the answer is kept
    controller = FrameworkController(configuration, ui=ui)
    for number in (signal.SIGTERM, signal.SIGHUP):  # the terminal is gone, or the machine shuts down
        signal.signal(number, lambda *_: sys.exit(Exit.INTERRUPTED))  # what runs is stopped first
    try:
        raise typer.Exit(_chat(controller, prompt, resume) if controller.initialize() else Exit.USAGE)
    finally:
        controller.shutdown()


async def completed(settings: Settings) -> Settings:
    """The settings with the model that they leave open: that of a running product, else of what is connected.

    Raises:
        SettingsError: there is none.
    """
    print_left_out(settings)
    address, of_core = core_address(settings), BACKENDS[settings.backend].of_core
    if not core_is_ours(settings):
        return _with_core(settings, address, key_for(settings, address)) if of_core else settings
    named, key = "backend" in settings.model_fields_set, local_core_key(settings)
    async with aiohttp.ClientSession(timeout=SOON) as session:
        models: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON.total):
                models = await ModelListings(session, address).chat_models(key)
        if models:
            settings = _with_core(settings, address, key).model_copy(update=await _companions(settings, session))
    if named and of_core and not models:
        raise SettingsError(NO_ANSWER.format(address=address))
    if named and not of_core:
        return settings
    chosen = await choose_model(settings)
    if models:
        wanted = [settings.deployment_name] if "deployment_name" in settings.model_fields_set else []
        name = next(name for name in (*wanted, chosen.name, *models) if name in models)
        return settings.model_copy(update={"deployment_name": name})
    if chosen.backend is None:
        raise SettingsError(NO_MODEL)
    return settings.model_copy(update={"backend": chosen.backend, "deployment_name": chosen.name})


def _with_core(settings: Settings, address: str, key: str) -> Settings:
    return settings.model_copy(update={"dial_endpoint": address, "dial_api_key": SecretStr(key)})


async def _companions(settings: Settings, session: aiohttp.ClientSession) -> dict[str, Any]:
    # What leads to the servers beside a running product.
    found: dict[str, Any] = {}
    for name, url, port in (
        ("ddg_mcp_url", settings.ddg_mcp_url, settings.search_port),
        ("pyinterpreter_mcp_url", settings.pyinterpreter_mcp_url, settings.interpreter.port),
    ):
        address = base_url(HOST, port)
        if url is None and port and await answers(session, f"{address}/health"):
            found[name] = f"{address}/mcp"
    if found:
        found["mcp_token"] = SecretStr(servers_token(settings))
    return found


def _chat(controller: FrameworkController, prompt: str | None, resume: str | None) -> int:
    if not controller.caller.core_key:
        controller.notes.append(NO_CORE)
    if refused := controller.product.tools.refused:
        controller.notes.append(NO_FILES.format(reason=refused))
    if resume is not None:
        controller.resume(resume)
    if prompt is not None:
        controller.take(prompt)
    else:
        controller.run()
    if prompt is None and controller.ui.interactive:
        return Exit.DONE
    last = controller.conversation.last
    return ENDS.get(last.status if last is not None else "", Exit.FAILED if controller.failed else Exit.DONE)
