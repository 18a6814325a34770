"""Conditional requests, row by row."""

from __future__ import annotations

from tests.support.core_files import CoreFiles

OTHER = "d41d8cd98f00b204e9800998ecf8427e"


async def test_13_14_if_match_with_another_etag_stops_every_call(files: CoreFiles) -> None:
    etag = (await files.put("a", b"one")).etag
    answers = [
        await files.put("a", b"two", if_match=OTHER),
        await files.get("a", if_match=OTHER),
        await files.delete("a", if_match=f'"{OTHER}"'),
    ]
    expected = (412, f"If-match condition is failed for etag: {etag}")
    assert [(answer.status, answer.text) for answer in answers] == [expected] * 3
    assert (await files.get("a")).body == b"one"


async def test_13_14_if_match_with_the_etag_lets_every_call_pass(files: CoreFiles) -> None:
    etag = (await files.put("a", b"one")).etag
    assert (await files.get("a", if_match=f'"{OTHER}", "{etag}"')).status == 200
    assert (await files.get("a", if_match="*")).status == 200
    second = await files.put("a", b"two", if_match=f'"{etag}"')
    assert second.status == 200
    assert (await files.delete("a", if_match=second.etag)).status == 200


async def test_13_14_if_none_match_star_only_creates(files: CoreFiles) -> None:
    assert (await files.put("a", b"one", if_none_match="*")).status == 200
    again, deleted = await files.put("a", b"two", if_none_match="*"), await files.delete("a", if_none_match="*")
    assert (again.status, again.text) == (deleted.status, deleted.text) == (412, "Resource already exists")
    got = await files.get("a", if_none_match="*")
    assert (got.status, got.body) == (304, b"")
    assert (await files.get("a")).body == b"one"


async def test_13_14_if_none_match_with_the_etag_is_not_modified(files: CoreFiles) -> None:
    etag = (await files.put("a", b"one")).etag
    got = await files.get("a", if_none_match=f'"{etag}"')
    assert (got.status, got.etag, got.body) == (304, etag, b"")
    assert (await files.put("a", b"two", if_none_match=etag)).status == 412
    assert (await files.delete("a", if_none_match=etag)).status == 412
    assert (await files.get("a", if_none_match=OTHER)).status == 200
    assert (await files.put("a", b"two", if_none_match=OTHER)).status == 200


async def test_13_14_conditions_do_not_apply_to_a_missing_file(files: CoreFiles) -> None:
    assert (await files.get("a", if_match=OTHER)).status == 404
    assert (await files.delete("a", if_match=OTHER)).status == 404
    assert (await files.get("a", if_none_match="*")).status == 404
    assert (await files.put("a", if_match=OTHER)).status == 200
    assert (await files.put("b", if_none_match="*")).status == 200
