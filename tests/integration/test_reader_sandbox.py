"""Readers of documents and web pages are sandboxed: in each tier they read, but reach neither files nor the network."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mcp_servers.duckduckgo import reading
from task.documents import pool
from task.documents.model import unpacked
from task.documents.worker import LENGTH
from tests.support import pdfs

COMMANDS = [pool._command(pool.ReaderLimits()), reading._command(reading.ReadingLimits())]
DOCUMENTS, PAGES = COMMANDS
TIERS = ["landlock", pytest.param("bubblewrap", marks=pytest.mark.system)]
REACH = """
import os, socket, sys
def tried(what):
    try:
        what()
        return "done"
    except OSError:
        return "refused"
secret, port = sys.argv[1], int(sys.argv[2])
tries = (
    lambda: open(secret).read(), lambda: open(secret, "w"), lambda: os.listdir(os.path.dirname(secret)),
    lambda: open("/etc/shadow").read(), lambda: socket.create_connection(("127.0.0.1", port), 1),
)
print(*map(tried, tries))
"""


def confined(command: Sequence[str], tier: str, *argv: str) -> list[str]:
    """A reader's own command line in the tier, for another program if one is given."""
    command = list(command)
    place, end = command.index("--policy") + 1, command.index("--")
    command[place] = json.dumps({**json.loads(command[place]), "tier": tier, "allow_unsafe": False})
    return [*command[: end + 1], *(argv or command[end + 1 :])]


@pytest.mark.parametrize("tier", TIERS)
def test_a_reader_reads_in_every_tier(tier: str) -> None:
    request = b'["a.pdf", null, 30]\n' + pdfs.text_pdf(1)
    request = LENGTH.pack(len(request)) + request
    done = subprocess.run(confined(DOCUMENTS, tier), input=request, capture_output=True, timeout=30, check=False)
    assert "1 page" in unpacked(done.stdout[LENGTH.size :]).notes, done.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_a_reader_of_pages_reads_in_every_tier(tier: str) -> None:
    page = b'["application/pdf", null]\n' + pdfs.text_pdf(1)
    done = subprocess.run(confined(PAGES, tier), input=page, capture_output=True, timeout=30, check=False)
    assert "page 1" in json.loads(done.stdout)[1].lower(), done.stderr


@pytest.mark.fault("sandbox: a document that takes over its reader")
@pytest.mark.fault("web search: a page that takes over its reader")
@pytest.mark.parametrize("command", COMMANDS, ids=["documents", "pages"])
@pytest.mark.parametrize("tier", TIERS)
def test_a_reader_reaches_nothing_outside(command: Sequence[str], tier: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        program = [sys.executable, "-I", "-c", REACH, str(secret), port]
        done = subprocess.run(
            confined(command, tier, *program), capture_output=True, text=True, timeout=30, check=False
        )
    assert done.stdout.split() == ["refused"] * 5, done.stderr
    assert secret.read_text() == "secret"
