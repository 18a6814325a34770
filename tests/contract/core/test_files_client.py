"""The file part of the `aidial-client` smoke list: the client that applications use understands every answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

from tests.support.core import RunningCore
from tests.support.core_files import new_home
from tests.support.core_peers import dialling

if TYPE_CHECKING:
    from aidial_client import AsyncDial


@pytest.fixture
async def dial(core: RunningCore) -> AsyncGenerator[AsyncDial]:
    client = dialling(core, core.keys[0])
    yield client
    await client.aclose()


async def home_of(client: AsyncDial) -> str:
    """A folder of the test's own in the caller's bucket, without a slash at the end."""
    return f"{await client.my_files_home()}/{new_home()}".removesuffix("/")


async def test_13_18_a_file_is_uploaded_described_and_downloaded(dial: AsyncDial) -> None:
    home = await home_of(dial)
    item = await dial.files.upload(f"{home}/my dir/отчёт #1 100%.csv", ("x.csv", b"1,2\n", "text/csv"))
    assert (item.name, item.content_length) == ("отчёт #1 100%.csv", 4)
    assert (item.parent_path or "").endswith("/my dir")
    file = await dial.files.download(item.url)
    assert (await file.aget_content(), file.filename, file.content_type) == (b"1,2\n", "отчёт #1 100%.csv", "text/csv")
    async with dial.files.stream_download(item.url) as stream:
        assert b"".join([chunk async for chunk in stream]) == b"1,2\n"
    about = await dial.files.get_metadata(item.url)
    assert (about.name, about.etag, about.content_type) == ("отчёт #1 100%.csv", item.etag, "text/csv")
    listing = await dial.metadata.get("files", f"{home}/", limit=10)
    assert [(node.name, node.node_type) for node in listing.items or []] == [("my dir", "FOLDER")]
    assert await dial.my_appdata_home() is None


async def test_13_18_a_file_is_moved_copied_and_deleted(dial: AsyncDial) -> None:
    from aidial_client import ResourceNotFoundError

    home = await home_of(dial)
    await dial.files.upload(f"{home}/a", b"content")
    await dial.files.move_to(f"{home}/a", f"{home}/dir/b")
    await dial.files.copy_to(f"{home}/dir/b", f"{home}/c d")
    await dial.files.delete(f"{home}/dir/b")
    with pytest.raises(ResourceNotFoundError):
        await dial.files.delete(f"{home}/dir/b")
    assert await (await dial.files.download(f"{home}/c d")).aget_content() == b"content"


async def test_13_18_conditions_and_refusals_are_typed_errors(dial: AsyncDial) -> None:
    from aidial_client import DialException, EtagMismatchError

    home = await home_of(dial)
    item = await dial.files.upload(f"{home}/a", b"one", etag_if_none_match="*")
    with pytest.raises(EtagMismatchError):
        await dial.files.upload(f"{home}/a", b"two", etag_if_none_match="*")
    with pytest.raises(EtagMismatchError):
        await dial.files.delete(f"{home}/a", etag_if_match="other")
    await dial.files.delete(f"{home}/a", etag_if_match=item.etag)
    with pytest.raises(DialException, match="Url has invalid bucket"):
        await dial.files.download("files/nobody0/a")
