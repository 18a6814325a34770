"""Move and copy over HTTP."""

from __future__ import annotations

import pytest

from tests.support.core_files import CoreFiles


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


async def test_13_15_a_copy_keeps_the_original_and_survives_its_deletion(files: CoreFiles) -> None:
    await files.put("a", b"one")
    assert (await files.move("a", "b", call="copy")).status == 200
    await files.put("a", b"two")
    assert (await files.get("b")).body == b"one"
    await files.delete("a")
    assert (await files.get("b")).body == b"one"


async def test_13_15_what_cannot_be_moved_is_refused(files: CoreFiles) -> None:
    await files.put("dir/a")
    missing = await files.move("nothing", "b")
    assert (missing.status, missing.text) == (404, f"Not found: {files.url('nothing')}")
    for source, destination in (
        ("dir/", "dir2/"),
        ("dir/a", "dir2/"),
        ("dir/a", "dir/a"),
        ("dir/a", "b."),
        ("x y", "b"),
    ):
        assert (await files.move(source, destination, overwrite=True)).status == 400
    assert (await files.get("dir/a")).status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"sourceUrl": 1}', b'{"sourceUrl": "files/x/y"}'])
async def test_13_15_a_move_without_its_two_urls_is_a_400(files: CoreFiles, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    assert (await files.call("POST", "/v1/ops/resource/move", data=body, headers=headers)).status == 400


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
