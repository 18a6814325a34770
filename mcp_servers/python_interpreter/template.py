"""The process that kernels are forked from: it has loaded what they need, and has nothing of any person.

Run by the kernels' own Python, as `template.py [--preload]`, with a socket of the sandbox's server at standard input.
"""
# pyright: basic, reportMissingImports=false

import gc
import importlib
import os
import sys
import traceback
from contextlib import suppress

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from mcp_servers.sandbox import joining as joining  # noqa: E402
from mcp_servers.sandbox import launch, policy, process, server  # noqa: E402
from mcp_servers.sandbox.libc import PR_SET_CHILD_SUBREAPER, prctl  # noqa: E402

del sys.path[0]
# The debugger would be half of a kernel's memory, and nobody can connect to it.
sys.modules["debugpy"] = None  # type: ignore[assignment]
KERNEL = """
ipykernel.kernelapp ipykernel.ipkernel ipykernel.debugger IPython.core.completerlib IPython.core.debugger
IPython.core.logger IPython.core.oinspect IPython.core.ultratb IPython.extensions.storemagic IPython.utils.wildcard
encodings.idna encodings.latin_1 faulthandler pdb pygments.formatters.html pygments.lexers.python
tornado.platform.asyncio unicodedata
"""
PRELOADED = "matplotlib.pyplot matplotlib_inline.backend_inline numpy.random pandas"


def main() -> int:
    """Load everything, then fork a kernel for each request until the socket is closed."""
    process.run_from_memory()
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # kernels whose first process has ended are reaped here
    for name in f"{KERNEL} {PRELOADED if '--preload' in sys.argv else ''}".split():
        with suppress(ImportError):
            importlib.import_module(name)
    make_first_traceback()
    gc.collect()
    gc.freeze()  # a collection in a kernel would touch, and so copy, what all of them share
    return server.serve(become_kernel)


def make_first_traceback() -> None:
    """It takes half a second."""
    from IPython.core.ultratb import AutoFormattedTB

    with suppress(Exception):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            AutoFormattedTB(mode="Context").structured_traceback(*sys.exc_info())


def become_kernel(text: str, words: list[str], control: int) -> int:
    """Enter the sandbox and be a kernel; the socket's other end then gets a descriptor of its process.

    `words` are the process id of bubblewrap, or nothing, and the kernel's arguments.
    """
    rules, (bubblewrap, *arguments) = policy.parse(text), words
    try:
        if bubblewrap:
            launch.join(rules, int(bubblewrap))
        server.tie(control)
        launch.confine(rules)
        server.announce(control)
    except Exception:
        traceback.print_exc()
        return launch.REFUSED_EXIT
    be_like_a_new_process(arguments)
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(argv=arguments)
    return 0


def be_like_a_new_process(arguments: list[str]) -> None:
    """`random` has a new seed after a fork by itself, numpy's global generator has not."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    sys.argv = [sys.argv[0], *arguments]
    for name in [name for name in sys.modules if name.split(".")[0] == "mcp_servers"]:
        del sys.modules[name]


if __name__ == "__main__":
    sys.exit(main())
