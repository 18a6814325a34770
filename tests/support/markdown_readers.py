"""The addresses that Markdown readers would load or follow in a text."""

import html
import re

from markdown_it import MarkdownIt

READERS = (
    MarkdownIt("commonmark", {"html": True}),
    MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]),
)
_ABSOLUTE = re.compile(r"([a-z][a-z0-9+.-]*:|[/\\]{2})", re.IGNORECASE)
_LIVE_TAG = re.compile(r"<[a-zA-Z][^>]*(?:(?<!;)//|\\\\)evil\.example[^>]*>")
_LINKED_TEXT = re.compile(r"(?:https?://|(?<![a-zA-Z0-9])www\.)evil\S*")


def leads_to_evil(text: str) -> list[str]:
    """The addresses at evil.example that a program would load or offer as a link, were the text shown as Markdown."""
    found: list[str] = []
    for reader in READERS:
        for block in reader.parse(text):
            for token in (block, *(block.children or ())):
                urls = [str(token.attrs.get(name, "")) for name in ("src", "href")]
                found += [url for url in urls if _ABSOLUTE.match(url) and "evil.example" in url]
                if token.type in ("html_block", "html_inline"):
                    raw = re.sub(r"<!--.*?(-->|$)|<https", "", token.content.replace("&lt;", ""), flags=re.DOTALL)
                    found += _LIVE_TAG.findall(html.unescape(raw))
                if token.type == "text":
                    found += _LINKED_TEXT.findall(token.content)
    return found
