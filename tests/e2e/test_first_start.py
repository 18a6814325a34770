"""`dial-agent up` in a source tree without the embedding process's environment: it installs it while it answers."""

import json
import shutil
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.package_index import PackageIndexPeer, package_index, wheel
from tests.support.up import ROOT, RunningProduct, dial_agent, running_product

WHEELS = {"torch": wheel("torch", {"torch.py": b"#" * 50_000})}


def source_tree(folder: Path) -> dict[str, str]:
    """The variables with which the product runs from a copy of its own, whose list of packages is short."""
    for name in ("task", "mcp_servers", "core_config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "task" / "embedding" / "requirements.txt").write_text("torch==1.0\n")
    return {"PYTHONPATH": str(folder), "AGENT_RAG__PYTHON": ""}


async def search_in_documents(product: RunningProduct) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{product.ready['agent']}/ready") as response:
        return (await response.json())["search_in_documents"]


async def row_of_doctor(product: RunningProduct) -> tuple[str, str]:
    rows = json.loads((await dial_agent(product.home, "doctor", "--json", **product.environ)).out)
    [row] = [row for row in rows if row["name"] == "search in documents"]
    return row["state"], row["found"]


def from_index(index: PackageIndexPeer) -> dict[str, str]:
    return {**index.environment, "PIP_NO_CACHE_DIR": "1"}


@pytest.mark.system
async def test_the_first_start_installs_the_search_in_documents_while_it_answers_and_the_second_nothing(
    tmp_path: Path,
) -> None:
    tree, home = source_tree(tmp_path / "tree"), tmp_path / "home"
    home.mkdir()
    async with package_index(WHEELS) as index:
        variables = {**from_index(index), "HOME": str(home), **tree}
        index.gate.clear()
        async with running_product(home, **variables) as product:
            await product.having("0.4 GB and 1.1 GB" if sys.platform == "linux" else "1.1 GB on disk")
            await product.having("embedding │ downloading torch")
            await product.having("Search in documents is being installed: ")
            assert (await search_in_documents(product)).startswith("being installed: ")
            state, found = await row_of_doctor(product)
            assert (state, "s so far, downloading torch (" in found) == ("note", True)
            index.gate.set()
            await product.having("embedding │ Search in documents is ready.", 40)
            assert await search_in_documents(product) == "installed"
        async with running_product(home, **variables) as product:
            await product.having("Ctrl-C")
            assert not [line for line in product.lines if "embedding" in line or "Documents" in line]
            assert (await row_of_doctor(product))[0] == "ok"
        assert index.downloads == ["torch"]
