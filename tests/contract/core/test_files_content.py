"""Upload, download and delete over HTTP, and the names that files may have."""

from __future__ import annotations

import hashlib

import pytest
from aiohttp import FormData

from tests.support.core_files import CoreFiles

NAMES = {
    "my%20file.csv": "my file.csv",
    "a+b.csv": "a+b.csv",
    "100%25.csv": "100%.csv",
    "c%23.csv": "c#.csv",
    "%D0%BE%D1%82%D1%87%D1%91%D1%82.csv": "отчёт.csv",
    "%F0%9F%98%80.csv": "😀.csv",
    "what%3F.csv": "what?.csv",
    "%5Bx%5D.csv": "[x].csv",
    "%2525.csv": "%25.csv",
}


@pytest.mark.parametrize(("encoded", "name"), NAMES.items())
async def test_13_13_names_with_space_plus_percent_and_emoji_round_trip(
    files: CoreFiles, encoded: str, name: str
) -> None:
    stored = (await files.put(encoded, name.encode())).json
    assert stored["url"] == files.url(encoded)
    assert stored["name"] == name
    assert (await files.get(encoded)).body == name.encode()
    assert (await files.metadata("")).json["items"][0]["url"] == stored["url"]


@pytest.mark.parametrize("field", ["file", "attachment", "x"])
async def test_13_13_the_form_fields_name_does_not_matter(files: CoreFiles, field: str) -> None:
    assert (await files.put("a.txt", b"content", field=field)).status == 200
    assert (await files.get("a.txt")).body == b"content"


async def test_13_13_an_upload_answers_with_the_item_and_its_etag(files: CoreFiles) -> None:
    answer = await files.put("dir/sub/a.csv", b"Date,Sales\n", type="text/csv")
    etag = hashlib.md5(b"Date,Sales\n").hexdigest()
    assert answer.etag == etag
    assert "etag" in answer.headers["Access-Control-Expose-Headers"].lower()
    item = answer.json
    assert item["createdAt"] == item["updatedAt"] > 1_700_000_000_000
    assert item["author"]
    assert {name: item[name] for name in item if name not in {"createdAt", "updatedAt", "author"}} == {
        "name": "a.csv",
        "parentPath": f"{files.home}dir/sub",
        "bucket": files.bucket,
        "url": f"files/{files.bucket}/{files.home}dir/sub/a.csv",
        "nodeType": "ITEM",
        "resourceType": "FILE",
        "etag": etag,
        "contentLength": 11,
        "contentType": "text/csv",
    }


async def test_13_13_a_download_has_type_length_and_etag(files: CoreFiles) -> None:
    await files.put("a.csv", b"1,2\n", type="text/csv")
    answer = await files.get("a.csv")
    assert (answer.status, answer.body) == (200, b"1,2\n")
    assert answer.headers["Content-Type"] == "text/csv"
    assert answer.headers["Content-Length"] == "4"
    assert answer.etag == hashlib.md5(b"1,2\n").hexdigest()


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("a.csv", "application/x-mine; v=1", "application/x-mine; v=1"),
        ("a.csv", None, "text/csv"),
        ("a.csv", "text/\udcff", "text/csv"),
        ("a.unheard-of", None, "application/octet-stream"),
    ],
)
async def test_13_13_the_content_type_is_the_parts_else_the_extensions(
    files: CoreFiles, name: str, given: str | None, stored: str
) -> None:
    part = f"Content-Type: {given}\r\n" if given else ""
    body = f'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n{part}\r\ncontent\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await files.call("PUT", files.file(name), data=body.encode(errors="surrogateescape"), headers=headers)
    assert answer.json["contentType"] == stored
    assert (await files.get(name)).headers["Content-Type"] == stored


async def test_13_13_an_overwrite_changes_the_etag_and_keeps_the_creation_time(files: CoreFiles) -> None:
    first, second = await files.put("a.txt", b"one"), await files.put("a.txt", b"two!")
    assert first.etag != second.etag
    assert second.json["createdAt"] == first.json["createdAt"] <= second.json["updatedAt"]
    assert (await files.get("a.txt")).body == b"two!"
    assert len((await files.metadata("")).json["items"]) == 1


async def test_13_13_an_empty_and_a_large_file_are_downloaded_completely(files: CoreFiles) -> None:
    large = bytes(range(256)) * 12_000
    await files.put("empty", b"")
    await files.put("large", large)
    assert (await files.get("empty")).body == b""
    assert (await files.get("large")).body == large


BAD_PATHS = (
    "%7Bid%7D.csv",
    "a%00.csv",
    "a%0A.csv",
    "dir//a.csv",
    "a%2Fb.csv",
    "../x.csv",
    "dir/../../x.csv",
    "%2e%2e/x.csv",
    "%2E%2E%2Fx.csv",
    "a%ff.csv",
    "a" * 901,
    "%D1%8F" * 451,
)


@pytest.mark.fault("file: path tricks in a file's address")
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_13_13_a_bad_path_is_a_400(files: CoreFiles, method: str) -> None:
    for path in BAD_PATHS:
        answer = await files.put(path) if method == "PUT" else await files.call(method, files.file(path))
        assert answer.status == 400, path
        assert "Invalid path provided" in answer.text or "900" in answer.text


@pytest.mark.parametrize("path", ["a.", "dir./a.csv", "..."])
async def test_13_13_a_new_name_or_folder_must_not_end_in_a_dot(files: CoreFiles, path: str) -> None:
    answer = await files.put(path)
    expected = "Resource name and/or parent folders must not end with .(dot)"
    assert (answer.status, answer.text) == (400, expected)


async def test_13_13_a_path_of_900_bytes_is_stored(files: CoreFiles) -> None:
    for path in ("a" * 900, "%D1%8F" * 450, "/".join(["dir"] * 225)):
        url = f"files/{files.bucket}/{path}"
        assert (await files.put(url, path.encode())).status == 200
        assert (await files.get(url)).body == path.encode()


async def test_13_13_an_upload_without_a_usable_file_is_refused(files: CoreFiles) -> None:
    target = files.file("a.txt")
    plain = await files.call("PUT", target, data=b"content", headers={"Content-Type": "text/plain"})
    expected = "Request must have a valid content-type header to decode a multipart request"
    assert (plain.status, plain.text) == (400, expected)
    for body in (
        b"",
        b"no boundary in here",
        b"--b\r\nContent-Dispo",
        b'--b\r\nContent-Disposition: form-data; name="x"',
    ):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        assert (await files.call("PUT", target, data=body, headers=headers)).status == 400
    unnamed = await files.call("PUT", target, data=b"x", headers={"Content-Type": "multipart/form-data"})
    assert unnamed.status == 400
    only_a_field = FormData({"comment": "no file"}, default_to_multipart=True)
    assert (await files.call("PUT", target, data=only_a_field)).status == 400
    two = FormData()
    for name in ("a", "b"):
        two.add_field(name, b"x", filename=name)
    assert (await files.call("PUT", target, data=two)).status == 400
    assert (await files.get("a.txt")).status == 404


async def test_13_13_a_field_beside_the_file_is_ignored(files: CoreFiles) -> None:
    form = FormData({"comment": "first"}, default_to_multipart=True)
    form.add_field("file", b"content", filename="x", content_type="text/plain")
    form.add_field("comment", "last")
    assert (await files.call("PUT", files.file("a.txt"), data=form)).status == 200
    assert (await files.get("a.txt")).body == b"content"


async def test_13_14_folders_are_not_uploaded_downloaded_or_deleted(files: CoreFiles) -> None:
    await files.put("dir/a.txt")
    put, get, delete = await files.put("dir/"), await files.get("dir/"), await files.delete("dir/")
    assert (put.status, put.text) == (400, "File name is missing")
    assert (get.status, get.text) == (400, "Can't download a folder")
    assert (delete.status, delete.text) == (400, f"Folder not allowed: {files.url('dir/')}")


async def test_13_15_the_second_delete_is_a_404(files: CoreFiles) -> None:
    await files.put("my%20file.txt")
    first, second = await files.delete("my%20file.txt"), await files.delete("my%20file.txt")
    assert (first.status, first.body) == (200, b"")
    assert (second.status, second.text) == (404, f"Not found: {files.url('my%20file.txt')}")
    missing = await files.get("my%20file.txt")
    assert (missing.status, missing.body) == (404, b"")


async def test_13_14_a_range_is_not_served(files: CoreFiles) -> None:
    await files.put("a.txt", b"0123456789")
    answer = await files.get("a.txt", range="bytes=2-4")
    assert (answer.status, answer.body) == (200, b"0123456789")
