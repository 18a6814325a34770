"""Metadata of files and folders: shapes and pages."""

from __future__ import annotations

import pytest

from tests.support.core_files import CoreFiles

TREE = ("b.txt", "a/2.txt", "a/1.txt", "a/deep/3.txt", "c%20d/4.txt", "a%21.txt")


@pytest.fixture
async def tree(files: CoreFiles) -> CoreFiles:
    for path in TREE:
        assert (await files.put(path)).status == 200
    return files


async def test_13_14_a_files_metadata_is_its_item(files: CoreFiles) -> None:
    uploaded = await files.put("dir/a.csv", b"1,2", type="text/csv")
    answer = await files.metadata("dir/a.csv")
    assert (answer.status, answer.json) == (200, uploaded.json)


async def test_13_14_a_folder_lists_its_files_and_folders(tree: CoreFiles) -> None:
    folder = (await tree.metadata("a/")).json
    items = folder.pop("items")
    about = {"bucket": tree.bucket, "resourceType": "FILE", "nodeType": "FOLDER"}
    parent = tree.home.removesuffix("/")
    assert folder == about | {"name": "a", "parentPath": parent, "url": tree.url("a/")}
    assert [node["url"] for node in items] == [tree.url(path) for path in ("a/1.txt", "a/2.txt", "a/deep/")]
    assert items[2] == about | {"name": "deep", "parentPath": f"{parent}/a", "url": tree.url("a/deep/")}
    assert (items[0]["parentPath"], items[0]["contentLength"], "etag" in items[0]) == (f"{parent}/a", 1, False)


async def test_13_14_the_root_has_no_name_and_lists_names_decoded_and_in_order(tree: CoreFiles) -> None:
    items = (await tree.metadata("")).json["items"]
    assert [node["name"] for node in items] == ["a!.txt", "a", "b.txt", "c d"]
    root = (await tree.metadata(f"files/{tree.bucket}/", "limit=1000")).json
    assert (root["url"], root["nodeType"]) == (f"files/{tree.bucket}/", "FOLDER")
    assert {"name", "parentPath"}.isdisjoint(root)
    folder = next(node for node in root["items"] if node["url"] == tree.url(""))
    assert (folder["name"], "parentPath" in folder) == (tree.home.removesuffix("/"), False)


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


async def test_13_14_a_missing_or_emptied_folder_is_a_404(files: CoreFiles) -> None:
    for path in ("nothing/", "nothing.txt", ""):
        answer = await files.metadata(path)
        assert (answer.status, answer.body) == (404, b"")
    await files.put("dir/a")
    await files.delete("dir/a")
    assert (await files.metadata("dir/")).status == 404


@pytest.mark.local_core
async def test_13_14_an_empty_root_is_an_empty_list(files: CoreFiles) -> None:
    root = await files.metadata(f"files/{files.bucket}/")
    assert (root.status, root.json["items"]) == (200, [])


@pytest.mark.parametrize(
    ("query", "text"),
    [
        *((f"limit={limit}", "Limit is out of allowed range: [0, 1000]") for limit in ("-1", "1001")),
        *((f"limit={limit}", "Bad query parameters") for limit in ("many", "", "--1", "9" * 5000)),
        ("recursive=perhaps", "Bad query parameters"),
    ],
)
async def test_13_14_a_bad_query_is_a_400(files: CoreFiles, query: str, text: str) -> None:
    await files.put("a")
    answer = await files.metadata("", query)
    assert (answer.status, answer.text.startswith(text)) == (400, True)


async def test_13_14_the_smallest_and_the_largest_limit_are_accepted(tree: CoreFiles) -> None:
    assert (await tree.metadata("", "limit=0")).json["items"] == []
    assert len((await tree.metadata("", "limit=1000")).json["items"]) == 4


@pytest.mark.parametrize("path", ["../", "a//b/", "%2e%2e/", "%7B%7D/"])
async def test_13_13_metadata_of_a_bad_path_is_a_400(files: CoreFiles, path: str) -> None:
    assert (await files.metadata(path)).status == 400
