"""A program of the product with a watch on its event loop: which callbacks use much of the loop's own CPU time, where.

`python -m tests.support.loop_watch REPORT SECONDS PROGRAM …` runs `python -m PROGRAM …`, and adds a line to REPORT
for each callback that uses more.
"""

import asyncio
import runpy
import sys
import threading
from collections import Counter
from pathlib import Path
from time import sleep, thread_time
from types import FrameType, ModuleType

EVERY = 0.003  # seconds between two looks at where a callback is
OURS = ("/task/", "/mcp_servers/")


def watched(report: Path, most: float) -> None:
    """From now on, write down what holds any event loop of this process for longer."""
    places: Counter[str] = Counter()
    running: list[int] = []  # the thread whose callback runs
    original = asyncio.Handle._run

    def look() -> None:
        while True:
            sleep(EVERY)
            for thread in running:
                frame = sys._current_frames().get(thread)
                if frame is not None:
                    places[_place(frame)] += 1

    def run(handle: asyncio.Handle) -> None:
        places.clear()
        running.append(threading.get_ident())
        started = thread_time()
        try:
            original(handle)
        finally:
            used = thread_time() - started
            running.clear()
            if used > most:
                with report.open("a", encoding="utf-8") as file:
                    file.write(
                        f"{used * 1000:.0f} ms\t{'; '.join(f'{n} x {where}' for where, n in places.most_common(3))}\n"
                    )

    asyncio.Handle._run = run  # pyright: ignore[reportAttributeAccessIssue]
    threading.Thread(target=look, daemon=True).start()


def _place(frame: FrameType | None) -> str:
    # The innermost function, and the innermost two of our own around it.
    assert frame is not None
    found, ours = [_name(frame)], 0
    while frame is not None and ours < 2:
        if any(folder in frame.f_code.co_filename for folder in OURS):
            ours += 1
            found.append(_name(frame))
        frame = frame.f_back
    return " < ".join(dict.fromkeys(found))


def _name(frame: FrameType) -> str:
    file = "/".join(Path(frame.f_code.co_filename).parts[-3:])
    return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"


if __name__ == "__main__":
    loops = ModuleType("uvloop")  # whose own callbacks cannot be watched
    vars(loops).update(new_event_loop=asyncio.new_event_loop, EventLoopPolicy=asyncio.DefaultEventLoopPolicy)
    sys.modules["uvloop"] = loops
    watched(Path(sys.argv[1]), float(sys.argv[2]))
    del sys.argv[:3]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
