"""What the launcher says when it will not start a program."""

from __future__ import annotations


class SandboxError(Exception):
    """The program was not started; the message says what is wrong and how to mend it."""
