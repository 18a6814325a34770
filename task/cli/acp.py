"""`dial-agent acp`: the agent of an editor, which starts it and speaks to it on the standard streams."""

import asyncio
import os
import sys

import typer

from task.cli.chat import completed
from task.cli.options import Config, read_settings
from task.errors import InvalidRequest
from task.product import check, opened
from task.product.framework import folder_tools, in_folder
from task.settings import Settings
from task.telemetry.logs import set_up_logging

app = typer.Typer(add_completion=False)


@app.command()
def acp(config: Config = None) -> None:
    """Serve an editor until it is gone. Logs go to standard error, or to the log file of the settings."""
    if sys.stdin.isatty():
        raise InvalidRequest("An editor starts this command. Name it in the editor's settings; see docs/console.md.")
    given, taken = os.dup(0), os.dup(1)  # the protocol's alone: whatever else is printed goes to standard error
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    settings = read_settings(config)
    set_up_logging(settings.log_level, settings.log_file)
    asyncio.run(_serve(settings, given, taken))


async def _serve(settings: Settings, given: int, taken: int) -> None:
    from task.acp.door import serve  # the protocol's models take half a second

    settings = await completed(settings)
    check(settings)
    services, profile = opened(settings)
    try:
        await serve(
            services,
            lambda folder, make: in_folder(settings, folder_tools(settings, folder, make), services, profile),
            given,
            taken,
        )
    finally:
        await services.close()
