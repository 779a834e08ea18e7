"""One error root, sorted by blame: the peer's, the caller's, the disk's, or nobody's (not now)."""

import os
import re


class EverlogError(Exception):
    """The root of every error that Everlog raises on purpose; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class PeerError(EverlogError):
    """The peer broke the protocol or a limit; `reason` is the MQTT 5 reason code to answer with."""

    def __init__(self, reason: int, message: str, *, clause: str = "", hint: str = "") -> None:
        super().__init__(f"{message} [{clause}]" if clause else message, hint=hint)
        self.reason = reason
        self.clause = clause


class UsageError(EverlogError):
    """The caller or operator asked for something that can't be: a bad setting, filter or argument."""


class StorageError(EverlogError):
    """The disk or bucket failed or holds something that can't be trusted."""


class Unavailable(EverlogError):
    """Not possible now, though nobody did anything wrong: closing, read-only, over a limit."""


def system_reason(error: OSError) -> str:
    """Return in the system's words why a connection can't be made, without asyncio's numbers and tuples."""
    number = re.search(r"\[Errno (\d+)\]", str(error))  # also where an error stands for those of several addresses
    return os.strerror(int(number[1])) if number else error.strerror or str(error)


class Fenced(Unavailable):
    """Somebody else owns what was to be written: nothing that was not seen committed is known to be written."""
