"""What the documentation's site does with links out of docs/: root pages join the site, source files become text."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
JOINING = ("CONTRIBUTING.md", "CHANGELOG.md")
# A link from a page in docs/ (`../`) or in a folder of it (`../../`) to a file of the repository.
OUTWARD = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?:\.\./)+((?!images/)[\w./-]*\w)(#[\w-]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages, whose links to docs/ then lead to siblings."""
    for name in JOINING:
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https?:|#|docs/)([\w./-]+)\)", r"](../\1)", text).replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links out of docs/."""
    return OUTWARD.sub(_inward, markdown)


def _inward(link: re.Match[str]) -> str:
    text, target, anchor = link[1], link[2], link[3] or ""
    if target in JOINING:
        return f"[{text}]({target}{anchor})"
    in_docs = (ROOT / "docs" / target).is_file() and not (ROOT / target).is_file()
    return link[0] if in_docs else text
