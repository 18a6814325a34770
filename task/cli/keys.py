"""`dial-agent keys`: make, list and revoke the keys of the HTTP front door."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from task.settings import Settings
    from task.store.store import Store

app = typer.Typer(help="Create, list and revoke keys of the HTTP API.", no_args_is_help=True)
T = TypeVar("T")

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file to use instead of dial-agent.yaml.")
]


def with_store(config: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store of the settings that the file leads to, do the work, close the store."""
    from task.settings import load_settings

    return on_store(load_settings(config), work)


def on_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store of these settings, do the work, close the store."""
    from task.store.access import StoreAccess

    async def run() -> T:
        access = StoreAccess(**settings.store_options, chores=False)
        try:
            return await work(await access.get())
        finally:
            await access.close()

    return asyncio.run(run())


@app.command()
def create(
    owner: Annotated[str, typer.Argument(help="Owner of the key's sessions, traces and files.")],
    label: Annotated[str, typer.Option(help="A note about what the key is for.")] = "",
    operator: Annotated[bool, typer.Option("--operator", help="Let the key read all owners' traces.")] = False,
    config: Config = None,
) -> None:
    """Create a key and print its secret, which is shown only once."""
    key, secret = with_store(config, lambda store: store.keys.create(owner, label, operator=operator))
    print(f"{key.key_id} belongs to {owner}. The secret is shown only once:", file=sys.stderr)
    print(secret)


@app.command("list")
def show(config: Config = None) -> None:
    """List all keys, without their secrets."""
    from task.cli.traces import columns
    from task.store.records import iso

    rows = [
        (key.key_id, key.owner, "operator" if key.operator else "", iso(key.created_at),
         f"revoked {iso(key.revoked_at)}" if key.revoked_at is not None else "valid", key.label)
        for key in with_store(config, lambda store: store.keys.list())
    ]  # fmt: skip
    print(columns(("KEY", "OWNER", "ROLE", "CREATED", "STATE", "LABEL"), rows))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `list` shows it.")], config: Config = None
) -> None:
    """Revoke a key permanently."""
    with_store(config, lambda store: store.keys.revoke(key_id))
    print(f"{key_id} is revoked", file=sys.stderr)
