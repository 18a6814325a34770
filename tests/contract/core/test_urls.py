"""Which file a URL names, and which URLs name none."""

from __future__ import annotations

import pytest

from task.local.core.access import parse
from task.local.core.responses import Refusal

CANONICAL = {  # each spelling, and the one of its name; 13.9, 13.13
    "files/b1/a.csv": None,
    "files/b1/dir/sub/a.csv": None,
    "files/b1/dir/": None,
    "files/b1/": None,
    "files/public/a.csv": None,
    "files/b1/a%20b+c%25d%23e.csv": None,
    "files/b1/-._~!$'()*,;&=@:+": None,
    "metadata/files/b1/dir/": "files/b1/dir/",
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


def test_a_parsed_url_knows_its_decoded_parts() -> None:
    parsed = parse("files/b1/my%20dir/sub/100%25.csv")
    assert (parsed.bucket, parsed.name, parsed.path) == ("b1", "100%.csv", "my dir/sub/100%.csv")
    root = parse("files/b1/")
    assert (root.name, root.is_folder, root.path) == (None, True, "")
