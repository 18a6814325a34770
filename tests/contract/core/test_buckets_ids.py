"""Bucket ids: stable, opaque, and known again after a restart."""

from __future__ import annotations

from pathlib import Path

from task.local.core.access import BucketIds


def test_an_owner_has_one_opaque_id_and_another_owner_another() -> None:
    ids = BucketIds(b"secret")
    first = ids.id_of("Keys/project/")
    assert first == ids.id_of("Keys/project/") == BucketIds(b"secret").id_of("Keys/project/")
    assert first.isalnum()
    assert "project" not in first
    assert len({first, ids.id_of("Users/project/"), BucketIds(b"other").id_of("Keys/project/")}) == 3


def test_an_id_leads_back_to_its_owner_and_an_unknown_one_to_none() -> None:
    ids = BucketIds(b"secret")
    assert ids.owner_of(ids.id_of("Users/ann/")) == "Users/ann/"
    assert ids.owner_of("0" * 32) is None
    assert ids.owner_of("public") == "public/"


def test_owners_are_known_after_a_restart(tmp_path: Path) -> None:
    saved = tmp_path / "data" / "owners.jsonl"
    before = BucketIds(b"secret", saved)
    ids = [before.id_of(owner) for owner in ("Keys/project/", "Users/two\nlines/", "Users/Жанна/", "Keys/project/")]
    with saved.open("a") as file:
        file.write('"Users/cut')  # the machine stopped here
    after = BucketIds(b"secret", saved)
    assert [after.owner_of(bucket) for bucket in ids[:3]] == ["Keys/project/", "Users/two\nlines/", "Users/Жанна/"]
