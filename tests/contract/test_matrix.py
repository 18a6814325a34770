"""One contract for all front doors and backends: every cell of the matrix gives what its conversation says.

docs/matrix.md has what is compared, and where a cell may differ.
"""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.matrix.backends import BACKENDS
from tests.contract.matrix.cells import CONVERSATIONS, DOORS, HTTP_DOORS, driven
from tests.contract.matrix.rows import Row, expectation, opened_row
from tests.support.postgres_server import postgres_server

SAMPLE = (
    "of two risky calls one is approved and one denied",
    "a chain of calls, each built on the result before it",
    "the provider fails in the middle of an answer",
)
IN_SAMPLE = {
    "dial": ("DIAL", "/v1"),
    "openai": ("coding", "editor"),
    "ollama": ("/v1 streaming", "/chat"),
    "dapr": ("console",),
}
FULL = [
    (door, name) for name, conversation in CONVERSATIONS.items() for door in DOORS if driven(conversation, door)
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_sample_of_the_cells_gives_what_the_conversation_says(backend: str, tmp_path: Path) -> None:
    async with opened_row(BACKENDS[backend], tmp_path) as row:
        for name in SAMPLE:
            for door in IN_SAMPLE[backend]:
                assert await row.talk(CONVERSATIONS[name], door) == expectation(CONVERSATIONS[name], row.backend, door)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS.values(), ids=BACKENDS.keys())
async def row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Row]:
    async with opened_row(request.param, tmp_path_factory.mktemp("row")) as opened:
        yield opened


@pytest.mark.system
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("door", "name"), FULL)
async def test_every_cell_gives_what_the_conversation_says(row: Row, door: str, name: str) -> None:
    conversation = CONVERSATIONS[name]
    assert await row.talk(conversation, door) == expectation(conversation, row.backend, door)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS.values(), ids=BACKENDS.keys())
async def balanced_row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Row]:
    async with (
        postgres_server() as server,
        opened_row(request.param, tmp_path_factory.mktemp("row"), server.url) as opened,
    ):
        yield opened


@pytest.mark.system
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("door", "name"), [(door, name) for door, name in FULL if door in HTTP_DOORS])
async def test_every_cell_of_an_http_door_gives_the_same_through_the_balanced_address(
    balanced_row: Row, door: str, name: str
) -> None:
    conversation = CONVERSATIONS[name]
    assert await balanced_row.talk(conversation, door) == expectation(conversation, balanced_row.backend, door)
