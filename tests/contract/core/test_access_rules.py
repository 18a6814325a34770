"""Who may read and write what, row by row of Core's table of rights."""

from __future__ import annotations

import pytest

from task.local.core.access import Access, AccessRules, PerRequestKey, Principal, parse

RULES = AccessRules(b"secret")
USER = Principal("Keys/project/", ("default",), "project")
U, OTHER, APP = RULES.id_of("Keys/project/"), RULES.id_of("Users/ann/"), RULES.id_of("Keys/agent/")
FILE, FOLDER = f"files/{U}/dir/a%20b.csv", f"files/{U}/dir/"
MADE = f"files/{U}/appdata/painter/cat.png"


def called(deployment: str, attached: dict[str, Access] | None = None) -> Principal:
    """The user's identity as `deployment` has it while it answers the user."""
    key = PerRequestKey("k" * 32, USER, deployment, 1e9, attached or {})
    return Principal(USER.owner, USER.roles, USER.project, key=key)


AGENT = called("agent")
STORED = called("applications/b/x y")
ROWS: list[tuple[Principal, str, Access | None]] = [
    # 13.10: a user has their own bucket and reads the public one
    (USER, f"files/{U}/a.csv", "READ_WRITE"),
    (USER, f"files/{U}/", "READ_WRITE"),
    (USER, f"files/{U}/appdata/agent/x.md", "READ_WRITE"),
    (USER, "files/public/a.csv", "READ"),
    (USER, f"files/{OTHER}/a.csv", None),
    (USER, f"files/{APP}/a.csv", None),
    (USER, "files/nobody/a.csv", None),
    # 13.10: an application has its bucket and its own appdata, by whole names
    (AGENT, f"files/{APP}/cache/x.bin", "READ_WRITE"),
    (AGENT, f"files/{U}/appdata/agent/x.md", "READ_WRITE"),
    (AGENT, f"files/{U}/appdata/agent/", "READ_WRITE"),
    (AGENT, f"metadata/files/{U}/appdata/agent/", "READ_WRITE"),
    (AGENT, f"files/{U}/appdata/agent/deep/x.md", "READ_WRITE"),
    (AGENT, "files/public/a.csv", "READ"),
    (AGENT, f"files/{U}/appdata/agent-2/x.md", None),
    (AGENT, f"files/{U}/appdata/age/x.md", None),
    (AGENT, f"files/{U}/appdata/agent", None),
    (AGENT, f"files/{U}/appdata/", None),
    (AGENT, f"files/{U}/a.csv", None),
    (AGENT, f"files/{U}/", None),
    (AGENT, f"files/{OTHER}/appdata/agent/x.md", None),
    (STORED, f"files/{U}/appdata/applications/b/x%20y/f.txt", "READ_WRITE"),
    # 13.10: an attached file is readable and its neighbours are not
    (called("agent", {FILE: "READ"}), FILE, "READ"),
    (called("agent", {FILE: "READ"}), f"files/{U}/dir/%61%20b.csv", "READ"),
    *(
        (called("agent", {FILE: "READ"}), f"files/{U}/{other}", None)
        for other in ("dir/a%20b.csv2", "dir/a", "dir/", "dir/a%20b.csv/x", "a%20b.csv")
    ),
    # 13.9: an attached folder grants access to its contents only
    *((called("agent", {FOLDER: "READ"}), f"{FOLDER}{path}", "READ") for path in ("a.csv", "sub/a.csv", "")),
    *((called("agent", {FOLDER: "READ"}), f"files/{U}/{path}", None) for path in ("dir2/a.csv", "dir")),
    # 13.11: what a callee returned is readable and writable
    (called("agent", {MADE: "READ_WRITE"}), MADE, "READ_WRITE"),
    (called("agent", {MADE: "READ_WRITE", f"files/{U}/appdata/painter/": "READ"}), MADE, "READ_WRITE"),
    (AGENT, MADE, None),
]


@pytest.mark.parametrize(("caller", "url", "access"), ROWS)
def test_13_10_a_caller_may_do_what_the_table_says(caller: Principal, url: str, access: Access | None) -> None:
    assert RULES.granted(caller, parse(url)) == access


def test_13_12_the_appdata_folder_is_in_the_users_bucket_and_names_the_application() -> None:
    assert RULES.appdata_of(USER.owner, "my agent") == f"{U}/appdata/my%20agent"
    assert RULES.appdata_of(USER.owner, "applications/b/x y") == f"{U}/appdata/applications/b/x%20y"
