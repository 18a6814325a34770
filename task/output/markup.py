"""The parts of Markdown and HTML that can contain an address or hide one, as expressions."""

from __future__ import annotations

import re

# A piece without any of these neither begins nor ends anything that must be checked, except "www."
MARKED = re.compile(r"[\[\]<`~/:$!&\\\n\rW]").search
# Possessive quantifiers (`*+`) in all of these: no text makes a match go back. Every spot begins with a character of
# its own, so that the search skips all others.
SPOT = re.compile(
    r"[\n\r]++|!\[|\]\(|\]:(?=[ \t]*+(?:[\n\r][ \t]*+)?+(?:[<\\/&a-zA-Z]|\Z))|<(?=[a-zA-Z])|\$\$|&(?=[#a-zA-Z])"
    r"|\\?:\\?/\\?/|[wW]{1,3}\\?\."
)
SCHEME = re.compile(r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]*+\Z")
LONGEST_SCHEME = 40
UNDECIDED = re.compile(r"(?:[!\]<$&]|\\?:\\?(?:/\\?)?|\\|(?<![a-zA-Z0-9])[wW]{1,3}\\?)\Z")
UNDECIDED_CHARS = 6
DECIDING = re.compile(r"[\s<>()\[\]`~]")  # one of these completes what has been waiting for long
SHORT = 64
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")
ENTITY_SO_FAR = re.compile(r"&#?[a-zA-Z0-9]{0,31}\Z")
IMAGE_TEXT = re.compile(r"!\[((?:[^\[\]\\]++|\\.|\[(?:[^\[\]\\]++|\\.)*+\])*+)\]", re.DOTALL)
_GAP = r"[ \t]*+(?:(?:\r\n|[\n\r])[ \t]*+)?+"
_PART = r"(?:[^\x00-\x20\x7f()\\]++|\\.)*+"
DESTINATION = re.compile(
    rf"\({_GAP}(<[^<>\n\r\\]*+>|(?!<){_PART}(?:\({_PART}\){_PART})*+)"
    rf"(?:(?=[ \t\n\r]){_GAP}(?:\"[^\"\n\r\\]*+\"|'[^'\n\r\\]*+')?+{_GAP})?+\)"
)
DESTINATION_SO_FAR = re.compile(
    rf"\({_GAP}(?:<[^<>\n\r\\]*+|(?:<[^<>\n\r\\]*+>|{_PART}(?:\({_PART}\){_PART})*+)"
    rf"(?:\({_PART}\\?+|\\|{_GAP}(?:\"[^\"\n\r\\]*+\"?+|'[^'\n\r\\]*+'?+)?+{_GAP}))"
)
_TARGET = r"\]:[ \t]*+(?:[\n\r][ \t]*+)?+(<[^<>\n]*+>|[^\s<]\S*+)"
DEFINITION, LAST_DEFINITION = re.compile(rf"{_TARGET}(?=\s)"), re.compile(rf"{_TARGET}(?=\s|\Z)")
ADDRESS_END = re.compile(r"[ \t\r\n<]|\]\(")
TRAILING = "?!.,:;*_~\"')]}|>`\u00a0\u202f"
TAG_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9-]*+)(?=[\s/>])")
AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^\x00-\x20<>]*+)>")
AUTOLINK_SO_FAR = re.compile(r"<[a-zA-Z][a-zA-Z0-9+.-]{0,31}(?::[^\x00-\x20<>]*+)?+")
TAG_SO_FAR = re.compile(
    r"<[a-zA-Z][\w-]*+(?:\s++(?:[\w:.-]++(?:\s*+=\s*+(?:\"[^\"]*+\"?+|'[^']*+'?+|[^\s\"'=<>`]*+))?+)?+)*+\s*+/?"
)
LOADING = frozenset(
    {"applet", "audio", "base", "body", "embed", "form", "frame", "iframe", "image", "img", "input", "link", "meta"}
    | {"object", "picture", "script", "source", "style", "svg", "table", "td", "th", "tr", "track", "use", "video"}
)
LABEL = re.compile(r"\[[^\[\]`<\\\n\r]*+\Z")
NO_LABEL = re.compile(r"[\[\]`<\\\n\r]")
# A text without any of these can be shown as it is, and leaves nothing open that the next piece could continue.
SUSPECT = re.compile(
    r"!\[|\]\(|\]:|:\\?/|<[a-zA-Z!/?]|&[#a-zA-Z]|[wW]{2}|\A[wW.]|[wW]\Z|\\|```|~~~|\$\$|[!\]<:&$`~]\Z|\A[`~]"
)
LINE_END = re.compile(r"\r\n|[\n\r]")
FENCE = re.compile(r"(`{3,}+|~{3,}+)([^\n\r]*+)")
LONGEST_FENCE = 100
CLOSING = re.compile(r" {0,3}+(`*+|~*+)[ \t]*+")
MAY_CLOSE = re.compile(r"[\n\r](?= {0,3}(?:[`~]|\Z))")
SPACES = re.compile(r" ++")
BEGUN = frozenset({"`", "``", "~", "~~"})
