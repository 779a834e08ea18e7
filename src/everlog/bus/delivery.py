"""A message that arrived, or is to be sent."""

from typing import Any


class Delivery:
    """A message; `reply` is a subject inside somebody's inbox, or empty."""

    def __init__(self, subject: str, payload: bytes, reply: str = "", correlation: bytes = b"") -> None:
        self.subject = subject
        self.payload = payload
        self.reply = reply
        self.correlation = correlation  # to be sent back with a reply, where a bus has that

    def __eq__(self, other: Any) -> bool:
        if type(other).__name__ != "Delivery":
            return False
        mine = (self.subject, self.payload, self.reply, self.correlation)
        return bool(mine == (other.subject, other.payload, other.reply, other.correlation))

    def __repr__(self) -> str:
        return f"Delivery({self.subject!r}, {self.payload!r}, {self.reply!r}, {self.correlation!r})"


def new_delivery(subject: str, payload: bytes, reply: str, correlation: bytes) -> Delivery:
    """Return a message, a little faster than its class does."""
    made = Delivery.__new__(Delivery)
    made.subject = subject
    made.payload = payload
    made.reply = reply
    made.correlation = correlation
    return made
