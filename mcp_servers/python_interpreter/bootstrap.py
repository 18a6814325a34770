"""Runs once inside every kernel: tables as Markdown, figures once, output in bounds, no trace in the namespace.

The server sends this file's text; whatever it needs is imported in the kernel's own environment.
"""
# pyright: basic, reportMissingImports=false

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys

ROWS, COLUMNS, CHARACTERS = 50, 20, 200


class TooMuchOutput(RuntimeError):
    pass


def prepare(preload, most_output, rest_seconds):
    """Set the running shell up; `preload` imports pandas and matplotlib, `most_output` is in characters.

    After `rest_seconds` without a call, memory that nothing needs any more is returned to the system.
    """
    from IPython import get_ipython

    shell = get_ipython()
    show_tables(shell)
    shell._tee = functools.partial(bounded, shell, most_output)  # IPython's own keeps all output of a kernel for ever
    return_memory_when_idle(shell, rest_seconds)
    if preload:
        for name in ("pandas", "matplotlib.pyplot"):
            importlib.import_module(name)
        shell.enable_matplotlib("inline")
        draw_saved_figures_once(shell)
    sys.stdout.flush()


def show_tables(shell):
    markdown = shell.display_formatter.formatters["text/markdown"]
    markdown.for_type_by_name("pandas", "DataFrame", table)
    markdown.for_type_by_name("pandas", "Series", lambda series: table(series.to_frame()))
    plain = shell.display_formatter.formatters["text/plain"]
    for name in ("float64", "int64"):  # a sum or a mean of a column
        plain.for_type_by_name("numpy", name, lambda number, printer, _: printer.text(str(number)))


def table(frame):
    part = frame.iloc[:ROWS, :COLUMNS]
    lines = [["", *map(cell, part.columns)], ["---"] * (part.shape[1] + 1)]
    rows = zip(part.index, part.itertuples(index=False), strict=True)
    lines += [[cell(name), *map(cell, values)] for name, values in rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    if part.shape != frame.shape:
        text += f"\n\n[{part.shape[0]} of {frame.shape[0]} rows, {part.shape[1]} of {frame.shape[1]} columns]"
    return text


def cell(value):
    text = str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


@contextlib.contextmanager
def bounded(shell, most_output, channel):
    stream, written = getattr(sys, channel), 0
    write = stream.write

    def write_within(text):
        nonlocal written
        written += len(text)
        if written > most_output:
            raise TooMuchOutput(f"more than {most_output:,} characters of output")
        return write(text)

    stream.write = write_within
    try:
        yield
    finally:
        stream.write = write
        shell.history_manager.outputs.clear()


def return_memory_when_idle(shell, seconds):
    loop, timers = shell.kernel.io_loop, []

    def restart(_):
        while timers:
            loop.remove_timeout(timers.pop())
        timers.append(loop.call_later(seconds, return_memory))

    shell.events.register("post_run_cell", restart)


def return_memory():
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc keeps what was freed
        ctypes.CDLL(None).malloc_trim(0)


def draw_saved_figures_once(shell):
    """A figure that code has saved is handed over as that file, and not shown again."""
    from matplotlib.figure import Figure

    save = Figure.savefig
    png = shell.display_formatter.formatters["image/png"]
    draw = png.lookup_by_type(Figure)

    def savefig(self, fname, *args, **kwargs):
        result = save(self, fname, *args, **kwargs)
        self._saved_as_file = isinstance(fname, (str, os.PathLike))
        return result

    def shown(figure):
        return None if getattr(figure, "_saved_as_file", False) else draw(figure)

    Figure.savefig = savefig
    png.for_type(Figure, shown)
