"""A reader process: `python -m task.documents.worker MEMORY OUTPUT`, files in, text out.

It runs under limits, so a file that takes too much time or memory ends nothing but its reader. A request and its answer
are a length and that many bytes: the file's name, content type and seconds in a line of JSON, then the file; a packed
document, or FAILURE and in JSON the error's kind and its text.
"""

import gc
import json
import os
import resource
import select
import struct
import sys
import traceback
from functools import partial
from importlib import import_module

from task.documents.extract import extract
from task.documents.model import packed
from task.errors import ToolError

LENGTH = struct.Struct("!Q")
FAILURE = b"!"
_OUT_OF_MEMORY = FAILURE + b'["MemoryError", ""]'
# New objects before a garbage collection. A table's rows are many small lists: with Python's own 700, passes over all
# of them took a fifth of the time.
YOUNG_OBJECTS = 50_000
# What readers import, and a page of PDF with a table, for which others are loaded.
MODULES = ("task.documents.html", "trafilatura.settings", "task.documents.office_readers", "task.documents.xlsx")
SAMPLE = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Count 1/Kids[3 0 R]>>endobj 3 0 obj"
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>endobj 4 0 obj<<"
    b"/Length 117>>stream\nBT /F 8 Tf 10 10 Td (x) Tj 40 0 Td (y) Tj 0 20 Td (z) Tj ET 5 5 40 20 re 5 25 40 20 re 45 5 "
    b"40 20 re 45 25 40 20 re S\nendstream endobj 5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Courier>>endobj trailer"
    b"<</Root 1 0 R>>"
)
DOCUMENTS = 50  # that a process reads; libraries may keep some of the memory


def main(memory: int, output: int) -> None:
    """Answer requests until there are no more, until memory runs out, or the process has read enough."""
    limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 256}
    if sys.platform != "darwin":  # macOS refuses it
        limits[resource.RLIMIT_AS] = memory
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    gc.set_threshold(YOUNG_OBJECTS)
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    # The first file would wait for this, unless it has come.
    for load in (*(partial(import_module, name) for name in MODULES), partial(extract, "a.pdf", SAMPLE)):
        if not select.select([incoming], [], [], 0)[0]:
            load()
    for _ in range(DOCUMENTS):
        if len(header := incoming.read(LENGTH.size)) < LENGTH.size:
            return
        answer = _answer(incoming.read(*LENGTH.unpack(header)), output)
        outgoing.writelines((LENGTH.pack(len(answer)), answer))
        outgoing.flush()
        if answer == _OUT_OF_MEMORY:  # the memory that is left is fragmented: the next file gets a new process
            return


def _answer(request: bytes, most: int) -> bytes:
    head, _, content = request.partition(b"\n")
    name, content_type, seconds = json.loads(head)
    # A second line behind the server's clock: the process ends when it computes for this much longer.
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, hard))
    try:
        answer = packed(extract(name, content, content_type))
        if len(answer) > most:
            raise ToolError(f"{name!r} holds more text than can be read. Ask the user for a part of it.")
        return answer
    except ToolError as error:
        failure = type(error).__name__, str(error)
    except MemoryError:
        return _OUT_OF_MEMORY
    except Exception as error:
        # Where it happened, not its message, which may quote the document.
        last = traceback.extract_tb(error.__traceback__)[-1]
        failure = "unexpected", f"{type(error).__name__} in {last.filename}:{last.lineno}"
    return FAILURE + json.dumps(failure).encode()


if __name__ == "__main__":
    memory, output = sys.argv[1:]
    main(int(memory), int(output))
