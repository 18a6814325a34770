"""What the store writes to disk: complete files, nothing of failed uploads, nothing outside its folder."""

import asyncio
import hashlib
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from task.local.core.access import AccessRules, Principal
from task.local.core.app import create_app
from task.local.core.core import CoreSettings
from task.local.core.responses import Refusal
from task.local.core.served import plain_request
from task.local.core.storage import Check, FileStore, StoredFile
from tests.support.core import served
from tests.support.core_files import CoreFiles

RULES = AccessRules(b"secret")
ANN, BOB = Principal("Keys/ann/", ("default",)), Principal("Keys/bob/", ("default",))
BUCKET = RULES.id_of(ANN.owner)
URL = f"files/{BUCKET}/dir/a.txt"


async def keep(store: FileStore, content: bytes, check: Check = lambda _: None) -> StoredFile:
    return await asyncio.to_thread(store.keep, ANN, URL, io.BytesIO(content), "text/plain", "ann", check)


async def content_of(store: FileStore, url: str = URL) -> bytes | None:
    opened = await asyncio.to_thread(store.open, ANN, url)
    if opened is None:
        return None
    with opened[1] as content:
        return content.read()


def data_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@asynccontextmanager
async def caller_of(root: Path, max_upload: int = 2**30) -> AsyncGenerator[CoreFiles]:
    """A caller of a local Core whose files are kept below `root/files`."""
    config = {"keys": {"ann": {"project": "ann", "role": "default"}}}
    app = create_app(CoreSettings(root, config=config, max_upload=max_upload))
    async with served(app) as base_url, CoreFiles.of(base_url, "ann") as files:
        yield files


async def test_concurrent_writers_leave_one_complete_file_and_readers_see_nothing_else(tmp_path: Path) -> None:
    store = FileStore(tmp_path, RULES)
    contents = [bytes([number]) * 200_000 for number in range(20)]
    await keep(store, contents[0])
    async with asyncio.timeout(10):
        writing = asyncio.gather(*(keep(store, content) for content in contents))
        while not writing.done():
            assert await content_of(store) in contents
        await writing
    stored = await asyncio.to_thread(store.read, ANN, URL)
    assert stored is not None
    assert stored.etag == hashlib.md5(stored.path.read_bytes()).hexdigest()
    assert len(data_files(tmp_path)) == 2  # the sidecar and the content, no earlier version
    assert stored.path.parent.stat().st_mode & 0o77 == 0, "other users of the machine do not read it"


async def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    store = FileStore(tmp_path, RULES)

    def is_new(stored: StoredFile | None) -> None:
        if stored is not None:
            raise FileExistsError

    async with asyncio.timeout(10):
        creating = (keep(store, b"%d" % number, check=is_new) for number in range(10))
        results = await asyncio.gather(*creating, return_exceptions=True)
    assert len([result for result in results if isinstance(result, StoredFile)]) == 1
    assert len(data_files(tmp_path)) == 2


@pytest.mark.fault("file: path tricks in a file's address")
async def test_a_symbolic_link_in_the_data_folder_is_not_followed(tmp_path: Path) -> None:
    secret, root = tmp_path / "secret.txt", tmp_path / "data"
    secret.write_text("secret")
    store = FileStore(root, RULES)
    stored = await keep(store, b"content")
    (root / "files" / BUCKET / "a.txt").symlink_to(secret)
    assert await content_of(store, f"files/{BUCKET}/a.txt") is None
    stored.path.unlink()
    stored.path.symlink_to(secret)
    assert await content_of(store) is None
    await keep(store, b"new")
    assert (await content_of(store), secret.read_text()) == (b"new", "secret")


async def test_a_linked_bucket_folder_is_refused_and_nothing_is_written_through_it(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "data"
    outside.mkdir()
    store = FileStore(root, RULES)
    (root / "files").mkdir(parents=True)
    (root / "files" / BUCKET).symlink_to(outside)
    for call in (keep(store, b"x"), content_of(store), asyncio.to_thread(store.list, ANN, f"files/{BUCKET}/")):
        with pytest.raises(PermissionError):
            await call
    assert list(outside.iterdir()) == []


@pytest.mark.fault("file: another user's file, in a part of a message that its type says holds none")
async def test_the_store_itself_gives_a_file_to_nobody_but_those_who_may_have_it(tmp_path: Path) -> None:
    store, folder = FileStore(tmp_path, RULES), f"files/{BUCKET}/"
    await keep(store, b"secret")
    part = {"type": "image_url", "image_url": {"url": URL}}

    calls: list[Callable[[Principal], object]] = [
        lambda caller: store.keep(caller, URL, io.BytesIO(b"new"), "text/plain", "bob", lambda _: None),
        lambda caller: store.delete(caller, URL, lambda _: None),
        lambda caller: store.open(caller, URL),
        lambda caller: store.read(caller, URL),
        lambda caller: store.list(caller, folder),
    ]
    for call in calls:
        with pytest.raises(Refusal) as refused:
            await asyncio.to_thread(call, BOB)
        assert refused.value.status == 403
    with pytest.raises(Refusal, match="access"):
        await plain_request({"messages": [{"role": "user", "content": [part]}]}, store, BOB)
    content = [part, part | {"type": "text"}]
    kept = await plain_request({"messages": [{"role": "user", "content": content}]}, store, ANN)
    [image, text] = kept["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:text/plain;base64,")
    assert text == part | {"type": "text"}, "a part is what its type says"
    assert await content_of(store) == b"secret"


@pytest.mark.fault("file: an upload over the limit")
@pytest.mark.parametrize("chunked", [False, True])
async def test_13_21_an_upload_over_the_limit_is_a_413_and_leaves_nothing(tmp_path: Path, chunked: bool) -> None:
    async with caller_of(tmp_path, max_upload=1500) as files:
        assert (await files.put("a", b"x" * 1000)).status == 200
        before = data_files(tmp_path / "files")
        head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n'
        body = head + b"x" * 1501 + b"\r\n--b--\r\n"
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = await files.call("PUT", files.file("a"), data=body, headers=headers, chunked=chunked or None)
        assert (answer.status, answer.text) == (413, "Request body is too large")
        assert (await files.get("a")).body == b"x" * 1000
        assert data_files(tmp_path / "files") == before


async def test_13_13_an_interrupted_upload_leaves_nothing(tmp_path: Path) -> None:
    async with caller_of(tmp_path) as files, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(files.base_url.rpartition(":")[2]))
        head = f"PUT {files.file('a')} HTTP/1.1\r\nHost: core\r\nApi-Key: ann\r\nContent-Length: 9999999\r\n"
        part = '--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + "x" * 3_000_000
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n{part}".encode())
        await writer.drain()
        writer.close()
        await reader.read()
        assert (await files.get("a")).status == 404
        assert data_files(tmp_path / "files") == []
