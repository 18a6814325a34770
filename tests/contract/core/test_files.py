"""Files over HTTP: upload, download, delete, move and copy, conditions, and the names that files may have."""

import hashlib

import pytest
from aiohttp import FormData

from tests.support.core import RunningCore
from tests.support.core_files import CoreFiles, new_home
from tests.support.core_peers import dialling
from tests.support.replies import Reply

ETAG = hashlib.md5(b"one").hexdigest()
OTHER = hashlib.md5(b"").hexdigest()
NAMES = {
    "my%20file.csv": "my file.csv",
    "a+b%23.csv": "a+b#.csv",
    "%2525.csv": "%25.csv",
    "%D0%BE%F0%9F%98%80.csv": "о😀.csv",
    "%5Bwhat%3F%5D.csv": "[what?].csv",
}
BAD_PATHS = ("a%0A.csv", "a%2Fb.csv", "dir/../../x.csv", "%2E%2E%2Fx.csv", "a" * 901)
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
NO_FORM = "Request must have a valid content-type header to decode a multipart request"


async def called(files: CoreFiles, method: str, path: str, **headers: str) -> Reply:
    """The answer to PUT (with the content `two`), GET or DELETE."""
    if method == "PUT":
        return await files.put(path, b"two", **headers)
    return await (files.get if method == "GET" else files.delete)(path, **headers)


@pytest.mark.parametrize(("encoded", "name"), NAMES.items())
async def test_13_13_names_with_space_plus_percent_and_emoji_round_trip(
    files: CoreFiles, encoded: str, name: str
) -> None:
    stored = (await files.put(encoded, name.encode())).json
    assert (stored["url"], stored["name"]) == (files.url(encoded), name)
    assert (await files.get(encoded)).body == name.encode()
    assert (await files.metadata("")).json["items"][0]["url"] == stored["url"]


async def test_13_13_an_upload_answers_with_the_item_and_its_etag(files: CoreFiles) -> None:
    answer = await files.put("dir/sub/a.csv", b"Date,Sales\n", type="text/csv")
    etag = hashlib.md5(b"Date,Sales\n").hexdigest()
    item = answer.json
    assert (answer.etag, bool(item.pop("author"))) == (etag, True)
    assert item.pop("createdAt") == item.pop("updatedAt") > 1_700_000_000_000
    assert item == {
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


async def test_13_13_a_download_has_type_length_and_etag_and_no_ranges(files: CoreFiles) -> None:
    await files.put("a.csv", b"1,2\n", type="text/csv")
    for answer in (await files.get("a.csv"), await files.get("a.csv", range="bytes=2-4")):
        assert (answer.status, answer.body, answer.etag) == (200, b"1,2\n", hashlib.md5(b"1,2\n").hexdigest())
        assert (answer.headers["Content-Type"], answer.headers["Content-Length"]) == ("text/csv", "4")


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
    answer = await files.call("PUT", files.file(name), data=body.encode(errors="surrogateescape"), headers=FORM)
    assert answer.json["contentType"] == stored
    assert (await files.get(name)).headers["Content-Type"] == stored


@pytest.mark.fault("file: path tricks in a file's address")
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
async def test_13_13_a_bad_path_is_a_400(files: CoreFiles, method: str) -> None:
    for path in BAD_PATHS:
        answer = await called(files, method, path)
        assert answer.status == 400, path
        assert "Invalid path provided" in answer.text or "900" in answer.text


async def test_13_13_an_upload_without_a_usable_file_is_refused(files: CoreFiles) -> None:
    two_files = FormData()
    for name in ("a", "b"):
        two_files.add_field(name, b"x", filename=name)
    for body, headers in (
        (b"content", {"Content-Type": "text/plain"}),
        (b"", FORM),
        (b"no boundary in here", FORM),
        (b"--b\r\nContent-Dispo", FORM),
        (b'--b\r\nContent-Disposition: form-data; name="x"', FORM),
        (b"x", {"Content-Type": "multipart/form-data"}),
        (FormData({"comment": "no file"}, default_to_multipart=True), {}),
        (two_files, {}),
    ):
        answer = await files.call("PUT", files.file("a.txt"), data=body, headers=headers)
        assert answer.status == 400
        assert (answer.text == NO_FORM) == (body == b"content")
    assert (await files.get("a.txt")).status == 404


async def test_13_14_folders_are_not_uploaded_downloaded_or_deleted(files: CoreFiles) -> None:
    await files.put("dir/a.txt")
    answers = {method: await called(files, method, "dir/") for method in ("PUT", "GET", "DELETE")}
    assert {method: (answer.status, answer.text) for method, answer in answers.items()} == {
        "PUT": (400, "File name is missing"),
        "GET": (400, "Can't download a folder"),
        "DELETE": (400, f"Folder not allowed: {files.url('dir/')}"),
    }


async def test_13_15_the_second_delete_is_a_404(files: CoreFiles) -> None:
    await files.put("my%20file.txt")
    first, second = await files.delete("my%20file.txt"), await files.delete("my%20file.txt")
    assert (first.status, first.body) == (200, b"")
    assert (second.status, second.text) == (404, f"Not found: {files.url('my%20file.txt')}")
    missing = await files.get("my%20file.txt")
    assert (missing.status, missing.body) == (404, b"")


NO_MATCH = f"If-match condition is failed for etag: {ETAG}"
SAME = f"If-none-match condition is failed for etag: {ETAG}"
EXISTS = "Resource already exists"
CONDITIONS: list[tuple[str, dict[str, str], dict[str, tuple[int, str | None]]]] = [
    ("another etag", {"if_match": OTHER}, dict.fromkeys(("PUT", "GET", "DELETE"), (412, NO_MATCH))),
    ("its etag", {"if_match": f'"{ETAG}"'}, dict.fromkeys(("PUT", "GET", "DELETE"), (200, None))),
    ("one of them", {"if_match": f'"{OTHER}", "{ETAG}"'}, {"GET": (200, "one")}),
    ("any", {"if_match": "*"}, {"GET": (200, "one")}),
    ("none", {"if_none_match": "*"}, {"PUT": (412, EXISTS), "DELETE": (412, EXISTS), "GET": (304, "")}),
    ("not its", {"if_none_match": f'"{ETAG}"'}, {"PUT": (412, SAME), "DELETE": (412, SAME), "GET": (304, "")}),
    ("not another", {"if_none_match": OTHER}, dict.fromkeys(("PUT", "GET", "DELETE"), (200, None))),
]


@pytest.mark.parametrize(("headers", "answers"), [row[1:] for row in CONDITIONS], ids=[row[0] for row in CONDITIONS])
async def test_13_14_conditions_apply_to_a_file_that_exists(
    files: CoreFiles, headers: dict[str, str], answers: dict[str, tuple[int, str | None]]
) -> None:
    for method, (status, text) in answers.items():
        await files.put("a", b"one")
        answer = await called(files, method, "a", **headers)
        assert (answer.status, answer.text if text is not None else None) == (status, text)
        if status == 304:
            assert answer.etag == ETAG
        if status == 412:
            assert (await files.get("a")).body == b"one"


async def test_13_15_a_moved_file_is_at_its_new_place_only(files: CoreFiles) -> None:
    stored = await files.put("a%20b.csv", b"1,2", type="text/csv")
    moved = await files.move("a%20b.csv", "dir/%D1%8F.csv")
    assert (moved.status, moved.body) == (200, b"")
    there = await files.get("dir/%D1%8F.csv")
    assert (there.body, there.headers["Content-Type"], there.etag) == (b"1,2", "text/csv", stored.etag)
    assert (await files.get("a%20b.csv")).status == 404
    assert [node["url"] for node in (await files.metadata("")).json["items"]] == [files.url("dir/")]


async def test_13_15_a_move_replaces_a_file_only_with_overwrite(files: CoreFiles) -> None:
    await files.put("new", b"new")
    await files.put("old", b"old")
    assert (await files.move("new", "old")).status == 400
    assert ((await files.get("new")).body, (await files.get("old")).body) == (b"new", b"old")
    assert (await files.move("new", "old", overwrite=True)).status == 200
    assert ((await files.get("new")).status, (await files.get("old")).body) == (404, b"new")


async def test_13_15_what_cannot_be_moved_is_refused(files: CoreFiles) -> None:
    await files.put("dir/a")
    missing = await files.move("nothing", "b")
    assert (missing.status, missing.text) == (404, f"Not found: {files.url('nothing')}")
    moves = (("dir/", "dir2/"), ("dir/a", "dir2/"), ("dir/a", "dir/a"), ("dir/a", "b."), ("x y", "b"))
    for source, destination in moves:
        assert (await files.move(source, destination, overwrite=True)).status == 400
    for body in (b"", b"[]", b"{", b'{"sourceUrl": 1}', b'{"sourceUrl": "files/x/y"}'):
        headers = {"Content-Type": "application/json"}
        assert (await files.call("POST", "/v1/ops/resource/move", data=body, headers=headers)).status == 400
    assert (await files.get("dir/a")).status == 200


@pytest.mark.parametrize("call", ["move", "copy"])
async def test_13_15_nothing_is_moved_out_of_or_into_anothers_bucket(
    files: CoreFiles, other: CoreFiles, call: str
) -> None:
    await files.put("mine", b"mine")
    await other.put("theirs", b"theirs")
    theirs = other.url("theirs")
    taken = await files.move(theirs, "stolen", call=call)
    assert (taken.status, taken.text) == (403, f"You don't have an access to: {theirs}")
    assert (await files.move("mine", theirs, overwrite=True, call=call)).status == 403
    assert ((await files.get("mine")).body, (await other.get("theirs")).body) == (b"mine", b"theirs")


TREE = ("b.txt", "a/2.txt", "a/1.txt", "a/deep/3.txt", "c%20d/4.txt", "a%21.txt")


@pytest.fixture
async def tree(files: CoreFiles) -> CoreFiles:
    for path in TREE:
        assert (await files.put(path)).status == 200
    return files


async def test_13_14_a_folder_lists_its_files_and_folders(tree: CoreFiles) -> None:
    folder = (await tree.metadata("a/")).json
    items = folder.pop("items")
    about = {"bucket": tree.bucket, "resourceType": "FILE", "nodeType": "FOLDER"}
    parent = tree.home.removesuffix("/")
    assert folder == about | {"name": "a", "parentPath": parent, "url": tree.url("a/")}
    assert [node["url"] for node in items] == [tree.url(path) for path in ("a/1.txt", "a/2.txt", "a/deep/")]
    assert items[2] == about | {"name": "deep", "parentPath": f"{parent}/a", "url": tree.url("a/deep/")}
    assert (items[0]["parentPath"], items[0]["contentLength"], "etag" in items[0]) == (f"{parent}/a", 1, False)


async def test_13_14_a_recursive_listing_has_files_only(tree: CoreFiles) -> None:
    items = (await tree.metadata("a/", "recursive=true")).json["items"]
    assert [node["url"] for node in items] == [tree.url(path) for path in ("a/1.txt", "a/2.txt", "a/deep/3.txt")]
    assert {node["nodeType"] for node in items} == {"ITEM"}


@pytest.mark.parametrize("recursive", ["true", "false"])
async def test_13_14_pages_put_together_are_the_whole_listing(tree: CoreFiles, recursive: str) -> None:
    whole = (await tree.metadata("", f"recursive={recursive}")).json
    assert "nextToken" not in whole
    paged: list[str] = []
    token = ""
    for _ in range(len(TREE) + 1):
        page = (await tree.metadata("", f"recursive={recursive}&limit=1{token}")).json
        paged += [node["url"] for node in page["items"]]
        if "nextToken" not in page:
            break
        token = f"&token={page['nextToken'].replace('%', '%25').replace(' ', '%20')}"
    assert paged == [node["url"] for node in whole["items"]]


async def test_13_14_a_bad_query_is_a_400(files: CoreFiles) -> None:
    await files.put("a")
    limits = (f"limit={limit}" for limit in ("-1", "1001", "many", "", "--1", "9" * 5000))
    for query in (*limits, "recursive=perhaps"):
        answer = await files.metadata("", query)
        assert (answer.status, answer.text.startswith("Bad query parameters")) == (400, True), query


async def test_13_18_files_are_uploaded_described_downloaded_moved_and_deleted(core: RunningCore) -> None:
    from aidial_client import ResourceNotFoundError

    async with dialling(core, core.keys[0]) as dial:
        home = f"{await dial.my_files_home()}/{new_home()}".removesuffix("/")
        item = await dial.files.upload(f"{home}/my dir/отчёт #1 100%.csv", ("x.csv", b"1,2\n", "text/csv"))
        assert (item.name, item.content_length) == ("отчёт #1 100%.csv", 4)
        assert (item.parent_path or "").endswith("/my dir")
        file = await dial.files.download(item.url)
        assert (await file.aget_content(), file.filename, file.content_type) == (
            b"1,2\n",
            "отчёт #1 100%.csv",
            "text/csv",
        )
        async with dial.files.stream_download(item.url) as stream:
            assert b"".join([chunk async for chunk in stream]) == b"1,2\n"
        about = await dial.files.get_metadata(item.url)
        assert (about.name, about.etag, about.content_type) == ("отчёт #1 100%.csv", item.etag, "text/csv")
        listing = await dial.metadata.get("files", f"{home}/", limit=10)
        assert [(node.name, node.node_type) for node in listing.items or []] == [("my dir", "FOLDER")]
        assert await dial.my_appdata_home() is None

        await dial.files.upload(f"{home}/a", b"content")
        await dial.files.move_to(f"{home}/a", f"{home}/dir/b")
        await dial.files.copy_to(f"{home}/dir/b", f"{home}/c d")
        await dial.files.delete(f"{home}/dir/b")
        with pytest.raises(ResourceNotFoundError):
            await dial.files.delete(f"{home}/dir/b")
        assert await (await dial.files.download(f"{home}/c d")).aget_content() == b"content"
