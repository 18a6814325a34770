"""The launcher's error."""

from __future__ import annotations


class SandboxError(Exception):
    """The program was not started; the message says why and what to do about it."""
