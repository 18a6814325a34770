"""`dial-agent model`: download the model that runs on this machine, list what is there, remove it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from task.commands.local_model import index_of, name_of, own_file, store_of
from task.local_model.catalogue import CATALOGUE, CODER
from task.local_model.download import OTHER_SOURCES, Report, pull
from task.local_model.download import Progress as Bytes
from task.local_model.runtime import install_runtime
from task.local_model.weights import WeightsUnavailable
from task.settings import Settings

EVERY_PERCENT = 10  # a line into a log


def run_pull(settings: Settings) -> int:
    """Get what is missing: the program that runs models, then the weights. 0, or 1 with one sentence."""
    console, store, index = Console(highlight=False, soft_wrap=True), store_of(settings), index_of()
    try:
        own = own_file(settings)
        if own is None:
            console.print(f"{CODER.name}: {CODER.size / 1e9:.1f} GB into {store.folder}")
        install_runtime(store, index, lambda: None)
        if own is None:
            with _shown(console) as report:
                pull(CODER, store, index, report)
    except WeightsUnavailable as error:
        text = str(error)
        console.print(text if OTHER_SOURCES in text else f"{text} {OTHER_SOURCES}", style="red")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. The next `dial-agent model pull` goes on where this one ended.")
        return 130
    console.print(f"{name_of(settings)} is ready: `dial-agent up` uses it when no other model is connected.")
    return 0


def run_list(settings: Settings) -> int:
    """Each model with its size and state."""
    console, store = Console(highlight=False, soft_wrap=True), store_of(settings)
    if own := own_file(settings):
        console.print(f"{own.stem}  {own.stat().st_size / 1e9:.2f} GB  your own file: {own}")
    for weights in CATALOGUE:
        path, done = store.found(weights), store.done_bytes(weights)
        state = f"here: {path}" if path else f"{done / weights.size:.0%} downloaded" if done else "not downloaded"
        console.print(f"{weights.name}  {weights.size / 1e9:.2f} GB  {weights.licence}  {state}")
    return 0


def run_remove(settings: Settings) -> int:
    """Delete what was downloaded; a file of the user's own stays."""
    store = store_of(settings)
    console = Console(highlight=False, soft_wrap=True)
    for weights in CATALOGUE:
        with store.lock(weights.name, wait=False) as ours:
            if not ours:
                console.print(f"{weights.name} is being downloaded by another process; stop that first.")
                return 1
            freed = store.remove(weights)
            console.print(f"{weights.name}: {freed / 1e9:.2f} GB removed." if freed else f"{weights.name} is not here.")
    return 0


@contextmanager
def _shown(console: Console) -> Generator[Report]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("Downloading", total=None)

        def report(progress: Bytes) -> None:
            words = "Another process downloads; waiting" if progress.waiting else "Downloading"
            words = "Checking" if progress.done >= progress.total else words
            bar.update(task, description=words, completed=progress.done, total=progress.total)

        yield report


class _Lines:
    """A line for every tenth."""

    def __init__(self, console: Console) -> None:
        self._console, self._told = console, -1

    def __call__(self, progress: Bytes) -> None:
        if progress.waiting:
            self._console.print("Another process downloads it; waiting for that.")
        tenth = 100 * progress.done // progress.total // EVERY_PERCENT
        if tenth > self._told:
            self._told = tenth
            self._console.print(f"{tenth * EVERY_PERCENT} %")
