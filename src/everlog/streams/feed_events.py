"""What is told to those who follow a stream: an event for each record that changed it."""

from enum import StrEnum

from msgspec import Struct

from everlog.streams.values import Config, Entry, Kind, StoredMessage


class Reason(StrEnum):
    """Why messages went."""

    ASKED = "asked"
    EXPIRED = "expired"  # by their TTL or by the stream's age
    DISCARDED = "discarded"  # to make room


class MessageSet(Struct, array_like=True, frozen=True, gc=False, tag="message"):
    """A message was written; one with the same seq is replaced."""

    message: StoredMessage


class MessagesDeleted(Struct, array_like=True, frozen=True, gc=False, tag="deleted"):
    """Messages went: ranges of seqs, first and last included."""

    ranges: list[tuple[int, int]]
    reason: Reason = Reason.ASKED


class KeySet(Struct, array_like=True, frozen=True, gc=False, tag="key"):
    """A key has a new value."""

    entry: Entry


class KeysDeleted(Struct, array_like=True, frozen=True, gc=False, tag="keys_deleted"):
    """Keys went."""

    keys: list[str]
    revision: int
    reason: Reason = Reason.ASKED


class AllDeleted(Struct, array_like=True, frozen=True, gc=False, tag="all_deleted"):
    """Everything went; `is_removed` if the stream itself did."""

    is_removed: bool = False


class Configured(Struct, array_like=True, frozen=True, gc=False, tag="configured"):
    """The stream was made, or its limits changed."""

    kind: Kind
    config: Config


class EpochBegan(Struct, array_like=True, frozen=True, gc=False, tag="epoch"):
    """The first event of a stream in a new epoch: what was seen above this seq and position was never committed."""

    last_seq: int
    last_position: int


Change = MessageSet | MessagesDeleted | KeySet | KeysDeleted | AllDeleted | Configured | EpochBegan


class FeedEvent(Struct, array_like=True, frozen=True, gc=False, tag="event"):
    """All that one record changed in a stream. Whoever has not seen `previous` has missed something and resumes."""

    stream: str
    epoch: int
    position: int
    previous: int  # the stream's position before this one; -1 for none
    changes: list[Change]


class FeedEvents(Struct, array_like=True, frozen=True, gc=False, tag="events"):
    """Events that were missed, oldest first."""

    events: list[FeedEvent]
