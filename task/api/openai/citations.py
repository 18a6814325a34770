"""What an answer carries beside its text, as the annotations of the Responses API that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from task.api.openai.files import file_id_of


def citations(attachments: Sequence[Mapping[str, str]], text: str) -> list[dict[str, Any]]:
    """A citation for each attachment that is a file at `/v1/files` or has an address; others have no kind of their own.

    Positions are those of the address in the text, or the text's end.
    """
    places = [(item, item.get("url") or item.get("reference_url") or "") for item in attachments]
    files = [place.partition("#")[0] for _, place in places if place.startswith("files/")]
    pages = [(item.get("title"), place) for item, place in places if place.startswith(("http://", "https://"))]
    return [
        *(_file(url, number) for number, url in enumerate(files)),
        *(_page(title or url, url, text) for title, url in pages),
    ]


def _file(url: str, number: int) -> dict[str, Any]:
    name = unquote(url.rpartition("/")[2])
    return {"type": "file_citation", "file_id": file_id_of(url), "filename": name, "index": number}


def _page(title: str, url: str, text: str) -> dict[str, Any]:
    start, _, rest = text.partition(url)
    end = len(text) - len(rest)
    return {"type": "url_citation", "url": url, "title": title, "start_index": len(start), "end_index": end}
