"""The program that runs a model's weights: a pinned, hash-checked package in a folder of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from task.local_model.packages import PackageIndex
from task.local_model.weights import WeightStore

PACKAGE = "xllamacpp"
VERSION = "2026.10.11549"
# One wheel for each kind of machine: Linux on x86_64 and on ARM, macOS on ARM.
SHA256 = (
    "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
    "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
    "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781",
)
DOWNLOAD_BYTES = 34_000_000


def runtime_folder(folder: Path, version: str = VERSION) -> Path:
    """Where the runtime lies below the folder of the weights."""
    return folder / "runtime" / f"{PACKAGE}-{version}"


def requirement(package: str, version: str, hashes: Sequence[str]) -> str:
    """The line of a requirements file that lets pip install this and nothing else."""
    return " ".join([f"{package}=={version}", *(f"--hash=sha256:{value}" for value in hashes)])


def install_runtime(
    store: WeightStore,
    index: PackageIndex,
    tick: Callable[[], None],
    line: str = requirement(PACKAGE, VERSION, SHA256),
) -> Path:
    """The runtime's folder, installed on the first call, whole or not at all.

    Raises:
        WeightsUnavailable: pip did not get it, or its hash is another.
    """
    place = runtime_folder(store.folder)
    with store.lock(PACKAGE):
        if not place.is_dir():
            _install(place, index, tick, line)
    return place


def _install(place: Path, index: PackageIndex, tick: Callable[[], None], line: str) -> None:
    work = place.with_name(f"{place.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        requirements = work / "requirements.txt"
        requirements.write_text(line, "utf-8")
        target = work / "target"
        wanted = ["install", "--require-hashes", "--target", str(target), "--requirement", str(requirements)]
        index.run(wanted, work, f"{PACKAGE} {VERSION}", tick)
        os.replace(target, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
