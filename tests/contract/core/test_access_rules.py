"""Who may read and write what, row by row of Core's table of rights."""

import pytest

from task.local.core.access import Access, AccessRules, PerRequestKey, Principal, parse
from task.local.core.responses import Refusal

RULES = AccessRules(b"secret")
USER = Principal("Keys/project/", ("default",), "project")
U, OTHER, APP = RULES.id_of("Keys/project/"), RULES.id_of("Users/ann/"), RULES.id_of("Keys/agent/")
FILE = f"files/{U}/dir/a%20b.csv"
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
    # 13.11: what a callee returned is readable and writable
    (called("agent", {MADE: "READ_WRITE"}), MADE, "READ_WRITE"),
    (called("agent", {MADE: "READ_WRITE", f"files/{U}/appdata/painter/": "READ"}), MADE, "READ_WRITE"),
    (AGENT, MADE, None),
]


@pytest.mark.parametrize(("caller", "url", "access"), ROWS)
def test_13_10_a_caller_may_do_what_the_table_says(caller: Principal, url: str, access: Access | None) -> None:
    assert RULES.granted(caller, parse(url)) == access


CANONICAL = {  # each spelling, and the one of its name; 13.9, 13.13
    "files/b1/a.csv": None,
    "files/b1/dir/sub/a.csv": None,
    "files/b1/dir/": None,
    "files/b1/": None,
    "files/public/a.csv": None,
    "files/b1/a%20b+c%25d%23e.csv": None,
    "files/b1/-._~!$'()*,;&=@:+": None,
    "files/b1/%61.csv": "files/b1/a.csv",
    "files/b1/a%2db": "files/b1/a-b",
    "files/b1/%d0%be": "files/b1/%D0%BE",
    "files/b1/отчёт": "files/b1/%D0%BE%D1%82%D1%87%D1%91%D1%82",
    "files/b1/a%2Bb": "files/b1/a+b",
}


@pytest.mark.parametrize(("url", "canonical"), CANONICAL.items())
def test_13_9_two_spellings_of_one_name_have_one_canonical_form(url: str, canonical: str | None) -> None:
    assert parse(url).url == (canonical or url)


@pytest.mark.parametrize(
    "url",
    [
        *("files//x", "/files/b1/x", "v1/files/b1/x", "http://host/v1/files/b1/x", "files/b1", "files/b-1/x"),
        *("files/b1//x", "files/b1/a//b", "files/b1/a%2Fb", "files/b1/a%2fb", "files/b1/%7Bid%7D", "files/b1/{id}"),
        *("files/b1/a%00b", "files/b1/a%0Ab", "files/b1/a%1Fb", "files/b1/../b2/x", "files/b1/%2e%2e/x"),
        *("files/b1/%2E%2E%2Fx", "files/b1/./x", "files/b1/a b", "files/b1/a?x=1", "files/b1/a#y", "files/b1/a%"),
        *("files/b1/a%zz", "files/b1/a%ff", "files/b1/a\\b", "metadata/files/b1/a.csv", "people/b1/x", "", ".."),
    ],
)
def test_13_13_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(Refusal, match=r"path|bucket|type|folder") as refused:
        parse(url)
    assert refused.value.status == 400


def test_13_13_a_path_of_900_bytes_is_the_longest() -> None:
    assert parse(f"files/b1/{'a' * 900}").path == "a" * 900
    assert len(parse("files/b1/" + "%D1%8F" * 450).path.encode()) == 900
    for too_long in ("a" * 901, "%D1%8F" * 451, "a/" * 451):
        with pytest.raises(Refusal, match="900"):
            parse(f"files/b1/{too_long}")
