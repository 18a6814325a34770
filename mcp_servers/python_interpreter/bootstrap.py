"""Runs once inside every kernel: tables as Markdown, figures once, output in bounds, no trace in the namespace."""
# pyright: basic, reportMissingImports=false


def _prepare(preload, most_output):
    import contextlib
    import importlib
    import os
    import sys

    from IPython import get_ipython

    shell = get_ipython()
    rows, columns, characters = 50, 20, 200

    def cell(value):
        text = str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
        return text if len(text) <= characters else text[: characters - 1] + "…"

    def table(frame):
        part = frame.iloc[:rows, :columns]
        lines = [["", *map(cell, part.columns)], ["---"] * (part.shape[1] + 1)]
        lines += [
            [cell(name), *map(cell, values)]
            for name, values in zip(part.index, part.itertuples(index=False), strict=True)
        ]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        if part.shape != frame.shape:
            text += f"\n\n[{part.shape[0]} of {frame.shape[0]} rows, {part.shape[1]} of {frame.shape[1]} columns]"
        return text

    markdown = shell.display_formatter.formatters["text/markdown"]
    markdown.for_type_by_name("pandas", "DataFrame", table)
    markdown.for_type_by_name("pandas", "Series", lambda series: table(series.to_frame()))

    def keep_saved_figures_from_being_shown_again():
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

    class TooMuchOutput(RuntimeError):
        pass

    @contextlib.contextmanager
    def bounded(channel):
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

    shell._tee = bounded  # IPython's own keeps all output of a kernel for ever

    if preload:
        for name in ("pandas", "matplotlib.pyplot"):
            importlib.import_module(name)
        shell.enable_matplotlib("inline")
        keep_saved_figures_from_being_shown_again()
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            shell.InteractiveTB.structured_traceback(*sys.exc_info())  # the first one takes half a second
    sys.stdout.flush()
