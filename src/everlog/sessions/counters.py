"""What happened to a session's messages."""

from dataclasses import dataclass


@dataclass(eq=False)
class Counters:
    """What happened to a session's messages."""

    sent: int = 0
    dropped: int = 0
    expired: int = 0
    lost: int = 0  # offsets that the log did not have any more when the session asked for them
