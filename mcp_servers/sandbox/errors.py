"""The launcher's error."""


class SandboxError(Exception):
    """The program was not started; the message says why and what to do about it."""
