"""`dial-agent init`: the configuration files that come with the product, in a folder of the user's."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from task.cli.core_config import DEPLOYMENT
from task.cli.options import write
from task.errors import SettingsError

COMPOSE = ("docker-compose.yml", ".env.example", "compose", "core_config", "observability")
app = typer.Typer(add_completion=False)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write; the working directory unless given.")] = Path(),
    compose: Annotated[bool, typer.Option("--compose", help="What `docker compose up` needs.")] = False,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="The chart.")] = False,
    core: Annotated[bool, typer.Option("--core", help="The configuration of DIAL Core.")] = False,
) -> None:
    """Write the files that the options name, all without one; files that are there already stay unchanged."""
    chosen = {COMPOSE: compose, ("kubernetes",): kubernetes, ("core_config",): core}
    wanted = {name for names, named in chosen.items() if named or not any(chosen.values()) for name in names}
    for name in sorted(wanted):
        own = DEPLOYMENT / name
        for source in sorted(filter(Path.is_file, own.rglob("*"))) if own.is_dir() else [own]:
            target = folder / source.relative_to(DEPLOYMENT)
            try:
                if target.exists():
                    write(f"kept     {target}")
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f".{target.name}.part")
                shutil.copyfile(source, part)
                part.replace(target)  # at once: the next call would keep half a file
            except OSError as error:
                raise SettingsError(f"{target} cannot be written: {error.strerror}. Choose another folder.") from error
            write(f"written  {target}")
