"""What client and broker agreed on, and what happened to a session's messages."""

from dataclasses import dataclass

from msgspec import Struct

from everlog.mqtt import MAX_PACKET_BYTES, Will


@dataclass(slots=True)
class Counters:
    """What happened to a session's messages."""

    sent: int = 0
    dropped: int = 0
    expired: int = 0
    lost: int = 0  # offsets that the log did not have any more when the session asked for them


class Terms(Struct, frozen=True):
    """What client and broker agreed on at CONNECT."""

    version: int = 4
    user: str | None = None
    expiry_s: int = 0
    will: Will | None = None
    max_inflight: int = 2048
    max_packet_bytes: int = MAX_PACKET_BYTES
    max_aliases: int = 0
    is_bridge: bool = False
