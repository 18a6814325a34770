"""Who may read and write what, row by row of Core's table of rights."""

from __future__ import annotations

import pytest

from task.local.core.access import Access, AccessRules, BucketIds, PerRequestKey, Principal

IDS = BucketIds(b"secret")
RULES = AccessRules(IDS)
USER = Principal("Keys/project/", ("default",), "project")
U, OTHER, APP = IDS.id_of("Keys/project/"), IDS.id_of("Users/ann/"), IDS.id_of("Keys/agent/")


def called(deployment: str, attached: dict[str, Access] | None = None) -> Principal:
    """The user's identity as `deployment` has it while it answers the user."""
    key = PerRequestKey("k" * 32, USER, deployment, (deployment,), 1e9, attached=attached or {})
    return Principal(USER.owner, USER.roles, USER.project, key=key)


def rights(identity: Principal, url: str) -> str:
    read, write = RULES.may_read(identity, url), RULES.may_write(identity, url)
    return {(True, True): "read write", (True, False): "read", (False, False): "none"}[read, write]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"files/{U}/a.csv", "read write"),
        (f"files/{U}/", "read write"),
        (f"files/{U}/appdata/agent/x.md", "read write"),
        ("files/public/a.csv", "read"),
        (f"files/{OTHER}/a.csv", "none"),
        (f"files/{APP}/a.csv", "none"),
        ("files/nobody/a.csv", "none"),
    ],
)
def test_13_10_a_user_has_their_own_bucket_and_reads_the_public_one(url: str, expected: str) -> None:
    assert rights(USER, url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"files/{APP}/cache/x.bin", "read write"),
        (f"files/{U}/appdata/agent/x.md", "read write"),
        (f"files/{U}/appdata/agent/", "read write"),
        (f"metadata/files/{U}/appdata/agent/", "read write"),
        (f"files/{U}/appdata/agent/deep/x.md", "read write"),
        ("files/public/a.csv", "read"),
        (f"files/{U}/appdata/agent-2/x.md", "none"),
        (f"files/{U}/appdata/age/x.md", "none"),
        (f"files/{U}/appdata/agent", "none"),
        (f"files/{U}/appdata/", "none"),
        (f"files/{U}/a.csv", "none"),
        (f"files/{U}/", "none"),
        (f"files/{OTHER}/appdata/agent/x.md", "none"),
    ],
)
def test_13_10_an_application_has_its_bucket_and_its_own_appdata_by_whole_names(url: str, expected: str) -> None:
    assert rights(called("agent"), url) == expected


def test_13_10_an_attached_file_is_readable_and_its_neighbours_are_not() -> None:
    agent = called("agent", {f"files/{U}/dir/a%20b.csv": "READ"})
    assert rights(agent, f"files/{U}/dir/a%20b.csv") == "read"
    assert rights(agent, f"files/{U}/dir/%61%20b.csv") == "read"
    for other in ("dir/a%20b.csv2", "dir/a", "dir/", "dir/a%20b.csv/x", "a%20b.csv"):
        assert rights(agent, f"files/{U}/{other}") == "none"


def test_13_9_an_attached_folder_grants_access_to_its_contents_only() -> None:
    agent = called("agent", {f"files/{U}/dir/": "READ"})
    assert rights(agent, f"files/{U}/dir/a.csv") == "read"
    assert rights(agent, f"files/{U}/dir/sub/a.csv") == "read"
    assert rights(agent, f"files/{U}/dir/") == "read"
    assert rights(agent, f"files/{U}/dir2/a.csv") == "none"
    assert rights(agent, f"files/{U}/dir") == "none"


def test_13_11_what_a_callee_returned_is_readable_and_writable() -> None:
    url = f"files/{U}/appdata/painter/cat.png"
    assert rights(called("agent", {url: "READ_WRITE"}), url) == "read write"
    assert rights(called("agent", {url: "READ_WRITE", f"files/{U}/appdata/painter/": "READ"}), url) == "read write"
    assert rights(called("agent"), url) == "none"


def test_13_12_the_appdata_folder_is_in_the_users_bucket_and_names_the_application() -> None:
    assert RULES.appdata_of(called("my agent")) == f"{U}/appdata/my%20agent"
    stored = called("applications/b/x y")
    assert RULES.appdata_of(stored) == f"{U}/appdata/applications/b/x%20y"
    assert rights(stored, f"files/{U}/appdata/applications/b/x%20y/f.txt") == "read write"
    with pytest.raises(ValueError, match="application"):
        RULES.appdata_of(USER)
