"""A process that must be left in peace: it holds a secret, and writes down every signal it gets."""

import ctypes
import os
import signal
import sys
from types import FrameType


def main(signals: str) -> None:
    """Print the secret's address in memory, then wait."""
    secret = ctypes.create_string_buffer(os.environ["SECRET"].encode(), 128)
    log = os.open("received", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def note(number: int, frame: FrameType | None) -> None:
        os.write(log, b"%d\n" % number)

    for number in signals.split(","):
        signal.signal(int(number), note)
    held = os.open("secret.txt", os.O_RDONLY)
    print(ctypes.addressof(secret), flush=True)
    while held:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
